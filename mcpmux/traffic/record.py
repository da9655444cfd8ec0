"""The capture format: one message, or one note about the capture itself, on a line of JSON.

Version 1. A file is append-only; each of its lines can be read alone, so a file that was cut anywhere is
readable up to the cut. Members that would be null are left out. Readers skip members and `kind`s that they do
not know; a change that would mislead such a reader gets a new `v`.

| member | meaning |
| --- | --- |
| `v` | 1 |
| `run` | random hexadecimal name of the run of mcpmux; `seq` and `exchange` count within it |
| `seq` | 1, 2, 3 … in the order in which the messages passed; a gap means that messages were not captured |
| `answers` | of a result or error: `seq` of the request that it answers on the same leg, where known |
| `time` | when, RFC 3339 in UTC with microseconds |
| `at` | seconds since the run began, from a clock that is never set |
| `kind` | `request`, `notification`, `result`, `error`, `invalid` (no JSON-RPC message), `start` |
| `leg` | `client` or `upstream` |
| `direction` | `in` (mcpmux received it) or `out` (mcpmux sent it) |
| `exchange` | number of the client request that caused it, directly or not; absent without one |
| `own` | true for messages of mcpmux itself, and for their answers; absent for everything else |
| `method` | of the request or notification; of the request that a result or error answers, where known |
| `id` | JSON-RPC id on this leg |
| `target` | name or URI that the method is about, as on this leg |
| `peer` | key of the upstream session (`docs`, `docs@legacy`, `docs#3`), or `c` and the client's number |
| `upstream` | configured name of the upstream; absent on the client leg |
| `client` | the client's name for itself, on the client leg |
| `view` | view of the client, with `?` and the query that narrows it; absent when it sees everything |
| `session` | fingerprint of the HTTP session id: equal ids, equal fingerprints |
| `transport` | `stdio`, `http`, `sse`, `websocket`, `tcp`, `unix`, `memory` |
| `revision` | protocol revision of the leg, once agreed |
| `status` | HTTP status that it came or went with |
| `size` | bytes of the message as it was on the wire |
| `code` | JSON-RPC error code of an `error` |
| `failed` | true for a tool's result with `isError` |
| `ms` | of a result or error: milliseconds since its request passed on the same leg |
| `redacted` | how many values were replaced |
| `message` | the message itself, JSON: unchanged unless something was redacted |
| `text` | instead of it when it was cut or is no JSON object: its beginning; U+FFFD for invalid UTF-8 |

With level `metadata` neither `message` nor `text` is there. A record of kind `start` opens every file; it has
`v`, `run`, `time` and `version`, the version of mcpmux.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from mcpmux.protocol.envelope import value_at, value_of
from mcpmux.protocol.raw_json import Fields, Id, Raw

VERSION: Final = 1

if TYPE_CHECKING:
    Body: TypeAlias = Raw | None
else:
    Body = Raw  # msgspec decodes a Raw member only when its type is nothing else; absent it is None

ANSWERS: Final = frozenset({"result", "error"})


class Record(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One line; see the module for the meaning of its members."""

    v: int
    run: str
    time: str
    kind: str
    seq: int = 0
    answers: int | None = None
    at: float = 0.0
    leg: str | None = None
    direction: str | None = None
    exchange: int | None = None
    own: bool = False
    method: str | None = None
    id: int | str | None = None
    target: str | None = None
    peer: str | None = None
    upstream: str | None = None
    client: str | None = None
    view: str | None = None
    session: str | None = None
    transport: str | None = None
    revision: str | None = None
    status: int | None = None
    size: int = 0
    code: int | None = None
    failed: bool | None = None
    ms: float | None = None
    redacted: int | None = None
    message: Body = None
    text: str | None = None
    version: str | None = None


