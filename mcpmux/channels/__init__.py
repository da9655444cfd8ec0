"""How exchanges share one transport: requests in flight, deadlines, and what is said on the way."""
