"""Files to frozen values, every mistake reported at once. Read before the event loop starts."""
