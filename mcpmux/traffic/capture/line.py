"""One message as a line of a capture file.

Promises the very record that `to_record` makes, encoded, at a fraction of its cost: what many lines have in
common is encoded once. Redacted first, as there. Not for several threads at a time.
"""

from __future__ import annotations

import msgspec

from mcpmux.runtime.tap import Leg
from mcpmux.traffic.capture.message import Run, body_of, facts_without, fingerprint
from mcpmux.traffic.correlation import Seen
from mcpmux.traffic.moment import MICROS, second_of
from mcpmux.traffic.record import ANSWERS, VERSION
from mcpmux.traffic.redaction.redactor import Redactor

LEGS_CACHED = 1024
METHODS_CACHED = 256  # of one leg
METHOD_LENGTH = 256  # characters; longer ones are not remembered

_json = msgspec.json.Encoder().encode

_Sort = tuple[str, str, str | None]
"""Direction, kind and method of a message."""


class _Known(msgspec.Struct, gc=False):
    """What lines say of a leg, as long as it has this name, revision and session.

    `members`: what they say of each message of a sort, the leg included.
    """

    facts: tuple[str | None, str | None, str | None]
    members: dict[_Sort, bytes]


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

    def __repr__(self) -> str:
        return f"<LineEncoder {self._run.name}, {len(self._legs)} legs>"

    def encode(self, seen: Seen, seq: int, level: str) -> bytes:
        """The line, with its newline. `level` as in `[capture]`, but not `off`."""
        redactor = self._redactor.current
        if redactor is not self._current:
            self._adopt(redactor)
        data, leg = seen.data, seen.leg
        body, count = redactor.redact(seen.method, data)
        method, request_id, target = (
            (seen.method, seen.id, seen.target) if not count else facts_without(seen, body, count)
        )
        known = self._legs.get(leg)
        if known is None or known.facts != (leg.name, leg.revision, leg.session):
            known = self._know(leg)
        sort = (seen.direction, seen.kind, method)
        at = round((seen.at - self._run.clock) * MICROS)
        second, micros = divmod(self._wall + at, MICROS)
        return b'%b%d,"time":"%b.%06dZ","at":%d.%06d%b%b%b%b%b,"size":%d%b%b}\n' % (
            self._opening,
            seq,
            second_of(second),
            micros,
            at // MICROS,
            at % MICROS,
            known.members.get(sort) or self._members(leg, known, sort),
            b',"exchange":%d' % seen.exchange if seen.exchange else b"",
            b',"id":%b' % _json(request_id) if request_id is not None else b"",
            b',"target":%b' % _json(target) if target is not None else b"",
            b',"status":%d' % seen.status if seen.status is not None else b"",
            len(data),
            _outcome(seen, count) if count or seen.kind in ANSWERS else b"",
            self._body(seen.kind, body, level) if level != "metadata" else b"",
        )

    def _adopt(self, redactor: Redactor) -> None:
        """What was encoded by other rules is of no use."""
        self._current = redactor
        self._legs.clear()

    def _know(self, leg: Leg) -> _Known:
        if len(self._legs) >= LEGS_CACHED:
            self._legs.clear()
        known = self._legs[leg] = _Known((leg.name, leg.revision, leg.session), {})
        return known

    def _members(self, leg: Leg, known: _Known, sort: _Sort) -> bytes:
        """What stands between the time and the exchange."""
        direction, kind, method = sort
        if len(known.members) >= METHODS_CACHED:
            known.members.clear()
        members = {
            "kind": kind,
            "leg": leg.side,
            "direction": direction,
            "method": self._current.redact_name(method),
            **self._of_leg(leg),
        }
        found = b"," + _json({name: value for name, value in members.items() if value is not None})[1:-1]
        if method is None or len(method) <= METHOD_LENGTH:
            known.members[sort] = found
        return found

    def _of_leg(self, leg: Leg) -> dict[str, str | None]:
        return {
            "peer": leg.peer,
            "upstream": leg.upstream,
            "client": self._current.redact_name(leg.name) if leg.side == "client" else None,
            "session": fingerprint(leg.session) if leg.session is not None else None,
            "transport": leg.transport,
            "revision": self._current.redact_name(leg.revision),
        }

    def _body(self, kind: str, body: bytes, level: str) -> bytes:
        if level == "full" and body.startswith(b"{") and kind != "invalid" and not _has_line_end(body):
            return b',"message":' + body
        message, text = body_of(kind, body, level, self._body_bytes)
        return b',"message":%b' % message if message is not None else b',"text":%b' % _json(text)


def _has_line_end(body: bytes) -> bool:
    return b"\n" in body or b"\r" in body


def _outcome(seen: Seen, count: int) -> bytes:
    """How an answer went, and whether something was taken out of the message."""
    members = b',"ms":%.3f' % seen.ms if seen.ms is not None else b""
    if seen.failed is not None:
        members = b',"failed":%b%b' % (_json(seen.failed), members)
    if seen.code is not None:
        members = b',"code":%d%b' % (seen.code, members)
    return members + b',"redacted":%d' % count if count else members
