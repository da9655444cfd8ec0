"""Load benchmarking of MCP servers: what is driven, and what is told of it."""
