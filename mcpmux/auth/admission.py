"""Who comes in at a listener, or why not: what a gate says, without what it takes to say so."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from mcpmux.errors import McpmuxError
from mcpmux.protocol.principal import Principal

CERTIFICATES = "certificates"

Fields = tuple[tuple[str, str], ...]


class Turned(McpmuxError):
    """Somebody is not let in. `status` and `fields` are for HTTP, the text is for whoever asked."""

    def __init__(self, status: int, sentence: str, fields: Fields) -> None:
        super().__init__(sentence)
        self.status = status
        self.fields = fields


class Admission(NamedTuple):
    """Who it is, until when that holds (seconds since 1970, or infinity), and what setting let it in."""

    principal: Principal
    expires: float = math.inf
    ground: tuple[str, Any] = (CERTIFICATES, True)


def certified(holder: str) -> Admission:
    """Who the holder of a certificate is. Raises Turned when it names nobody."""
    if not holder:
        raise Turned(403, "the client's certificate names nobody", ())
    return Admission(Principal(f"cert:{holder}"))
