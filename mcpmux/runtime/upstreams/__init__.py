"""Upstreams: channels to servers, connections in either era, kept up by supervised tasks."""
