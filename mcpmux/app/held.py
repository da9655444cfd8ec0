"""The held exchanges of one mux, for the admin listener."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import trio

from mcpmux.app.mux import Mux
from mcpmux.config import Intercept
from mcpmux.config.intercept import HOLD, REQUEST
from mcpmux.errors import RpcError
from mcpmux.interceptors.builtin import HoldBack
from mcpmux.mux.intercept import Ask, BadVerdict, Hold, InterceptedMessage, InterceptorRule, read_verdict
from mcpmux.protocol import method as m
from mcpmux.protocol.call import target_in
from mcpmux.protocol.envelope import encode, error_body
from mcpmux.runtime.holding import Held
from mcpmux.runtime.interception import Step
from mcpmux.traffic.admin.calls import RowOf
from mcpmux.traffic.admin.held import HeldState, HoldDecision, HoldOrder
from mcpmux.traffic.reading.filters import NAMES, parse_filter
from mcpmux.traffic.record import VERSION, Record

BY: Final = "the admin page"  # no configured interceptor can have this name
GONE: Final = HoldDecision("it is not held any more", is_gone=True)
NO_DECISION: Final = "expected pass, refuse or change: who else is there to ask?"


class MuxDesk:
    """See Desk. `row_of`: see Calls."""

    def __init__(self, mux: Mux, row_of: RowOf) -> None:
        self._mux, self._row_of = mux, row_of
        self.order = HoldOrder()

    async def follow(self, order: HoldOrder) -> list[HeldState]:
        """See Desk."""
        if order != self.order:
            self._mux.hold_by(_step_of(order) if order.filter.strip() else None)
            self.order = order
        return [await self._state(held) for held in list(self._mux.holding.held.values())]

    async def decide(self, key: str, verdict: Any) -> HoldDecision:
        """See Desk."""
        number = int(key) if key.isdecimal() and len(key) < 16 else 0
        try:
            decided = read_verdict(verdict)
            if isinstance(decided, Ask | Hold):
                raise BadVerdict(NO_DECISION)
            return HoldDecision() if self._mux.holding.decide(number, decided) else GONE
        except (BadVerdict, ValueError) as mistake:
            return HoldDecision(str(mistake))

    async def _state(self, held: Held) -> HeldState:
        message, schema = held.message, None
        try:
            shown = message.as_json()
        except ValueError:  # what it contains can be passed on, but not be shown
            shown = {"on": message.on, "method": message.method, "params": {}}
        upstream = self._mux.upstreams.get(message.upstream or "")
        if message.method == m.TOOLS_CALL and message.on == REQUEST and upstream is not None:
            schema = upstream.listings[m.TOOLS_LIST].schema(message.own or "") or None
        return HeldState(
            str(held.number),
            await self._row_of(held.exchange),
            held.by,
            held.reason,
            shown,
            max(0.0, round(held.until - trio.current_time(), 1)),
            held.at_timeout,
            schema,
        )


def _step_of(order: HoldOrder) -> Step:
    """Return the interceptor that holds what a filter selects. Raises FilterError."""
    chosen = parse_filter(order.filter, datetime.now(UTC), NAMES)
    settings = Intercept(
        builtin=HOLD,
        on=tuple(order.on),
        answer_timeout=order.seconds,
        at_timeout=order.at_timeout,
    )
    return Step(InterceptorRule(settings, BY), HoldBack(lambda message: chosen.matches(record_of(message))))


def record_of(message: InterceptedMessage) -> Record:
    """Return a message as a capture has it on the client's leg, as far as a filter can ask about it."""
    outcome = message.outcome
    kind, body = "request", encode({"method": message.method, "params": message.params})
    if isinstance(outcome, RpcError):
        kind, body = "error", encode({"error": error_body(outcome)})
    elif outcome is not None:
        kind, body = "result", encode({"result": outcome})
    return Record(
        VERSION,
        "",
        "",
        kind,
        leg="client",
        direction="in" if outcome is None else "out",
        method=message.method,
        target=target_in(message.params),
        upstream=message.upstream,
        view=message.call.principal.view or None,
        code=outcome.code if isinstance(outcome, RpcError) else None,
        size=len(body),
        text=body.decode(),
    )
