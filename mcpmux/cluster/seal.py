"""Seals what lies in the store, and signs what replicas say to each other, both with the cluster's key.

A reader of the store learns how much there is, but not its contents: names are keyed hashes, values are
encrypted (AES-256-GCM).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

# Of the extra `cluster`. Workers, which share a store in memory (`OpenSeal`), do not import this module.
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mcpmux.cluster.store import ForeignSeal
from mcpmux.config import Config

NONCE_BYTES = 12
NAME_DIGITS = 32


class ClusterSeal:
    """See Seal. `key`: what all replicas have in common."""

    def __init__(self, key: bytes) -> None:
        self._key = hashlib.sha256(b"mcpmux cluster" + key).digest()

    @classmethod
    def of(cls, config: Config) -> ClusterSeal:
        """Return the seal of a configuration, which has a `cursor_key` if it has a cluster."""
        assert config.merging.cursor_key is not None
        return cls(config.merging.cursor_key.reveal().encode())

    def name(self, kind: str, text: str) -> str:
        return self._digest("name", kind, text).hex()[:NAME_DIGITS]

    def seal(self, kind: str, name: str, data: bytes, principal: str = "") -> bytes:
        # The principal is authenticated with the value: sealed for one, it opens for no other.
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._cipher(kind, name).encrypt(nonce, data, principal.encode())

    def open(self, kind: str, name: str, sealed: bytes, principal: str = "") -> bytes:
        nonce, data = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
        try:
            return self._cipher(kind, name).decrypt(nonce, data, principal.encode())
        except (InvalidTag, ValueError):
            raise ForeignSeal(f"this {kind} was sealed for somebody else, or with another key") from None

    def sign(self, data: bytes) -> str:
        return hmac.new(self._digest("sign", "", ""), data, hashlib.sha256).hexdigest()

    def is_signed(self, data: bytes, signature: str) -> bool:
        return signature.isascii() and hmac.compare_digest(self.sign(data), signature)

    def _cipher(self, kind: str, name: str) -> AESGCM:
        # A key for each name: a writer to the store cannot put one value in the place of another. And random
        # nonces of 12 bytes are for some 2**32 values with one key.
        return AESGCM(self._digest("seal", kind, name))

    def _digest(self, purpose: str, kind: str, text: str) -> bytes:
        return hmac.new(self._key, f"{purpose}\0{kind}\0{text}".encode(), hashlib.sha256).digest()
