"""The proven identity of a client, and until when it holds. Pure: the edges check the proof.

Sessions, listens, cursors and request states are bound to a principal, and access rules are
about it. Two clients with the same principal and view are the same client, by any proof.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final, NamedTuple

import msgspec

from mcpmux.errors import McpmuxError, Refused
from mcpmux.protocol.codes import INVALID_REQUEST

MOST_NAME: Final = 256  # characters
CERTIFICATES: Final = "certificates"

NARROWED: Final = "?"
"""Stands between the name of a view and what a client narrows it to."""

_NAME: Final = re.compile(rf"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{{1,{MOST_NAME}}}")


class Principal(msgspec.Struct, frozen=True, gc=False):
    """An identity. `name` is unique; "" is an unknown client. `scopes`: of OAuth, as its token has them.

    `view`: the view that it uses ("" is the one with everything), and behind NARROWED how it narrows that.
    """

    name: str
    scopes: frozenset[str] = frozenset()
    view: str = ""

    def __bool__(self) -> bool:
        return bool(self.name)

    @property
    def key(self) -> str:
        """The key that sessions and the like are bound to: its name and its view."""
        # No name has a line break in it, so no two of them have the same key.
        return f"{self.view}\n{self.name}" if self.view else self.name

    @property
    def view_name(self) -> str:
        """The name of its view, without what narrows it."""
        return self.view.partition(NARROWED)[0]

    def within(self, view: str) -> Principal:
        """Return the same principal in a view."""
        return self if view == self.view else Principal(self.name, self.scopes, view)


ANYONE: Final = Principal("")
"""A client whose identity was not asked for."""


def is_name(value: object) -> bool:
    """Return whether a value can be a principal's name: bounded text without control characters."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


class Admission(NamedTuple):
    """A principal, the end of its validity (seconds since 1970, or infinity), and the setting that admits it.

    `resource`: the only URL that its token is for; "" for every endpoint and view.
    """

    principal: Principal
    expires: float = math.inf
    ground: tuple[str, Any] = (CERTIFICATES, True)
    resource: str = ""


class Turned(McpmuxError):
    """A client is not admitted. `status` and `fields` are for HTTP, the text is for the client."""

    def __init__(self, status: int, sentence: str, fields: tuple[tuple[str, str], ...]) -> None:
        super().__init__(sentence)
        self.status = status
        self.fields = fields

    def as_error(self) -> Refused:
        """Return the refusal for a transport that has JSON-RPC only."""
        text = str(self)
        return Refused(INVALID_REQUEST, text[:1].upper() + text[1:], "auth")


def certified(holder: str) -> Admission:
    """Return the admission of a certificate's holder. Raises Turned when it names no holder."""
    if not holder:
        raise Turned(403, "the client's certificate names nobody", ())
    return Admission(Principal(f"cert:{holder}"))
