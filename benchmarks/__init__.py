"""What mcpmux costs, measured beside what it stands in front of."""
