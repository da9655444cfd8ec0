"""One request to a server for everybody who asks the same at the same time.

    request = SharedRequest(call)               whoever asks first puts it where others find it,
    outcome = await join(requests, key, ...)    others wait for what it brings,
    leave(requests, key, request)               and in the end it is taken away and they are woken

Promises: when the first one is cancelled, or has trouble that is not the server's answer, one of those who
wait asks next. Waiting is cancellable, so that everybody keeps a deadline of their own. A request taken out
of `requests` is not joined any more; who waits already gets its outcome. Refuses to know what is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import trio

from mcpmux.errors import RpcError
from mcpmux.mux.cache import is_own_answer
from mcpmux.protocol.call import Call

K = TypeVar("K", bound=Hashable)


class SharedRequest:
    """A request in flight, for the call `first`. `outcome`: what others get, perhaps an RpcError, or None."""

    __slots__ = ("done", "first", "outcome")

    def __init__(self, first: Call) -> None:
        self.first = first
        self.outcome: Any = None
        self.done: trio.Event | None = None  # once somebody waits

    def fail(self, error: RpcError) -> None:
        """What the server itself answered is for others, too; other trouble is not."""
        if is_own_answer(error):
            self.outcome = error


def leave(requests: dict[K, SharedRequest], key: K, request: SharedRequest) -> None:
    """It is over."""
    if requests.get(key) is request:
        del requests[key]
    if request.done is not None:
        request.done.set()


async def join(
    requests: dict[K, SharedRequest], key: K, accepts: Callable[[Any, Call], bool]
) -> tuple[Any, bool]:
    """What the request in flight brings, or None when we must ask ourselves; and whether the server answered.

    `accepts`: whether what was brought for another call is for us, too. Raises RpcError when it is an error.
    """
    while (request := requests.get(key)) is not None:
        if request.done is None:
            request.done = trio.Event()
        await request.done.wait()
        outcome = request.outcome
        if outcome is None:
            continue  # the first of us to wake asks next
        if not accepts(outcome, request.first):
            return None, True
        if isinstance(outcome, RpcError):
            raise RpcError(outcome.code, outcome.message, outcome.data)
        return outcome, True
    return None, False
