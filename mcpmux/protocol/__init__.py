"""What MCP defines: messages, framing, revisions, eras, headers. Pure: no async, no clock, no randomness."""
