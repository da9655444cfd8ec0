"""HTTP/1.1 at both ends: messages as bytes, connections, the pool, routes, redirects, event streams."""
