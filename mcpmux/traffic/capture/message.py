"""One message as a capture record: described, redacted, cut. Pure."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from mcpmux.protocol.framing import CR, LF
from mcpmux.protocol.raw_json import Raw
from mcpmux.protocol.shapes import Id
from mcpmux.traffic.correlation import method_id_target
from mcpmux.traffic.observer import Observation
from mcpmux.traffic.record import MICROS, VERSION, Body, Record, micros_of, rfc3339
from mcpmux.traffic.redaction.redactor import Redactor

FINGERPRINT_BYTES = 8
SESSIONS_CACHED = 1024

_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")


class Run(NamedTuple):
    """One life of mcpmux: its random name, and what a clock that is never set showed at a known time.

    `clock`: seconds, as in `Observation.at`, when the run began. `wall`: seconds since 1970 at that moment.
    """

    name: str
    clock: float
    wall: float

    def time_of(self, clock: float) -> str:
        """RFC 3339 in UTC with microseconds."""
        return rfc3339(self.wall_micros + micros_of(clock - self.clock))

    @property
    def wall_micros(self) -> int:
        """`wall` in microseconds."""
        return micros_of(self.wall)


def start_record(run: Run, clock: float, version: str) -> Record:
    """What a file begins with."""
    at = round(clock - run.clock, 6)
    return Record(v=VERSION, run=run.name, time=run.time_of(clock), at=at, kind="start", version=version)


def facts_after_redaction(
    observed: Observation, body: bytes, count: int
) -> tuple[str | None, Id | None, str | None]:
    """Method, id and target, which must not repeat a secret of the message.

    `body`: the message without its `count` secrets. The method may still be one, that of a request before.
    """
    if not count:
        return observed.method, observed.id, observed.target
    method, request_id, target = method_id_target(body)
    return method or observed.method, request_id, target


def to_record(
    observed: Observation, run: Run, seq: int, redactor: Redactor, level: str = "full", body_bytes: int = 4096
) -> Record:
    """The record of a message, all of it redacted first. `level` as in `[capture]`, but not `off`.

    `body_bytes`: how much of the redacted body a record of level `truncated` has.
    """
    leg = observed.leg
    body, count = redactor.redact(observed.method, observed.data)
    method, request_id, target = facts_after_redaction(observed, body, count)
    message, text = (None, None) if level == "metadata" else body_of(observed.kind, body, level, body_bytes)
    return Record(
        v=VERSION,
        run=run.name,
        seq=seq,
        time=run.time_of(observed.at),
        at=micros_of(observed.at - run.clock) / MICROS,
        kind=observed.kind,
        leg=leg.side,
        direction=observed.direction,
        exchange=observed.exchange or None,
        own=observed.own,
        method=redactor.redact_name(method),
        id=request_id,
        target=target,
        peer=leg.peer,
        upstream=leg.upstream,
        client=redactor.redact_name(leg.name) if leg.side == "client" else None,
        session=fingerprint(leg.session) if leg.session is not None else None,
        transport=leg.transport,
        revision=redactor.redact_name(leg.revision),
        status=observed.status,
        size=len(observed.data),
        code=observed.code,
        failed=observed.failed,
        ms=observed.ms,
        redacted=count or None,
        message=message,
        text=text,
    )


def body_of(kind: str, body: bytes, level: str, limit: int) -> tuple[Raw | None, str | None]:
    """`message` and `text` of a record, of which one is None."""
    if level == "truncated" and len(body) > limit:
        return None, body[:limit].decode("utf-8", "ignore")
    if kind != "invalid" and body[:1] != b'"':
        return without_line_ends(body), None
    if _is_object(body):
        return without_line_ends(body), None
    return None, body.decode("utf-8", "replace")


def without_line_ends(body: bytes) -> Raw:
    """JSON on one line: between its tokens a space means the same, and in them no line ends."""
    return Raw(body.translate(_LINE_ENDS) if LF in body or CR in body else body)


def _is_object(body: bytes) -> bool:
    try:
        return body.lstrip()[:1] == b"{" and isinstance(msgspec.json.decode(body), dict)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


@lru_cache(SESSIONS_CACHED)
def fingerprint(session: str) -> str:
    """Equal for equal session ids, and useless for anything else."""
    return blake2b(session.encode("utf-8", "replace"), digest_size=FINGERPRINT_BYTES).hexdigest()


# The shape of a line of a capture file, for encoding.


class Line(msgspec.Struct, omit_defaults=True, gc=False):
    """A `Record`, made from values in their order. In `v` and `kind` other members follow, encoded before.

    `v` is followed by `run`; `kind` by `leg`, `direction`, `method`, and the facts of the leg.
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
