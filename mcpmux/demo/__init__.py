"""Three small MCP servers that come with mcpmux: to try it, to read, and to test against."""
