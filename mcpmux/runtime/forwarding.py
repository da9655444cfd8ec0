"""Requests of a peer that were passed on at once, and that no task waits for.

Promises: such a request goes from the reader of one peer to the pipe of the other, and its answer back: no
task is in between. One carries it on as soon as there is anything else to do than to take its result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from mcpmux.protocol.call import Notify
from mcpmux.protocol.envelope import Request
from mcpmux.protocol.raw_json import Fields


class Forwarded(Protocol):
    """A request that was passed on. Either `take` or `carry_on` must follow."""

    @property
    def posted(self) -> bool:
        """Whether it was sent; when not, there is nothing to `take`, and `carry_on` sends it."""
        ...

    def tell(self, hear: Callable[[], None] | None) -> None:
        """From now on `hear` is called whenever there may be something to take, or to carry on with."""
        ...

    def take(self) -> Fields | None:
        """The answer, the request being done with; None when there is more to it. Raises RpcError."""
        ...

    def carry_on(self, notify: Notify) -> Awaitable[Fields]:
        """Wait for the answer. Raises RpcError."""
        ...


Forward = Callable[[Request], Forwarded | None]
"""Passes a request on; None, and nothing is sent, when it has to be answered in the ordinary way.

The same when it raises RpcError. Anything else is a mistake of ours: the request may have been sent or not.
"""


def forward_nothing(_request: Request) -> None:
    """Every request is answered in the ordinary way."""
