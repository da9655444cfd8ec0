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

from typing import Any

import msgspec
from msgspec import UNSET

from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import BadMessage, Id, is_batch, split_batch
from mcpmux.runtime.tap import Direction, Leg
from mcpmux.traffic.glance import NOTHING, Glance, Params, glance

PENDING_LIMIT = 4096  # of one leg and direction; older ones are taken for never answered


class Seen(msgspec.Struct, gc=False):
    """One message and what is known about it. `ms`: of an answer, since its request. See `record`."""

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


def _asked(leg: Leg, direction: str) -> dict[Id, _Pending]:
    """The requests of a leg and direction that are not answered, the oldest first."""
    asked: tuple[dict[Id, _Pending], dict[Id, _Pending]] | None = leg.notes
    if asked is None:
        asked = leg.notes = ({}, {})
    return asked[0] if direction == "in" else asked[1]


class Correlator:
    """Knows the legs of one recorder. `forget` when one is over."""

    def __init__(self) -> None:
        self._exchanges = 0

    def __repr__(self) -> str:
        return f"<Correlator {self._exchanges} exchanges>"

    def take(self, leg: Leg, direction: Direction, data: bytes, exchange: int, now: float) -> list[Seen]:
        """What a message is, each member of a batch by itself. `exchange`: the one that is worked for."""
        if data.startswith(b"{") or not is_batch(data):
            return [self.take_one(leg, direction, data, exchange, now)]
        try:
            parts = split_batch(data)
        except BadMessage:
            parts = [data]
        return [self.take_one(leg, direction, part, exchange, now) for part in parts]

    def exchange_of(self, leg: Leg, request_id: Id) -> int:
        """The exchange of a client's request that is not answered yet; 0 when there is none."""
        pending = _asked(leg, "in").get(request_id)
        return pending.exchange if pending is not None else 0

    def forget(self, leg: Leg) -> None:
        """A leg is over."""
        leg.notes = None

    def take_one(self, leg: Leg, direction: Direction, data: bytes, exchange: int, now: float) -> Seen:
        """What a message is that is no batch."""
        try:
            said = glance(data)
        except BadMessage as bad:
            return Seen(leg, direction, data, now, "invalid", exchange, id=bad.id)
        request_id = None if said.id is UNSET else said.id
        if said.method is UNSET:
            seen = Seen(leg, direction, data, now, "result", exchange, id=request_id)
            self._take_answer(seen, said)
            return seen
        params = said.params or NOTHING
        seen = Seen(leg, direction, data, now, "request", exchange, said.method, request_id, params.target)
        if request_id is not None:
            self._take_request(seen, request_id)
        else:
            seen.kind = "notification"
            self._take_notification(seen, params)
        return seen

    def _take_request(self, seen: Seen, request_id: Id) -> None:
        """What it belongs to. From now on it is not answered."""
        if seen.direction == "in":
            if seen.leg.side == "client":
                seen.exchange = self._exchanges = self._exchanges + 1
            elif not seen.exchange:
                seen.exchange = self._only_one(seen.leg)
        pending = _asked(seen.leg, seen.direction)
        pending[request_id] = _Pending(seen.exchange, seen.method or "", seen.at)
        if len(pending) > PENDING_LIMIT:
            del pending[next(iter(pending))]

    def _take_notification(self, seen: Seen, params: Params) -> None:
        """What it belongs to."""
        if seen.method == m.CANCELLED:
            seen.exchange = self._cancel(seen.leg, seen.direction, params.requestId) or seen.exchange
        elif seen.direction == "in" and seen.leg.side == "upstream" and not seen.exchange:
            seen.exchange = self._worked_for(seen.leg, params) if seen.method in _OF_EXCHANGES else 0

    def _take_answer(self, seen: Seen, said: Glance) -> None:
        """What it answers, and how."""
        asked = _asked(seen.leg, "in" if seen.direction == "out" else "out")
        pending = asked.pop(seen.id, None) if seen.id is not None else None
        if pending is not None:
            seen.exchange, seen.method, seen.ms = (
                pending.exchange,
                pending.method,
                (seen.at - pending.began) * 1000,
            )
        if said.error is not UNSET:
            seen.kind, seen.code = "error", said.error.code
        elif seen.method == m.TOOLS_CALL and said.result is not UNSET and said.result.isError is True:
            seen.failed = True

    def _cancel(self, leg: Leg, direction: Direction, request_id: Any) -> int:
        """A request is taken back: no answer is to be expected. Its exchange."""
        pending = _asked(leg, direction).get(request_id) if _is_id(request_id) else None
        return pending.exchange if pending is not None else 0

    def _worked_for(self, leg: Leg, params: Params) -> int:
        token = params.progressToken
        if _is_id(token):
            pending = _asked(leg, "out").get(token)
            return pending.exchange if pending is not None else 0
        return self._only_one(leg)

    def _only_one(self, leg: Leg) -> int:
        """The exchange of the one request that an upstream works on; 0 when there are none or several."""
        exchanges = {pending.exchange for pending in _asked(leg, "out").values()}
        return exchanges.pop() if len(exchanges) == 1 else 0


_OF_EXCHANGES = frozenset({m.PROGRESS, m.LOG_MESSAGE})


def _is_id(value: Any) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)
