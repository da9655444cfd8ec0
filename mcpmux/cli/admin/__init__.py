"""A running mcpmux: `mcpmux ctl` over its admin listener, and those that host apps share."""
