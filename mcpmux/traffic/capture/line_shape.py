"""The shape of a line of a capture file, as it is written."""

from __future__ import annotations

import msgspec

from mcpmux.protocol.raw_json import Raw
from mcpmux.protocol.shapes import Id
from mcpmux.traffic.record import Body


class Line(msgspec.Struct, omit_defaults=True, gc=False):
    """A `Record`, made from values in their order. In `v` and `kind` other members follow, encoded before.

    `v` is followed by `run`; `kind` by `leg`, `direction`, `method`, and what is said of the leg.
    """

    v: Raw
    seq: int
    time: str
    at: float
    kind: Raw
    exchange: int = 0
    own: bool = False
    id: Id | None = None
    target: str | None = None
    status: int | None = None
    size: int = 0
    code: int | None = None
    failed: bool | None = None
    ms: float | None = None
    redacted: int = 0
    message: Body = None
    text: str | None = None
