"""Encode messages as lines of a capture file, many at a time.

One scan of many messages shows that none holds a secret, and the common members of lines are encoded once.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import msgspec

from mcpmux.channels.tap import Leg
from mcpmux.protocol.envelope import UNREADABLE
from mcpmux.protocol.framing import CR, LF
from mcpmux.protocol.raw_json import Raw
from mcpmux.traffic.correlation import method_id_target
from mcpmux.traffic.observer import Observation
from mcpmux.traffic.record import MICROS, VERSION, Body, Record, Run, decode_record, micros_of, second_of
from mcpmux.traffic.redaction.redactor import Redactor, RuleSet

LEGS_CACHED: Final = 1024
SORTS_CACHED: Final = 32  # of one leg; more would be invented methods, and all legs together take 20 MB
METHOD_LENGTH: Final = 64  # characters; longer ones are not remembered
SESSION_LENGTH: Final = 256  # the same
FINGERPRINT_BYTES: Final = 8
SESSIONS_CACHED: Final = 1024
HEAD: Final = 512  # bytes at either end in which messages with the same contents may differ
# Lines that are encoded in one go: msgspec's buffer grows by being copied, within the caches then.
GROUP: Final = 16

_json: Final = msgspec.json.Encoder().encode
_encode_many: Final = msgspec.json.Encoder().encode_lines

data_of = operator.attrgetter("data")  # of an Observation; maps over many without a loop in Python
_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")
_TEXT: Final = b'"text":"'
_NO_SECRETS: Final = itertools.repeat(0)

# The encoded `kind` of lines, by kind, direction and method of messages of one leg.
_KindBySort = dict[tuple[str, str, str | None], Raw]

# A `Record`, made from values in their order. In `v` and `kind` other members follow, encoded before: `v` is
# followed by `run`; `kind` by `leg`, `direction`, `method`, and the facts of the leg.
_MEMBERS: Final = (
    "v seq answers time at kind exchange own id target status size code failed ms redacted message text"
)
_DEFAULTS: Final = {"answers": 0, "exchange": 0, "own": False, "size": 0, "redacted": 0}
Line: Any = msgspec.defstruct(
    "Line", [(name, Any, _DEFAULTS.get(name)) for name in _MEMBERS.split()], omit_defaults=True, gc=False
)


def encode_lines(
    run: Run, redactor: Redactor, body_bytes: int, level: str, messages: Sequence[Observation]
) -> list[bytes]:
    """Return the lines of messages, each with its newline, in parts.

    `level` as in `[capture]`, but not `off`. `body_bytes`: of the body in a line of level `truncated`.
    """
    rules = redactor.current
    bodies: Sequence[bytes] = list(map(data_of, messages))
    joined = b"\t".join(without_repeats(bodies))
    counts: Iterable[int] = _NO_SECRETS
    is_clean = rules.leaves_unchanged(bodies, joined)
    are_simple = is_clean and level == "full" and LF not in joined and CR not in joined
    if not is_clean:
        bodies, counts = zip(
            *(rules.redact(message.method, message.data) for message in messages), strict=True
        )
    lines = []
    opening, began = Raw(f'{VERSION},"run":"{run.name}"'.encode()), run.clock
    # `micros`: a 1 before the six digits of the fraction, so that leading zeros stay; no second is known yet.
    wall = micros_of(run.wall)
    since, second_text, low, high = -wall, "", MICROS, 2 * MICROS
    legs: dict[Leg, _KindBySort] = {}
    whole: Iterable[Body] = map(Raw, bodies)
    for observed, body, message, count in zip(messages, bodies, whole, counts, strict=False):
        leg, kind = observed.leg, observed.kind
        method, request_id, target = observed.method, observed.id, observed.target
        if count:  # the members must not repeat a secret
            method, request_id, target = method_id_target(body)
            method = method or observed.method  # of the request before it, if this is an answer
        kinds = legs.get(leg)
        if kinds is None:
            kinds = _kinds_of(rules, leg, leg.name, leg.revision, leg.session, leg.transport, leg.view)
            legs[leg] = kinds
        at = round((observed.at - began) * MICROS)
        micros = since + at
        if not low <= micros < high:
            second, micros = divmod(wall + at, MICROS)
            second_text = f"{second_of(second)}."
            micros += MICROS
            since = micros - at
        text = None
        if level == "metadata":
            message = None
        elif not are_simple or kind == "invalid":
            message, text = body_of(kind, body, level, body_bytes)
        lines.append(
            Line(
                opening,
                observed.number,
                observed.answers,
                f"{second_text}{str(micros)[1:]}Z",
                at / MICROS,
                kinds.get((kind, observed.direction, method)) or _encode_kind(kinds, rules, observed, method),
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
    return [_encode_many(lines[start : start + GROUP]) for start in range(0, len(lines), GROUP)]


@lru_cache(LEGS_CACHED)
def _kinds_of(rules: RuleSet, leg: Leg, *facts: str | None) -> _KindBySort:
    """Return the table of kinds for a leg in its present state and these rules, to be filled."""
    return {}


def _encode_kind(kinds: _KindBySort, rules: RuleSet, observed: Observation, method: str | None) -> Raw:
    """Return the kind and the members behind it. `method`: that of the redacted message."""
    if len(kinds) >= SORTS_CACHED:
        kinds.clear()
    leg, clean = observed.leg, rules.redact_name
    members = {
        "leg": leg.side,
        "direction": observed.direction,
        "method": clean(method),
        "peer": leg.peer,
        "upstream": leg.upstream,
        "client": clean(leg.name) if leg.side == "client" else None,
        "view": clean(leg.view),
        "session": fingerprint(leg.session) if leg.session is not None else None,
        "transport": leg.transport,
        "revision": clean(leg.revision),
    }
    there = {name: member for name, member in members.items() if member is not None}
    encoded = Raw(_json(observed.kind) + b"," + _json(there)[1:-1])
    if method is None or len(method) <= METHOD_LENGTH:
        kinds[observed.kind, observed.direction, method] = encoded
    return encoded


def to_record(observed: Observation, run: Run, redactor: Redactor, level: str = "full") -> Record:
    """Return the record of a message, all of it redacted. `level`: full or metadata."""
    (line,) = encode_lines(run, redactor, 0, level, [observed])
    return decode_record(line)


def body_of(kind: str, body: bytes, level: str, limit: int) -> tuple[Raw | None, str | None]:
    """Return `message` and `text` of a record, of which one is None."""
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


def fingerprint(session: str) -> str:
    """Return a text that is equal for equal session ids, and useless for anything else."""
    return (_fingerprint_again if len(session) <= SESSION_LENGTH else _fingerprint)(session)


def _fingerprint(session: str) -> str:
    return blake2b(session.encode("utf-8", "replace"), digest_size=FINGERPRINT_BYTES).hexdigest()


_fingerprint_again: Final = lru_cache(SESSIONS_CACHED)(_fingerprint)


def without_repeats(bodies: Iterable[bytes]) -> list[bytes]:
    """Return the bodies, each without the middle that it has in common with the long one before it.

    Most answers pass on both legs with the same contents, one right after the other, between other heads and
    tails. They are cut behind a `"` on either side, as `Redactor.leaves_unchanged` requires it.
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
