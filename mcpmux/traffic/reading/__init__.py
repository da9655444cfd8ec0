"""Captures read back: followed, filtered, put together, counted, exported."""
