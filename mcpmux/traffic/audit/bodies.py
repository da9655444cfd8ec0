"""What exchanges become in the log: the bodies of their records, as `chain` takes them.

Most exchanges are answered with a result, for a client that has said who it is. Theirs are put together here,
from parts that are the same for many; what these say, and how every other exchange is written, is known to
`record`. Either way gives the same record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from json.encoder import encode_basestring as _quote
from typing import NamedTuple

from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import text_of
from mcpmux.protocol.meta import META, Meta
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.traffic.audit.record import (
    NAME_LIMIT,
    TEXT_LIMIT,
    Cleaner,
    begin_record,
    cut,
    encode_audit,
    end_record,
    size,
    when,
)
from mcpmux.traffic.moment import MICROS, second_of
from mcpmux.traffic.seen import Exchange

KEPT = 256  # ways of asking, and names of upstreams, that are kept as they are written

_COMPLETE = Raw(b'"complete"')
_FALSE = Raw(b"false")
_BEHIND = ',"decision":"allowed"%s,"outcome":"answered","ms":%d.%03d,"asked":%d,"answered":%d}'
_META_BYTES = len(META) + 4  # its name, and what is around it behind another member

_Way = tuple[str, str | None, str, str | None, str]
"""Who asks, and how: principal, client, transport, revision, method."""


class _Asked(NamedTuple):
    """What records of one way of asking have before and behind `peer`."""

    before: str
    behind: str


Unclean = tuple[str, str, str]
"""A body whose target has not been cleaned: what is before it, the target, and what is behind it."""

Body = bytes | Unclean


class Bodies:
    """Of the records of one run. `wall` gives seconds since 1970."""

    def __init__(self, run: str, cleaner: Cleaner, wall: Callable[[], float]) -> None:
        self._run = run
        self._cleaner = cleaner
        self._rules = cleaner.current  # what the ways are cleaned by
        self._wall = wall
        self._ways: dict[_Way, _Asked | None] = {}
        self._names: dict[str, str] = {}
        self._before = f'Z","kind":"exchange","run":{_quote(run)},"exchange":'.replace("%", "%%")
        self._before = '{"time":"%s.%06d' + self._before + '%d,%s"peer":%s,%s'

    def __repr__(self) -> str:
        return f"<Bodies of {self._run} {len(self._ways)} ways>"

    def now(self) -> str:
        """The time of a record."""
        return when(self._wall())

    def begin(self, exchange: Exchange) -> bytes:
        """Who asks what, before anything is done."""
        return encode_audit(begin_record(exchange, self.now(), self._run, self._cleaner.clean))

    def end(self, exchange: Exchange, outcome: Fields | BaseException, seconds: float) -> Body:
        """The whole of an exchange that has ended."""
        body = None if isinstance(outcome, BaseException) else self._put_together(exchange, outcome, seconds)
        if body is not None:
            return body
        clean = self._cleaner.clean
        return encode_audit(end_record(exchange, outcome, seconds, self.now(), self._run, clean))

    def finish(self, bodies: Sequence[Body]) -> list[bytes]:
        """The same with clean targets: one look at all of them costs less than one at each."""
        targets = [body[1] for body in bodies if not isinstance(body, bytes)]
        rules = self._cleaner.current
        is_clean = rules.spares_text("\n".join(targets))
        finished = []
        for body in bodies:
            if isinstance(body, bytes):
                finished.append(body)
                continue
            before, target, behind = body
            if not is_clean:
                target = cut(rules.clean(target), TEXT_LIMIT)
            finished.append((before + _quote(target) + behind).encode())
        return finished

    def _put_together(self, exchange: Exchange, result: Fields, seconds: float) -> Unclean | None:
        """None when it has other members than these."""
        kind, error = result.get("resultType"), result.get("isError")
        if (kind is not None and kind != _COMPLETE) or (error is not None and error != _FALSE):
            return None
        call, leg = exchange.call, exchange.leg
        params, meta = call.params, call.meta
        asked = len(meta.encoded) + _META_BYTES if type(meta) is Meta else 0
        if (meta and not asked) or "traceparent" in exchange.headers:
            return None
        key = "uri" if "uri" in params else "name"
        about = params.get(key)
        target = text_of(about)
        if about is None or target is None or len(target) > TEXT_LIMIT:
            return None
        rules = self._cleaner.current
        if rules is not self._rules:
            self._rules = rules
            self._ways.clear()
        way = call.principal.name, leg.name, leg.transport, leg.revision, call.method
        try:
            known = self._ways[way]
        except KeyError:
            known = self._add_way(way)
        if known is None:
            return None
        upstreams = exchange.upstreams
        by = self._names.get(upstreams[0]) if len(upstreams) == 1 else None
        asked += len(about) + len(key) + 5 if len(params) == 1 else size(params)
        micros, duration = round(self._wall() * MICROS), round(seconds * MICROS)
        second = second_of(micros // MICROS)
        before, behind = known
        return (
            self._before % (second, micros % MICROS, exchange.number, before, _quote(leg.peer), behind),
            target,
            _BEHIND
            % (
                by or self._add_names(upstreams),
                duration // 1000,
                duration % 1000,
                asked,
                size(result),
            ),
        )

    def _add_way(self, way: _Way) -> _Asked | None:
        """None when the client is not known well enough, or more is to be told."""
        principal, client, transport, revision, method = way
        asked = None
        if client and revision is not None and method != m.LISTEN:
            clean = self._rules.clean
            before = f'"principal":{_quote(principal)},' if principal else ""
            spoken = f'"transport":{_quote(transport)},"revision":{_quote(revision)}'
            client, method = cut(clean(client), NAME_LIMIT), cut(clean(method), NAME_LIMIT)
            asked = _Asked(before, f'"client":{_quote(client)},{spoken},"method":{_quote(method)},"target":')
        if len(self._ways) >= KEPT:
            self._ways.clear()
        self._ways[way] = asked
        return asked

    def _add_names(self, upstreams: Sequence[str]) -> str:
        text = f',"upstreams":[{",".join(map(_quote, upstreams))}]' if upstreams else ""
        if len(upstreams) == 1:
            if len(self._names) >= KEPT:
                self._names.clear()
            self._names[upstreams[0]] = text
        return text
