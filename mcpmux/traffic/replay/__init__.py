"""Send captured requests again, and compare the answers."""
