"""Which message belongs to which: requests and their answers, on each leg, and the exchange behind them.

State, for each leg and direction: the requests that are not answered yet, by id. It is kept with the leg.
Pure; the time is handed in.

    a client's request          begins an exchange
    what mcpmux sends           belongs to the exchange that it is sent for, as the caller says
    an answer                   belongs to the exchange of its request
    progress of an upstream     belongs to the exchange of the request with that token (mcpmux uses its id)
    anything else an upstream   belongs to the exchange that is being read for, or to the only one that the
      says                      leg has, or to none
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET

from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import BadMessage, Id, is_batch, split_batch
from mcpmux.runtime.tap import Direction, Leg
from mcpmux.traffic.glance import NOTHING, Glance, Params, glance

PENDING_LIMIT = 4096  # of one leg and direction; older ones are taken for never answered
UNKNOWN = ""
"""The kind of a message that nobody has looked at."""


class Seen(msgspec.Struct, gc=False):
    """One message and what is known about it. `ms`: of an answer, since its request. See `record`.

    While nobody has looked at it, `kind` is UNKNOWN and `exchange` the one that is worked for.
    """

    leg: Leg
    direction: Direction
    data: bytes
    at: float
    kind: str
    exchange: int
    method: str | None = None
    id: Id | None = None
    target: str | None = None
    code: int | None = None
    failed: bool | None = None
    ms: float | None = None
    status: int | None = None


class _Pending(msgspec.Struct, frozen=True, gc=False):
    exchange: int
    method: str
    began: float


_Asked = dict[Id, _Pending]
"""Requests that are not answered, the oldest first."""


def _asked(leg: Leg) -> tuple[_Asked, _Asked]:
    """Those that came in and those that went out, on a leg."""
    if leg.notes is None:
        leg.notes = ({}, {})
    asked: tuple[_Asked, _Asked] = leg.notes
    return asked


class Correlator:
    """Knows the legs of one recorder. `forget` when one is over."""

    def __init__(self) -> None:
        self._exchanges = 0

    def __repr__(self) -> str:
        return f"<Correlator {self._exchanges} exchanges>"

    def take(self, leg: Leg, direction: Direction, data: bytes, exchange: int, now: float) -> list[Seen]:
        """What a message is, each member of a batch by itself. `exchange`: the one that is worked for."""
        return self.settle([Seen(leg, direction, data, now, UNKNOWN, exchange)])

    def begin(self, unknown: Seen) -> int:
        """A client's message, of which nothing else is known yet, is one request. Its exchange."""
        unknown.kind = "request"
        unknown.exchange = self._exchanges = self._exchanges + 1
        return unknown.exchange

    def settle(self, unknown: Iterable[Seen]) -> list[Seen]:
        """What messages are, in the order in which they passed, each member of a batch by itself.

        `exchange` of each: the one that is worked for.
        """
        known: list[Seen] = []
        for seen in unknown:
            try:
                self._take(seen, glance(seen.data))
            except BadMessage as bad:
                if (parts := _split(seen.data)) is not None:
                    known += [self._part_of(seen, part) for part in parts]
                    continue
                seen.kind, seen.id = "invalid", bad.id
            known.append(seen)
        return known

    def exchange_of(self, leg: Leg, request_id: Id) -> int:
        """The exchange of a client's request that is not answered yet; 0 when there is none."""
        pending = _asked(leg)[_IN].get(request_id)
        return pending.exchange if pending is not None else 0

    def forget(self, leg: Leg) -> None:
        """A leg is over."""
        leg.notes = None

    def _part_of(self, batch: Seen, data: bytes) -> Seen:
        """A member of a batch; one that is no message is not looked into."""
        seen = Seen(batch.leg, batch.direction, data, batch.at, UNKNOWN, batch.exchange, status=batch.status)
        try:
            self._take(seen, glance(data))
        except BadMessage as bad:
            seen.kind, seen.id = "invalid", bad.id
        return seen

    def _take(self, seen: Seen, said: Glance) -> None:
        """What a message is."""
        request_id = None if said.id is UNSET else said.id
        if said.method is UNSET:
            seen.kind = "result" if said.error is UNSET else "error"
            if request_id is not None:
                self._take_answer(seen, request_id)
            if said.error is not UNSET:
                seen.code = said.error.code
            elif seen.method == m.TOOLS_CALL and said.result is not UNSET and said.result.isError is True:
                seen.failed = True
            return
        params = said.params or NOTHING
        seen.method = said.method
        seen.target = params.uri if type(params.uri) is str else params.target
        if request_id is not None:
            self._take_request(seen, request_id, said.method)
        else:
            seen.kind = "notification"
            self._take_notification(seen, params)

    def _take_answer(self, seen: Seen, request_id: Id) -> None:
        """What it answers."""
        seen.id = request_id
        asked = seen.leg.notes or _asked(seen.leg)
        pending = asked[seen.direction == "in"].pop(request_id, None)
        if pending is not None:
            seen.exchange = pending.exchange
            seen.method = pending.method
            seen.ms = (seen.at - pending.began) * 1000

    def _take_request(self, seen: Seen, request_id: Id, method: str) -> None:
        """What it belongs to. From now on it is not answered."""
        seen.id = request_id
        if seen.direction == "in" and seen.kind is UNKNOWN:
            if seen.leg.side == "client":
                seen.exchange = self._exchanges = self._exchanges + 1
            elif not seen.exchange:
                seen.exchange = self._only_one(seen.leg)
        seen.kind = "request"
        pending = (seen.leg.notes or _asked(seen.leg))[seen.direction == "out"]
        pending[request_id] = _Pending(seen.exchange, method, seen.at)
        if len(pending) > PENDING_LIMIT:
            del pending[next(iter(pending))]

    def _take_notification(self, seen: Seen, params: Params) -> None:
        """What it belongs to."""
        if seen.method == m.CANCELLED:
            seen.exchange = self._cancel(seen.leg, seen.direction, params.requestId) or seen.exchange
        elif seen.direction == "in" and seen.leg.side == "upstream" and not seen.exchange:
            seen.exchange = self._worked_for(seen.leg, params) if seen.method in _OF_EXCHANGES else 0

    def _cancel(self, leg: Leg, direction: Direction, request_id: Any) -> int:
        """A request is taken back: no answer is to be expected. Its exchange."""
        pending = _asked(leg)[direction == "out"].get(request_id) if _is_id(request_id) else None
        return pending.exchange if pending is not None else 0

    def _worked_for(self, leg: Leg, params: Params) -> int:
        token = params.progressToken
        if _is_id(token):
            pending = _asked(leg)[_OUT].get(token)
            return pending.exchange if pending is not None else 0
        return self._only_one(leg)

    def _only_one(self, leg: Leg) -> int:
        """The exchange of the one request that an upstream works on; 0 when there are none or several."""
        exchanges = {pending.exchange for pending in _asked(leg)[_OUT].values()}
        return exchanges.pop() if len(exchanges) == 1 else 0


def _split(batch: bytes) -> list[bytes] | None:
    """Its members; None when it is none, or they cannot be told apart."""
    try:
        return split_batch(batch) if is_batch(batch) else None
    except BadMessage:
        return None


_IN, _OUT = 0, 1
_OF_EXCHANGES = frozenset({m.PROGRESS, m.LOG_MESSAGE})


def _is_id(value: Any) -> bool:
    return isinstance(value, (int, str)) and not isinstance(value, bool)
