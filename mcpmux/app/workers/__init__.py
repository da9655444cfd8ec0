"""One listening address, several processes: the keeper has the address, the workers have the clients."""
