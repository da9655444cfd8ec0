"""A small client: list, read, call and the like, which connect, ask and leave."""
