"""One exchange for many who ask the same at the same time.

Promises: whoever comes while an exchange is on its way gets what it brings, if it may; when its leader is
cancelled, or has trouble that is not the server's answer, one of those who wait leads the next; waiting is
cancellable, so that everybody keeps a deadline of their own. Refuses to know what is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import trio

from mcpmux.errors import RpcError
from mcpmux.mux.cache import is_own_answer
from mcpmux.protocol.call import Call

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Flight(Generic[T]):
    """An exchange on its way, led for `leader`. `outcome`: what it has brought; None: nothing for others."""

    __slots__ = ("done", "leader", "outcome")

    def __init__(self, leader: Call) -> None:
        self.leader = leader
        self.done = trio.Event()
        self.outcome: T | RpcError | None = None

    def __repr__(self) -> str:
        return f"<Flight {'done' if self.done.is_set() else 'on its way'}>"


Flights = dict[K, Flight[T]]
"""By what is asked. Taking one out keeps newcomers from joining it; who waits already is not touched."""


async def lead(flights: Flights[K, T], key: K, call: Call, work: Awaitable[T]) -> T:
    """What `work` brings, which whoever joins meanwhile gets, too. Raises what it raises."""
    flight = flights[key] = Flight(call)
    try:
        outcome = flight.outcome = await work
        return outcome
    except RpcError as error:
        if is_own_answer(error):
            flight.outcome = error
        raise
    finally:
        if flights.get(key) is flight:
            del flights[key]
        flight.done.set()


async def share(
    flights: Flights[K, T],
    key: K,
    call: Call,
    work: Callable[[], Awaitable[T]],
    accepts: Callable[[T | RpcError, Call], bool],
    alone: Callable[[], Awaitable[T]] | None = None,
) -> tuple[T, bool]:
    """What `work` brings, for us or for somebody else, and whether it was for somebody else.

    `accepts`: whether what was brought for another call is for us, too; when not, we ask by ourselves:
    `alone`, which is `work` when it is not given. Raises RpcError.
    """
    while (flight := flights.get(key)) is not None:
        await flight.done.wait()
        outcome = flight.outcome
        if outcome is None:
            continue  # the first of us to wake leads the next
        if not accepts(outcome, flight.leader):
            return await (alone or work)(), False
        if isinstance(outcome, RpcError):
            raise RpcError(outcome.code, outcome.message, outcome.data)
        return outcome, True
    return await lead(flights, key, call, work()), False
