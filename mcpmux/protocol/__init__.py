"""What MCP says: messages, framing, revisions, eras, headers. Pure: no async, no clock, no randomness."""
