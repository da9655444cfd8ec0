"""A server that answers from a capture."""
