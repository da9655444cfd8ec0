"""Report finished exchanges to observers in the program.

Promises: observing delays no exchange. Each observer has room for a bounded number of exchanges; more are
dropped and counted. Without observers, exchanges have no cost here.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import trio

from mcpmux.errors import RpcError
from mcpmux.protocol.call import target_in
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.observer import Exchange
from mcpmux.traffic.outcome import outcome_of
from mcpmux.transports.inline import AT_ONCE


class FinishedExchange(NamedTuple):
    """One request of a client, and its outcome.

    `number`: from 1, in the order in which they began. `method`: of MCP. `target`: the name or URI that the
    request was about, in the client's words; None when there is none.

    `principal` and `view`: of the client, "" for an unknown principal and for the view with everything.
    `client`: its name for itself.

    `upstreams`: configured names of those that were asked, in that order; empty when mcpmux itself
    answered. `began`: seconds since 1970. `seconds`: its duration.

    `outcome`: a word as in the label `outcome` of `/metrics`: "ok", "tool_error" (a result with `isError`),
    "input_required", "refused" (by a rule of mcpmux), "unavailable", "timeout", "cancelled", "broken" (a bug
    of mcpmux), or a word for the code of any other error. `code` and `message`: of an error.
    """

    number: int
    method: str
    target: str | None
    principal: str
    view: str
    client: str | None
    upstreams: tuple[str, ...]
    began: float
    seconds: float
    outcome: str
    code: int | None
    message: str | None


class Exchanges:
    """Exchanges in the order in which they ended, to iterate over in one task.

    `dropped`: the number that found no room.
    """

    def __init__(self, most: int) -> None:
        self.dropped = 0
        self._sender, self._receiver = trio.open_memory_channel[FinishedExchange](most)

    def __repr__(self) -> str:
        waiting = self._receiver.statistics().current_buffer_used
        return f"<Exchanges {waiting} waiting, {self.dropped} dropped>"

    def put(self, finished: FinishedExchange) -> None:
        """Add an exchange, or count it as dropped when there is no room."""
        try:
            self._sender.send_nowait(finished)
        except trio.WouldBlock:
            self.dropped += 1

    def close(self) -> None:
        """End the iteration, and drop the exchanges that were not taken."""
        self._sender.close()
        self._receiver.close()

    def __aiter__(self) -> Exchanges:
        return self

    async def __anext__(self) -> FinishedExchange:
        """Return the next finished exchange."""
        return await self._receiver.__anext__()


class ExchangeFeed:
    """An ExchangeObserver that never waits: it passes exchanges to all observers in the program."""

    def __init__(self) -> None:
        self._observers: list[Exchanges] = []

    def __repr__(self) -> str:
        return f"<ExchangeFeed of {len(self._observers)} observers>"

    @property
    def passes(self) -> bool:
        """Whether there are no observers."""
        return not self._observers

    def admit(self, exchange: Exchange) -> Awaitable[None]:
        """Admit every exchange, at once."""
        return AT_ONCE

    def ended(self, exchange: Exchange, outcome: Fields | BaseException, seconds: float) -> Awaitable[None]:
        """Pass a finished exchange to all observers, at once."""
        if self._observers:
            finished = finished_exchange(exchange, outcome, seconds)
            for observer in self._observers:
                observer.put(finished)
        return AT_ONCE

    @contextmanager
    def observed(self, most: int) -> Iterator[Exchanges]:
        """Yield the exchanges that begin and end from now on."""
        exchanges = Exchanges(most)
        self._observers.append(exchanges)
        try:
            yield exchanges
        finally:
            self._observers.remove(exchanges)
            exchanges.close()


def finished_exchange(
    exchange: Exchange, outcome: Fields | BaseException, seconds: float
) -> FinishedExchange:
    """Return an exchange with its outcome as plain values."""
    call, error = exchange.call, outcome if isinstance(outcome, RpcError) else None
    return FinishedExchange(
        exchange.number,
        call.method,
        target_in(call.params),
        call.principal.name,
        call.principal.view,
        exchange.leg.name,
        tuple(exchange.upstreams),
        time.time() - seconds,
        seconds,
        outcome_of(call.method, outcome),
        None if error is None else error.code,
        None if error is None else error.message,
    )
