"""What an HTTP server grants its clients, and how it refuses more."""

from __future__ import annotations

from typing import Final

import msgspec

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
