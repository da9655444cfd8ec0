"""Measurements of the cost of mcpmux, beside the servers behind it."""
