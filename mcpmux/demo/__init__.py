"""Three small MCP servers that come with mcpmux: to try it, to look at, to test against."""
