"""Clients: the edges that they come in by, in either era, and their sessions and listens."""
