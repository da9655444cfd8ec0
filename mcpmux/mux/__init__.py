"""The decisions of mcpmux: names, cursors, merging, rewriting. Pure: no async, no clock, no randomness."""
