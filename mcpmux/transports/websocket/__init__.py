"""WebSocket at both ends, each frame a message."""
