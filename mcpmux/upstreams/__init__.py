"""Upstreams: connections to servers in either era, kept up by supervised tasks, and their caches."""
