"""TLS at both ends: contexts out of settings, the handshake, the stream."""
