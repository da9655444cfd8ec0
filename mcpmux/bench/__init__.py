"""Load benchmarks of MCP servers: what is asked, how the load is driven, what is counted. See `report`."""
