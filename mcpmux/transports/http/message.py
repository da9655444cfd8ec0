"""The parts of an HTTP/1.1 message that both sides share: header fields, limits, framing bytes.

Pure. Header fields that we send are a tuple of pairs, so that a set of fields which is used again
and again is checked and encoded once.
"""

from __future__ import annotations

from time import gmtime
from typing import Final

import msgspec

Fields = tuple[tuple[str, str], ...]

FRAMING_PER_BODY_BYTE: Final = 8  # received; a chunk of one byte needs five, more is padding
HEAD_FIELDS: Final = 100  # browsers send 20, proxies in between add a few; each costs more than its bytes
BODY_RATE: Final = 1024  # bytes a second, from the end of the head on: slower is not a client but a burden


class HttpLimits(msgspec.Struct, frozen=True):
    """What a server grants its clients."""

    head_bytes: int = 32 * 1024
    head_fields: int = HEAD_FIELDS
    body_bytes: int = 64 * 1024 * 1024
    head_seconds: float = 15  # from the first byte of a head (or from accepting) to its end
    body_seconds: float = 60  # between two receives of one body, which is sent at BODY_RATE or faster
    idle_seconds: float = 120  # between two requests of one connection
    write_seconds: float = 60  # without the peer reading anything while we have something for it
    connections: int = 800  # leaves room for upstreams below the usual 1024 open files


class Refusal(msgspec.Struct, frozen=True):
    """A request that the transport answers itself, closing the connection afterwards."""

    status: int
    sentence: str


# Dates as HTTP writes them. Pure; RFC 9110, section 5.6.7.
#
# The standard library has this among all that e-mail needs, which is more than a server's start should pay
# for.

_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def http_date(seconds: float) -> str:
    """`Sun, 06 Nov 1994 08:49:37 GMT` of seconds since 1970."""
    then = gmtime(seconds)
    clock = f"{then.tm_hour:02}:{then.tm_min:02}:{then.tm_sec:02}"
    day = f"{then.tm_mday:02} {_MONTHS[then.tm_mon - 1]} {then.tm_year:04}"
    return f"{_DAYS[then.tm_wday]}, {day} {clock} GMT"
