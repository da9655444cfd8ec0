"""Who a client has been shown to be. Pure: how it was shown is for the edges.

A principal is what sessions, listens, cursors and request states are bound to, and what access rules are
about. Two clients with the same principal are the same somebody, however they were told.
"""

from __future__ import annotations

import msgspec


class Principal(msgspec.Struct, frozen=True, gc=False):
    """Somebody. `name` is unique among all who can be shown to be somebody; "" is nobody in particular."""

    name: str
    scopes: frozenset[str] = frozenset()
    """OAuth scopes that its token carries."""

    def __bool__(self) -> bool:
        return bool(self.name)


ANYONE = Principal("")
"""A client that nobody has asked who it is."""
