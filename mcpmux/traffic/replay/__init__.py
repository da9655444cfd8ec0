"""Captured requests sent again, and what came back compared."""
