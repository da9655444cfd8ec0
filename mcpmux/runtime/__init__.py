"""Tasks, deadlines and MCP methods: router, upstreams, downstreams. Knows no bytes."""
