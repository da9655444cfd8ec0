"""Bytes, processes, HTTP, sockets. Knows no MCP method name."""
