"""Messages as lines of a capture file, many at a time.

One scan of many messages shows that nothing is to be redacted, and what lines have in common is encoded once.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import msgspec

from mcpmux.protocol.envelope import UNREADABLE
from mcpmux.protocol.framing import CR, LF
from mcpmux.protocol.raw_json import Raw
from mcpmux.runtime.tap import Leg
from mcpmux.traffic.correlation import method_id_target
from mcpmux.traffic.observer import Observation
from mcpmux.traffic.record import MICROS, VERSION, Body, Record, Run, decode_record, micros_of, second_of
from mcpmux.traffic.redaction.redactor import Redactor

LEGS_CACHED: Final = 1024
SORTS_CACHED: Final = 256  # of one leg
METHOD_LENGTH: Final = 256  # characters; longer ones are not remembered
FINGERPRINT_BYTES: Final = 8
SESSIONS_CACHED: Final = 1024
HEAD: Final = 512  # bytes at either end in which messages with the same contents may differ
# Lines that are encoded in one go: msgspec's buffer grows by being copied, within the caches then.
GROUP: Final = 16

_json: Final = msgspec.json.Encoder().encode
_encode_lines: Final = msgspec.json.Encoder().encode_lines


data_of = operator.attrgetter("data")  # of a message that was seen; walks many without a loop in Python
_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")
_TEXT: Final = b'"text":"'
_NO_SECRETS: Final = itertools.repeat(0)

_MessageSort = tuple[str, str, str | None]
"""Kind, direction and method of a message."""


_LegFacts = tuple[tuple[str | None, ...], dict[_MessageSort, Raw]]
"""Name, revision, session and transport of a leg; and `kind` of its lines, for each sort of messages.

