"""Who a client has been shown to be, and until when. Pure: how it was shown is for the edges.

A principal is what sessions, listens, cursors and request states are bound to, and what access rules are
about. Two clients with the same principal are the same somebody, however they were told, in the same view.
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

_NAME: Final = re.compile(rf"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{{1,{MOST_NAME}}}")


class Principal(msgspec.Struct, frozen=True, gc=False):
    """Somebody. `name` is unique; "" is nobody in particular. `scopes`: of OAuth, which its token carries.

    `view`: through which it looks; "" is the one with everything.
    """

    name: str
    scopes: frozenset[str] = frozenset()
    view: str = ""

    def __bool__(self) -> bool:
        return bool(self.name)

    @property
    def key(self) -> str:
        """What is bound to it is bound to this: its name and its view."""
        return f"{self.view}\n{self.name}" if self.view else self.name

    def within(self, view: str) -> Principal:
        """The same somebody in a view."""
        return self if view == self.view else Principal(self.name, self.scopes, view)


ANYONE: Final = Principal("")
"""A client that nobody has asked who it is."""


def is_name(value: object) -> bool:
    """Whether somebody can be called so: text of bounded length without control characters."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


class Admission(NamedTuple):
    """Who it is, until when that holds (seconds since 1970, or infinity), and what setting let it in.

    `resource`: the only URL that its token is for; "" for every endpoint and view.
    """

    principal: Principal
    expires: float = math.inf
    ground: tuple[str, Any] = (CERTIFICATES, True)
    resource: str = ""


class Turned(McpmuxError):
    """Somebody is not let in. `status` and `fields` are for HTTP, the text is for whoever asked."""

    def __init__(self, status: int, sentence: str, fields: tuple[tuple[str, str], ...]) -> None:
        super().__init__(sentence)
        self.status = status
        self.fields = fields

    def as_error(self) -> Refused:
        """The same where there is nothing but JSON-RPC."""
        text = str(self)
        return Refused(INVALID_REQUEST, text[:1].upper() + text[1:], "auth")


def certified(holder: str) -> Admission:
    """Who the holder of a certificate is. Raises Turned when it names nobody."""
    if not holder:
        raise Turned(403, "the client's certificate names nobody", ())
    return Admission(Principal(f"cert:{holder}"))
