"""Secrets found and taken out of JSON and text. Pure."""
