"""An answer to an HTTP request that comes when its handler is over, and that no task waits for.

handler returns --`hear`--> `take` says True: it was sent
                --`hear`--> `take` says False --> `carry_on`   (the ordinary way from there)
                --the client leaves, or calls it off--> `give_up`
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Final, Protocol

import trio


class PutOff(Protocol):
    """Such an answer. Either `take` says True, or `carry_on` must follow."""

    def tell(self, hear: Callable[[], None] | None) -> None:
        """From now on `hear` is called whenever there may be something to take, or to carry on with."""
        ...

    def take(self) -> bool:
        """Send the answer by `HttpReply.send_nowait`, if it is there; False when there is more to it.

        Never raises.
        """
        ...

    def carry_on(self) -> Awaitable[None]:
        """Wait for the answer and send it, as a handler does."""
        ...


async def give_up(answer: PutOff) -> None:
    """Nobody wants that answer any more: it goes the way of a handler that is cancelled."""
    answer.tell(None)
    with trio.CancelScope() as scope:
        scope.cancel(reason="the answer is not wanted any more")
        await answer.carry_on()


class _Over:
    """Something to await that is over."""

    def __await__(self) -> Generator[None]:
        return _NOTHING


def _nothing() -> Generator[None]:
    yield from ()


_NOTHING: Final = _nothing()
OVER: Final = _Over()
"""For handlers that have nothing left to do."""
