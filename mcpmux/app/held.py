"""The held exchanges of one mux, or of all replicas of a cluster, for the admin listener."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio
from msgspec import structs

from mcpmux.app.mux import Mux
from mcpmux.config import Intercept
from mcpmux.config.intercept import HOLD, REQUEST
from mcpmux.errors import RpcError
from mcpmux.mux.intercept import (
    PASS,
    Ask,
    BadVerdict,
    Hold,
    InterceptedMessage,
    InterceptorRule,
    Verdict,
    read_verdict,
)
from mcpmux.protocol import method as m
from mcpmux.protocol.call import target_in
from mcpmux.protocol.envelope import encode, error_body
from mcpmux.runtime.interception import Interceptor, Step
from mcpmux.traffic.admin.calls import RowOf
from mcpmux.traffic.admin.held import PATH, HeldState, HoldDecision, HoldOrder
from mcpmux.traffic.admin.route import HttpExchange, Route
from mcpmux.traffic.reading.filters import NAMES, parse_filter
from mcpmux.traffic.record import VERSION, Record
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.http.server_connection import Handler
from mcpmux.transports.inline import in_task

if TYPE_CHECKING:
    from mcpmux.cluster.letter import Neighbour

    AskInspectors = Callable[..., Awaitable[dict[Neighbour, tuple[int, bytes]]]]
    """See Replica.ask_inspectors."""

OK: Final = 200
NOT_FOUND: Final = 404
BY: Final = "the admin page"  # no configured interceptor can have this name
GONE: Final = HoldDecision("it is not held any more", is_gone=True)
NO_DECISION: Final = "expected pass, refuse or change: who else is there to ask?"


class MuxDesk:
    """See Desk. `row_of`: see Calls."""

    def __init__(self, mux: Mux, row_of: RowOf) -> None:
        self._mux, self._row_of = mux, row_of
        self.order = HoldOrder()

    async def follow(self, order: HoldOrder) -> list[HeldState]:
        """See Desk. Raises FilterError."""
        if order == self.order:
            return await self.read()
        step = None
        if order.filter.strip():
            chosen = parse_filter(order.filter, datetime.now(UTC), NAMES)
            settings = Intercept(
                builtin=HOLD,
                on=tuple(order.on),
                answer_timeout=order.seconds,
                at_timeout=order.at_timeout,
            )

            def judge(message: InterceptedMessage) -> Verdict:
                return Hold() if chosen.matches(record_of(message)) else PASS

            step = Step(InterceptorRule(settings, BY), Interceptor(judge))
        self._mux.interceptors.hold_by(step)
        # After the filter was understood: a wrong one leaves the order of before.
        self.order = order
        return await self.read()

    async def read(self) -> list[HeldState]:
        """See Desk."""
        states = []
        # A copy: some may be decided while the rows of others are found.
        for number, held in list(self._mux.interceptors.holding.held.items()):
            message, schema = held.message, None
            try:
                shown = message.as_json()
            except ValueError:  # what it contains can be passed on, but not be shown
                shown = {"on": message.on, "method": message.method, "params": {}}
            # From the schema the page makes a form of the arguments.
            upstream = self._mux.upstreams.get(message.upstream or "")
            if message.method == m.TOOLS_CALL and message.on == REQUEST and upstream is not None:
                schema = upstream.listings[m.TOOLS_LIST].schema(message.own or "") or None
            state = HeldState(
                str(number),
                await self._row_of(held.exchange),
                held.by,
                held.reason,
                shown,
                max(0.0, round(held.until - trio.current_time(), 1)),
                held.at_timeout,
                schema,
            )
            states.append(state)
        return states

    async def decide(self, key: str, verdict: Any) -> HoldDecision:
        """See Desk."""
        number = int(key) if key.isdecimal() and len(key) < 16 else 0
        try:
            decided = read_verdict(verdict)
            if isinstance(decided, Ask | Hold):
                raise BadVerdict(NO_DECISION)
            return HoldDecision() if self._mux.interceptors.holding.decide(number, decided) else GONE
        except (BadVerdict, ValueError) as mistake:
            return HoldDecision(str(mistake))


class SharedDesk:
    """The desks of several processes. See Desk. An order is for those that are there when it comes.

    `ask` has the inspectors of the others answer. `own`: the desk of this process, if it has one.
    """

    def __init__(self, ask: AskInspectors, own: MuxDesk | None = None) -> None:
        self._ask, self._own = ask, own
        self._order = HoldOrder()

    @property
    def order(self) -> HoldOrder:
        return self._order if self._own is None else self._own.order  # which others may have changed

    async def follow(self, order: HoldOrder) -> list[HeldState]:
        """See Desk."""
        self._order = order
        own = await self._own.follow(order) if self._own is not None else []
        return own + await self._others("POST", msgspec.json.encode(order))

    async def read(self) -> list[HeldState]:
        """See Desk."""
        if self._own is None:  # workers that were started again need the order
            return await self.follow(self.order)
        return await self._own.read() + await self._others("GET", b"")

    async def _others(self, method: str, body: bytes) -> list[HeldState]:
        """Return what the others hold, with their ids in the keys."""
        states: list[HeldState] = []
        for other, (status, answer) in (await self._ask(method, PATH, body)).items():
            if status == OK:
                for state in msgspec.json.decode(answer, type=_Held).held:
                    # The list of exchanges has those of workers, and none of other replicas.
                    row = state.row if self._own is None else None
                    key = f"{other.replica}-{state.key}"
                    states.append(structs.replace(state, key=key, row=row, replica=other.card.name))
        return states

    async def decide(self, key: str, verdict: Any) -> HoldDecision:
        """See Desk."""
        # The numbers of each process begin with 1: a key of another one has its id in front.
        there, _, own = key.rpartition("-")
        if not there and self._own is not None:
            return await self._own.decide(own, verdict)
        answers = await self._ask("POST", f"{PATH}/{own}", msgspec.json.encode(verdict), there)
        for status, answer in answers.values():
            if status == OK:
                return HoldDecision()
            problem = msgspec.json.decode(answer, type=_Problem).error
            return HoldDecision(problem, is_gone=status == NOT_FOUND)
        return HoldDecision("its replica does not answer", is_gone=True)


class _Held(msgspec.Struct):
    held: list[HeldState]


class _Problem(msgspec.Struct):
    error: str = ""


def answer_others(routes: Sequence[Route]) -> Handler:
    """Return the function that answers requests of inspectors in other processes."""

    async def answer(request: HttpRequest, reply: HttpReply) -> None:
        await in_task()
        for route in routes:
            if route.method == request.method and (path := route.match(request.path)) is not None:
                await HttpExchange(request, reply, path, {}).answer(route.handle)

    return answer


def record_of(message: InterceptedMessage) -> Record:
    """Return a message as a capture has it on the client's leg, as far as a filter can ask about it.

    Its target has the client's name and the upstream's, as that of an exchange.
    """
    outcome = message.outcome
    names: Any = tuple(filter(None, (target_in(message.params), message.own)))
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
        target=names,
        upstream=message.upstream,
        view=message.call.principal.view or None,
        code=outcome.code if isinstance(outcome, RpcError) else None,
        size=len(body),
        text=body.decode(),
    )