class BadRecord(ValueError):
    """A line that is no record of this format."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)


def encode_record(record: Record) -> bytes:
    """Return the record as a line, with its newline. `message` must hold no raw newline."""
    return _encoder.encode(record) + b"\n"


def decode_record(line: bytes) -> Record:
    """Return the record on a line. Raises BadRecord: no record, or of an unknown version."""
    try:
        record = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecord(f"no capture record: {error}") from None
    if record.v != VERSION:
        raise BadRecord(f"capture format version {record.v}; this mcpmux reads version {VERSION}")
    return record


# Times as records have them.

MICROS: Final = 1_000_000
STEP_SECONDS: Final = 0.5  # that the system's time may be ahead or behind before times are adjusted
STEPS_KEPT: Final = 1000  # of the system's time: years of a machine that sleeps each night
SECONDS_CACHED: Final = 16  # lines that are written together are of one or two


def micros_of(seconds: float) -> int:
    """Return the nearest whole number of microseconds."""
    return round(seconds * MICROS)


def rfc3339(micros: int) -> str:
    """Return microseconds since 1970 as RFC 3339 in UTC."""
    second, rest = divmod(micros, MICROS)
    return f"{second_of(second)}.{rest:06}Z"


@lru_cache(SECONDS_CACHED)
def second_of(seconds: int) -> str:
    """Return seconds since 1970 as RFC 3339 up to the fraction."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").removesuffix("+00:00")


class Run:
    """One life of mcpmux: its random name, and the system's time at readings of a monotonic clock.

    `clock`: seconds, as in `Observation.at`, when the run began. `wall`: seconds since 1970 at that moment.
    """

    def __init__(self, name: str, clock: float, wall: float) -> None:
        self.name, self.clock = name, clock
        # (reading of the clock, when the run began by the system's time since then): the newest is the last.
        self._steps = deque([(clock, wall)], maxlen=STEPS_KEPT)

    def __repr__(self) -> str:
        return f"<Run {self.name}, {len(self._steps)} steps>"

    def follow(self, since: float, clock: float, wall: float) -> None:
        """Take `wall` as the system's time at `clock`. If it has made a step, date that at `since`.

        It makes steps when it is set, and when the machine sleeps, as the clock may stand still then.
        """
        began = wall - clock + self.clock
        if abs(began - self._steps[-1][1]) > STEP_SECONDS:
            self._steps.append((since, began))

    def began(self, clock: float) -> float:
        """Return when the run began, in seconds since 1970, as the system's time is at a reading."""
        for since, began in reversed(self._steps):
            if clock >= since:
                return began
        return self._steps[0][1]

    def time_of(self, clock: float) -> str:
        """Return a reading of the clock as RFC 3339 in UTC with microseconds."""
        return rfc3339(micros_of(self.began(clock)) + micros_of(clock - self.clock))

    def wall_at(self, clock: float) -> float:
        """Return a reading of the clock as seconds since 1970."""
        return self.began(clock) + clock - self.clock


def seconds_of(record: Record) -> float | None:
    """Return `time` as seconds since 1970; None when it is invalid, in a file of another program."""
    try:
        return datetime.fromisoformat(record.time).timestamp()
    except ValueError:
        return None


# The parts of a message that `recorder.read_envelope` decodes.


class Params(msgspec.Struct, gc=False):
    """The recorded parameters of a method."""

    name: Any = None
    uri: Any = None
    progressToken: Any = None  # noqa: N815 - the field's name
    requestId: Any = None  # noqa: N815 - the field's name
    ref: Any = None

    @property
    def target(self) -> str | None:
        """The name or URI that a message is about."""
        about = self.uri if self.uri is not None else self.name
        if about is None and isinstance(self.ref, dict):
            about = self.ref.get("uri", self.ref.get("name"))
        return about if isinstance(about, str) else None


class Result(msgspec.Struct, gc=False):
    """The recorded member of a result. `isError`: true for a tool that failed."""

    isError: Any = None  # noqa: N815 - the field's name


class Error(msgspec.Struct, gc=False):
    """The recorded members of an error."""

    code: int
    message: str = ""


NO_PARAMS: Final = Params()


class Envelope(msgspec.Struct, gc=False):
    """A request (`method` and `id`), a notification (`method`), or an answer: an `error` or a `result`."""

    jsonrpc: Literal["2.0"]
    id: Id | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Params | None = None
    result: Result | UnsetType = UNSET
    error: Error | UnsetType = UNSET


# Shared by several kinds of records.


def listened_uris(params: Fields) -> list[str]:
    """Return the resources in a listen's parameters, as far as they are well-formed."""
    uris = value_at(value_of(params.get("notifications")), ("resourceSubscriptions",))
    return [uri for uri in uris if isinstance(uri, str)] if isinstance(uris, list) else []


def cut(text: str, limit: int) -> str:
    """Return the text, cut to a number of characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
