"""Tokens that are given out by hand: only their hashes are kept. Pure.

Hashes are compared in constant time. A plain SHA-256 is enough, as a token is 256 random bits: there is no
list of likely ones to try.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from mcpmux.config.auth import StaticToken
from mcpmux.protocol.principal import Principal

TOKEN_BYTES = 32  # of randomness
PREFIX = "mcpmux_"  # so that people and scanners recognise one that has leaked
LEAST_CHARACTERS = 32  # of a token made elsewhere: shorter ones may be words


def hash_token(token: str) -> str:
    """What stands in the configuration for a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class StaticTokens:
    """The static tokens of a configuration."""

    def __init__(self, tokens: Mapping[str, StaticToken]) -> None:
        self._known = [
            (bytes.fromhex(token.sha256), Principal(name, frozenset(token.scopes)))
            for name, token in tokens.items()
        ]

    def __repr__(self) -> str:
        return f"<StaticTokens {len(self._known)}>"

    def find(self, token: str) -> Principal | None:
        """Whose it is. Takes the same time wherever in the list it is, and when it is not there."""
        digest = bytes.fromhex(hash_token(token))
        found = None
        for known, principal in self._known:
            if hmac.compare_digest(known, digest):
                found = principal
        return found
