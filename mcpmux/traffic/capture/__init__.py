"""Capture: messages of both legs into rotated files, redacted first."""
