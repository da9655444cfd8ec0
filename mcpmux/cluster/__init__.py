"""Several replicas of mcpmux that serve the same clients, with a store for what outlives one of them."""
