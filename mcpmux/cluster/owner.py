"""Which of several replicas does something for all of them. Pure.

Rendezvous hashing: each replica has a weight for each name, and the heaviest owns it. So all who know the
same replicas agree without a word; when one goes only what it owned moves, and one that comes takes its share
from all others alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

WEIGHT_BYTES = 8


def owner_of(name: str, replicas: Collection[str]) -> str:
    """The replica, by id, that owns `name`. Raises ValueError when there are no replicas."""
    return max(replicas, key=lambda replica: (_weight(name, replica), replica))


def _weight(name: str, replica: str) -> bytes:
    return hashlib.blake2b(f"{name}\n{replica}".encode(), digest_size=WEIGHT_BYTES).digest()
