"""What mcpmux decides: names, cursors, merging, rewriting. Pure: no async, no clock, no randomness."""
