"""`mcpmux top`: a running mcpmux on the terminal, as it works."""
