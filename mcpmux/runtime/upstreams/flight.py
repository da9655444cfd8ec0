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

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Flight(Generic[T]):
    """An exchange on its way, led for `leader`. `outcome`: what it has brought; None: nothing for others."""

    __slots__ = ("done", "leader", "outcome")

    def __init__(self, leader: Hashable) -> None:
        self.leader = leader
        self.done = trio.Event()
        self.outcome: T | RpcError | None = None

    def __repr__(self) -> str:
        return f"<Flight {'done' if self.done.is_set() else 'on its way'}>"


Flights = dict[K, Flight[T]]
"""By what is asked. Taking one out keeps newcomers from joining it; who waits already is not touched."""


async def share(
    flights: Flights[K, T],
    key: K,
    who: Hashable,
    lead: Callable[[], Awaitable[T]],
    accepts: Callable[[T | RpcError, bool], bool],
    is_answer: Callable[[RpcError], bool],
    alone: Callable[[], Awaitable[T]] | None = None,
) -> tuple[T, bool]:
    """What `lead` brings, ours or somebody else's, and whether it is somebody else's.

    `who`: for whom we ask. `accepts`: whether what somebody else's has brought, for the same or for
    others, is for us, too; when not, we ask by ourselves: `alone`, which is `lead` when it is not given.
    `is_answer`: whether an error is the server's own. Raises RpcError.
    """
    while (flight := flights.get(key)) is not None:
        await flight.done.wait()
        outcome = flight.outcome
        if outcome is None:
            continue  # the first of us to wake leads the next
        if not accepts(outcome, flight.leader == who):
            return await (alone or lead)(), False
        if isinstance(outcome, RpcError):
            raise RpcError(outcome.code, outcome.message, outcome.data)
        return outcome, True
    flight = flights[key] = Flight(who)
    try:
        outcome = flight.outcome = await lead()
        return outcome, False
    except RpcError as error:
        if is_answer(error):
            flight.outcome = error
        raise
    finally:
        if flights.get(key) is flight:
            del flights[key]
        flight.done.set()