The latter is valid while the former are these.
"""


# A `Record`, made from values in their order. In `v` and `kind` other members follow, encoded before: `v` is
# followed by `run`; `kind` by `leg`, `direction`, `method`, and the facts of the leg.
_MEMBERS: Final = "v seq time at kind exchange own id target status size code failed ms redacted message text"
_DEFAULTS: Final = {"exchange": 0, "own": False, "size": 0, "redacted": 0}
Line: Any = msgspec.defstruct(
    "Line",
    [(name, Any, _DEFAULTS.get(name)) for name in _MEMBERS.split()],
    omit_defaults=True,
    gc=False,
)


class LineEncoder:
    """Encodes the messages of one run. Not for several threads at a time.

    `body_bytes`: of the body in a line of level `truncated`.
    """

    def __init__(self, run: Run, redactor: Redactor, body_bytes: int) -> None:
        self._run = run
        self._wall = micros_of(run.wall)
        self._redactor = redactor
        self._current = redactor.current
        self._body_bytes = body_bytes
        self._legs: dict[Leg, _LegFacts] = {}
        self._opening = _value_and_members(VERSION, {"run": run.name})
        self._second = 0  # in microseconds since 1970: that of the last line
        self._second_text = f"{second_of(0)}."

    def encode(self, first: int, level: str, messages: Sequence[Observation]) -> list[bytes]:
        """Their lines, each with its newline, in parts. They have the numbers (`seq`) from `first` on.

        `level` as in `[capture]`, but not `off`.
        """
        redactor = self._redactor.current
        if redactor is not self._current:
            self._current = redactor
            self._legs.clear()  # redacted by the old rules
        bodies = list(map(data_of, messages))
        joined = b"\t".join(without_repeats(bodies))
        counts: Iterable[int] = _NO_SECRETS
        if redactor.leaves_unchanged(bodies, joined):
            are_simple = level == "full" and LF not in joined and CR not in joined
        else:
            are_simple = False
            redacted = [redactor.redact(observed.method, observed.data) for observed in messages]
            bodies, counts = [body for body, _ in redacted], [count for _, count in redacted]
        lines = []
        opening, began = self._opening, self._run.clock
        second, second_text = self._second, self._second_text  # that of the line before
        since, low, high = self._wall - second + MICROS, MICROS, 2 * MICROS
        legs: dict[Leg, dict[_MessageSort, Raw]] = {}
        whole: Iterable[Body] = map(Raw, bodies)
        seqs = itertools.count(first)
        for seq, observed, body, message, count in zip(seqs, messages, bodies, whole, counts, strict=False):
            leg = observed.leg
            kind = observed.kind
            method = observed.method
            request_id = observed.id
            target = observed.target
            if count:  # they must not repeat a secret
                method, request_id, target = method_id_target(body)
                method = method or observed.method  # that of the request before it, which may still be one
            kinds = legs.get(leg)
            if kinds is None:
                kinds = legs[leg] = self._facts_of(leg)
            at = round((observed.at - began) * MICROS)
            micros = since + at  # with a 1 before its six digits
            if not low <= micros < high:
                second = (self._wall + at) // MICROS * MICROS
                second_text = f"{second_of(second // MICROS)}."
                self._second, self._second_text = second, second_text
                since = self._wall - second + MICROS
                micros = since + at
            text = None
            if level == "metadata":
                message = None
            elif not are_simple or kind == "invalid":
                message, text = body_of(kind, body, level, self._body_bytes)
            lines.append(
                Line(
                    opening,
                    seq,
                    f"{second_text}{str(micros)[1:]}Z",
                    at / MICROS,
                    kinds.get((kind, observed.direction, method))
                    or self._encode_kind(kinds, observed, method),
                    observed.exchange,
                    not observed.exchange and observed.own,
                    request_id,
                    target,
                    observed.status,
                    len(observed.data),
                    observed.code,
                    observed.failed,
                    observed.ms,
                    count,
                    message,
                    text,
                )
            )
        return [_encode_lines(lines[start : start + GROUP]) for start in range(0, len(lines), GROUP)]

    def _facts_of(self, leg: Leg) -> dict[_MessageSort, Raw]:
        """The encoded facts of a leg, as they are now."""
        facts = leg.name, leg.revision, leg.session, leg.transport
        known = self._legs.get(leg)
        if known is None or known[0] != facts:
            if len(self._legs) >= LEGS_CACHED:
                self._legs.clear()
            known = self._legs[leg] = (facts, {})
        return known[1]

    def _encode_kind(self, kinds: dict[_MessageSort, Raw], observed: Observation, method: str | None) -> Raw:
        """The kind and what stands behind it. `method`: that of the redacted message."""
        if len(kinds) >= SORTS_CACHED:
            kinds.clear()
        leg, redact = observed.leg, self._current.redact_name
        members = {
            "leg": leg.side,
            "direction": observed.direction,
            "method": redact(method),
            "peer": leg.peer,
            "upstream": leg.upstream,
            "client": redact(leg.name) if leg.side == "client" else None,
            "session": fingerprint(leg.session) if leg.session is not None else None,
            "transport": leg.transport,
            "revision": redact(leg.revision),
        }
        found = _value_and_members(observed.kind, members)
        if method is None or len(method) <= METHOD_LENGTH:
            kinds[observed.kind, observed.direction, method] = found
        return found


def to_record(observed: Observation, run: Run, seq: int, redactor: Redactor, level: str = "full") -> Record:
    """The record of a message, all of it redacted. `level`: full or metadata."""
    (line,) = LineEncoder(run, redactor, 0).encode(seq, level, [observed])
    return decode_record(line)


def body_of(kind: str, body: bytes, level: str, limit: int) -> tuple[Raw | None, str | None]:
    """`message` and `text` of a record, of which one is None."""
    if level == "truncated" and len(body) > limit:
        return None, body[:limit].decode("utf-8", "ignore")
    if (kind != "invalid" and body[:1] != b'"') or _is_object(body):
        # On one line: between tokens of JSON a space means the same, and in them no line ends.
        return Raw(body.translate(_LINE_ENDS) if LF in body or CR in body else body), None
    return None, body.decode("utf-8", "replace")


def _is_object(body: bytes) -> bool:
    try:
        return body.lstrip()[:1] == b"{" and isinstance(msgspec.json.decode(body), dict)
    except UNREADABLE:
        return False


@lru_cache(SESSIONS_CACHED)
def fingerprint(session: str) -> str:
    """Equal for equal session ids, and useless for anything else."""
    return blake2b(session.encode("utf-8", "replace"), digest_size=FINGERPRINT_BYTES).hexdigest()


def without_repeats(bodies: Iterable[bytes]) -> list[bytes]:
    """The bodies, without the middle that one has in common with the long one before it.

    Most answers pass on both legs with the same contents, one right after the other, between other heads and
    tails. They are cut behind a `"` on either side, as `Redactor.leaves_unchanged` wants it.
    """
    parts = []
    middle = b""
    for body in bodies:
        if len(body) > 2 * HEAD:
            start = body.find(_TEXT, 0, HEAD)
            start = start + len(_TEXT) if start >= 0 else body.rfind(b'"', 0, HEAD) + 1
            if middle and body.startswith(middle, start):
                body = body[:start] + body[start + len(middle) :]
            else:
                end = body.find(b'"', -HEAD) + 1
                middle = body[start:end] if 0 < start < end else b""
        parts.append(body)
    return parts


def _value_and_members(value: Any, members: dict[str, Any]) -> Raw:
    """JSON of a member's value and of the members behind it; None is left out."""
    unwritten = {name: each for name, each in members.items() if each is not None}
    return Raw(_json(value) + b"," + _json(unwritten)[1:-1])
