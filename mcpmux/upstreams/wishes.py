"""What is wanted of one upstream's resources, and what has become of each wish.

Level-triggered: whoever asks the upstream compares what is wanted with what was agreed, whenever either
changes. A URI is agreed when the upstream tells this process of it, or when another replica passes on what
the upstream tells there. What was agreed and is lost is missed: a change may have passed, so whoever wants it
hears of one as soon as it is agreed again, in whichever way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio

from mcpmux.errors import RpcError


def _nothing(_uri: str) -> bool:
    return False


class Wishes:
    """The wishes of one upstream. `direct`: URIs that it tells this process of; `shared`: another replica.

    `tell_update` says that a resource may have changed. `answering`: URIs about which a client is being
    asked. `is_expected` says of a URI that is not `direct` whether another replica passes it on, or is about
    to. `turn` counts what may have changed the wishes.
    """

    def __init__(self, wanted: Callable[[], frozenset[str]], tell_update: Callable[[str], None]) -> None:
        self.wanted = wanted
        self.tell_update = tell_update
        self.direct: set[str] = set()
        self.shared: set[str] = set()
        self.refused: dict[str, RpcError] = {}
        self.answering: set[str] = set()
        self.is_expected: Callable[[str], bool] = _nothing
        self.turn = 0
        self._missed: frozenset[str] = frozenset()  # whose changes may have passed unheard
        self._pokes = trio.lowlevel.ParkingLot()
        self._progress = trio.lowlevel.ParkingLot()

    @property
    def agreed(self) -> frozenset[str]:
        return frozenset(self.direct | self.shared)

    @property
    def withdrawn(self) -> frozenset[str]:
        """What is refused now and was agreed once: somebody still relies on it."""
        return self._missed & self.refused.keys()

    def is_agreed(self, uri: str) -> bool:
        return uri in self.direct or uri in self.shared

    def is_wanted_directly(self, uri: str) -> bool:
        """Whether the upstream itself is to be asked for `uri`."""
        return uri in self.wanted() and not self.is_expected(uri)

    def wanted_directly(self) -> frozenset[str]:
        """What the upstream itself is to be asked for."""
        wanted = self.wanted()
        if self.is_expected is _nothing:
            return wanted
        return frozenset(uri for uri in wanted if not self.is_expected(uri))

    def prune(self) -> None:
        """What nobody wants any more is neither refused nor missed."""
        wanted = self.wanted()
        self._missed &= wanted
        for uri in self.refused.keys() - wanted:
            del self.refused[uri]

    # What changes, and who waits for that

    def poke(self) -> None:
        """Something else may be wanted, or is to be asked for in another way."""
        self.turn += 1
        self._pokes.unpark_all()

    async def poked(self, since: int) -> None:
        """Wait until `turn` is another one than `since`."""
        while self.turn == since:
            await self._pokes.park()

    def progressed(self) -> None:
        """Whoever waits for an answer is to look again."""
        self._progress.unpark_all()

    def agree(self, uris: Iterable[str], held: set[str]) -> None:
        """`uris` are told of in one more way: `held` is `direct` or `shared`."""
        for uri in uris:
            held.add(uri)
            self.refused.pop(uri, None)
            if uri in self._missed:
                self._missed -= {uri}
                self.tell_update(uri)
        if held & (self.direct if held is self.shared else self.shared):
            self.poke()  # one of the two ways can end now

    def ask_again(self, uris: Iterable[str]) -> None:
        """What was refused may be agreed now."""
        for uri in uris:
            if self.refused.pop(uri, None) is not None:
                self.poke()

    def refuse(self, uris: Iterable[str], code: int, reason: str) -> None:
        for uri in uris:
            self.refused[uri] = RpcError(code, f"{reason} {uri}")

    def lose(self, uris: Iterable[str], held: set[str]) -> None:
        """`uris` are not told of in that way any more, though they are wanted."""
        lost = held.intersection(uris)
        held -= lost
        self._missed |= lost - self.direct - self.shared

    def miss(self, uris: frozenset[str]) -> None:
        """Changes of `uris` may have passed: clients hear of it now, or when they are agreed."""
        agreed = self.agreed
        for uri in sorted(uris & agreed):
            self.tell_update(uri)
        self._missed |= uris - agreed
        self.poke()

    def catch_up(self, uris: Iterable[str]) -> None:
        """Something of what was told of `uris` may have been lost."""
        for uri in sorted(self.agreed.intersection(uris)):
            self.tell_update(uri)

    async def ensure(self, uri: str, seconds: float) -> bool:
        """See `Subscriber.ensure`."""
        if self.is_agreed(uri):
            return True
        self.refused.pop(uri, None)
        self.poke()
        until = trio.current_time() + seconds
        while not self.is_agreed(uri):
            if uri in self.refused:
                raise self.refused[uri].anew()
            if uri in self.answering:
                await self._progress.park()
                until = trio.current_time() + seconds
            else:
                with trio.move_on_at(until) as patience:
                    await self._progress.park()
                if patience.cancelled_caught:
                    return False
        return True

    async def ensure_all(self, uris: Iterable[str], seconds: float) -> frozenset[str]:
        """Wait until each of `uris` is agreed or refused, for so long at most; those that are agreed."""
        waiting = [uri for uri in uris if not self.is_agreed(uri)]
        for uri in waiting:
            self.refused.pop(uri, None)
        self.poke()
        with trio.move_on_after(seconds):
            while waiting:
                if self.is_agreed(waiting[-1]) or waiting[-1] in self.refused:
                    waiting.pop()
                else:
                    await self._progress.park()
        return frozenset(uri for uri in uris if self.is_agreed(uri))
