"""Who a client has been shown to be. Pure: how it was shown is for the edges.

A principal is what sessions, listens, cursors and request states are bound to, and what access rules are
about. Two clients with the same principal are the same somebody, however they were told.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

MOST_NAME: Final = 256  # characters

_NAME: Final = re.compile(rf"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{{1,{MOST_NAME}}}")


class Principal(msgspec.Struct, frozen=True, gc=False):
    """Somebody. `name` is unique among all who can be shown to be somebody; "" is nobody in particular."""

    name: str
    scopes: frozenset[str] = frozenset()
    """OAuth scopes that its token carries."""

    def __bool__(self) -> bool:
        return bool(self.name)


ANYONE: Final = Principal("")
"""A client that nobody has asked who it is."""


def is_name(value: object) -> bool:
    """Whether somebody can be called so: text of bounded length without control characters."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None
