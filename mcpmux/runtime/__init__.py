"""Serve exchanges: access, routes, merged lists, tasks, notifications. Knows no bytes."""
