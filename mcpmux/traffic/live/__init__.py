"""The last exchanges in memory, and what of them may be shown."""
