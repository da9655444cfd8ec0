"""One message as a line of a capture file.

Promises the very record that `to_record` makes, encoded, at a fraction of its cost: what many lines have in
common is encoded once. Redacted first, as there. Not for several threads at a time.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from mcpmux.runtime.tap import Leg
from mcpmux.traffic.capture.message import Run, body_of, facts_without, fingerprint
from mcpmux.traffic.correlation import Seen
from mcpmux.traffic.moment import MICROS, second_of
from mcpmux.traffic.record import ANSWERS, VERSION
from mcpmux.traffic.redaction.redactor import Redactor

LEGS_CACHED = 1024
METHODS_CACHED = 256
METHOD_LENGTH = 256  # characters; longer ones are not remembered

_json = msgspec.json.Encoder().encode


class _Known(msgspec.Struct, gc=False):
    """What lines say of a leg, as long as it has this name, revision and session.

    `beginnings`: of its messages, by direction and kind.
    """

    name: str | None
    revision: str | None
    session: str | None
    members: bytes
    beginnings: dict[tuple[str, str], bytes]


class LineEncoder:
    """Encodes the messages of one run. `body_bytes`: of the body in a line of level `truncated`."""

    def __init__(self, run: Run, redactor: Redactor, body_bytes: int) -> None:
        self._run = run
        self._wall = run.wall_micros
        self._redactor = redactor
        self._current = redactor.current
        self._body_bytes = body_bytes
        self._opening = b'{"v":%d,"run":%b,"seq":' % (VERSION, _json(run.name))
        self._legs: dict[Leg, _Known] = {}
        self._method = lru_cache(METHODS_CACHED)(self._encode_method)

    def __repr__(self) -> str:
        return f"<LineEncoder {self._run.name}, {len(self._legs)} legs>"

    def encode(self, seen: Seen, seq: int, level: str) -> bytes:
        """The line, with its newline. `level` as in `[capture]`, but not `off`."""
        redactor = self._redactor.current
        if redactor is not self._current:
            self._adopt(redactor)
        body, count = redactor.redact(seen.method, seen.data)
        method, request_id, target = facts_without(seen, body, count)
        known = self._of_leg(seen.leg)
        beginning = known.beginnings.get((seen.direction, seen.kind)) or _begin(known, seen)
        at = round((seen.at - self._run.clock) * MICROS)
        second, micros = divmod(self._wall + at, MICROS)
        return b'%b%d,"time":"%b.%06dZ","at":%d.%06d%b%b%b%b%b%b%b,"size":%d%b%b}\n' % (
            self._opening,
            seq,
            second_of(second),
            micros,
            *divmod(at, MICROS),
            beginning,
            b',"exchange":%d' % seen.exchange if seen.exchange else b"",
            self._of_method(method) if method is not None else b"",
            b',"id":%b' % _json(request_id) if request_id is not None else b"",
            b',"target":%b' % _json(target) if target is not None else b"",
            known.members,
            b',"status":%d' % seen.status if seen.status is not None else b"",
            len(seen.data),
            _outcome(seen, count) if count or seen.kind in ANSWERS else b"",
            self._body(seen.kind, body, level) if level != "metadata" else b"",
        )

    def _adopt(self, redactor: Redactor) -> None:
        """What was encoded by other rules is of no use."""
        self._current = redactor
        self._legs.clear()
        self._method.cache_clear()

    def _of_method(self, method: str) -> bytes:
        return self._method(method) if len(method) <= METHOD_LENGTH else self._encode_method(method)

    def _encode_method(self, method: str) -> bytes:
        return b',"method":%b' % _json(self._current.redact_name(method))

    def _of_leg(self, leg: Leg) -> _Known:
        known = self._legs.get(leg)
        if (
            known is None
            or known.name != leg.name
            or known.revision != leg.revision
            or known.session != leg.session
        ):
            if len(self._legs) >= LEGS_CACHED:
                self._legs.clear()
            members = self._encode_leg(leg)
            known = self._legs[leg] = _Known(leg.name, leg.revision, leg.session, members, {})
        return known

    def _encode_leg(self, leg: Leg) -> bytes:
        members = {
            "peer": leg.peer,
            "upstream": leg.upstream,
            "client": self._current.redact_name(leg.name) if leg.side == "client" else None,
            "session": fingerprint(leg.session) if leg.session is not None else None,
            "transport": leg.transport,
            "revision": self._current.redact_name(leg.revision),
        }
        return b"," + _json({name: value for name, value in members.items() if value is not None})[1:-1]

    def _body(self, kind: str, body: bytes, level: str) -> bytes:
        message, text = body_of(kind, body, level, self._body_bytes)
        return b',"message":%b' % message if message is not None else b',"text":%b' % _json(text)


def _begin(known: _Known, seen: Seen) -> bytes:
    """What stands between the time and the exchange."""
    members = _json({"kind": seen.kind, "leg": seen.leg.side, "direction": seen.direction})
    beginning = known.beginnings[seen.direction, seen.kind] = b"," + members[1:-1]
    return beginning


def _outcome(seen: Seen, count: int) -> bytes:
    """How an answer went, and whether something was taken out of the message."""
    members = b',"ms":%.3f' % seen.ms if seen.ms is not None else b""
    if seen.failed is not None:
        members = b',"failed":%b%b' % (_json(seen.failed), members)
    if seen.code is not None:
        members = b',"code":%d%b' % (seen.code, members)
    return members + b',"redacted":%d' % count if count else members
