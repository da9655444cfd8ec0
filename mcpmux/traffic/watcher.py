"""Who is told by the recorder: sinks and an archive of messages, keepers of exchanges."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, runtime_checkable

from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.seen import Exchange, Seen

LONG: Final = 16 * 2**10  # bytes; longer messages do not wait, so that those that do take little memory


class Sink(Protocol):
    """Told of every message."""

    def take(self, seen: Seen) -> None:
        """Must not wait."""
        ...


class Archive(Protocol):
    """Told of every message, of many at a time.

    `patience`: how many messages of up to LONG bytes may wait to be told. It does not count them until then.
    """

    patience: int

    def expect(self, settle: Callable[[], None]) -> None:
        """A message has passed. `settle`, which has it told of all that have, is to be called before long."""
        ...

    def take_all(self, batch: Sequence[Seen]) -> None:
        """In the order in which they passed. Must not wait."""
        ...


class Keeper(Protocol):
    """Asked and told about every exchange."""

    def admit(self, exchange: Exchange) -> Awaitable[None]:
        """Before it is worked on. May wait; see `Tap.admit`. Raises RpcError when it must not be."""
        ...

    def ended(self, exchange: Exchange, outcome: Fields | BaseException, seconds: float) -> Awaitable[None]:
        """After it was worked on, before the client has the answer. May wait, may raise RpcError."""
        ...


@runtime_checkable
class Doorkeeper(Keeper, Protocol):
    """Only holds exchanges back; how they end is nothing to it."""

    @property
    def is_open(self) -> bool:
        """Whether `admit` would not wait."""
        ...
