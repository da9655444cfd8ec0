"""Keep the wanted URIs of one upstream, and the state of each: agreed, refused or missed.

Level-triggered: the modules that ask the upstream compare the wanted URIs with the agreed ones whenever
either set changes. A URI is agreed when the upstream sends its updates to this process, or when another
replica passes them on. An agreed URI that is lost is missed: a change may have passed, so its subscribers get
an update as soon as it is agreed again, in either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio

from mcpmux.errors import RpcError


def _nothing(_uri: str) -> bool:
    return False


class Wishes:
    """The wanted URIs of one upstream.

    `direct`: URIs whose updates the upstream sends to this process; `shared`: to another replica, which
    passes them on. `tell_update` reports that a resource may have changed. `answering`: URIs about which a
    client is being asked. `is_expected` returns whether another replica passes a URI on, or is about to.
    `turn` counts the events that may have changed the wanted URIs.
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
        self._missed: frozenset[str] = frozenset()  # lost URIs, of which a change may have been missed
        self._pokes = trio.lowlevel.ParkingLot()
        self._progress = trio.lowlevel.ParkingLot()

    @property
    def agreed(self) -> frozenset[str]:
        return frozenset(self.direct | self.shared)

    @property
    def withdrawn(self) -> frozenset[str]:
        """The refused URIs that were agreed once, so that clients still rely on them."""
        return self._missed & self.refused.keys()

    def is_agreed(self, uri: str) -> bool:
        return uri in self.direct or uri in self.shared

    def is_wanted_directly(self, uri: str) -> bool:
        """Return whether the upstream itself is to be asked for `uri`."""
        return uri in self.wanted() and not self.is_expected(uri)

    def wanted_directly(self) -> frozenset[str]:
        """Return the URIs that the upstream itself is to be asked for."""
        wanted = self.wanted()
        if self.is_expected is _nothing:
            return wanted
        return frozenset(uri for uri in wanted if not self.is_expected(uri))

    def prune(self) -> None:
        """Forget that URIs were refused or missed which are not wanted any more."""
        wanted = self.wanted()
        self._missed &= wanted
        for uri in self.refused.keys() - wanted:
            del self.refused[uri]

    # Changes, and waiting for them

    def poke(self) -> None:
        """Wake the tasks that ask the upstream: wanted URIs, or the way to ask for them, may have changed."""
        self.turn += 1
        self._pokes.unpark_all()

    async def poked(self, since: int) -> None:
        """Wait until `turn` differs from `since`."""
        while self.turn == since:
            await self._pokes.park()

    def progressed(self) -> None:
        """Wake the tasks that wait for an agreement or a refusal."""
        self._progress.unpark_all()

    def agree(self, uris: Iterable[str], held: set[str]) -> None:
        """Add `uris` that were agreed to `held`, which is `direct` or `shared`."""
        for uri in uris:
            held.add(uri)
            self.refused.pop(uri, None)
            if uri in self._missed:
                self._missed -= {uri}
                self.tell_update(uri)
        if held & (self.direct if held is self.shared else self.shared):
            self.poke()  # one of the two ways can end now

    def ask_again(self, uris: Iterable[str]) -> None:
        """Forget that `uris` were refused, so that they are asked for again."""
        for uri in uris:
            if self.refused.pop(uri, None) is not None:
                self.poke()

    def refuse(self, uris: Iterable[str], code: int, reason: str) -> None:
        for uri in uris:
            self.refused[uri] = RpcError(code, f"{reason} {uri}")

    def lose(self, uris: Iterable[str], held: set[str]) -> None:
        """Remove `uris` from `held`. Those without another way are missed from now on."""
        lost = held.intersection(uris)
        held -= lost
        self._missed |= lost - self.direct - self.shared

    def miss(self, uris: frozenset[str]) -> None:
        """Report `uris` as changed, as updates may have been missed: now, or as soon as they are agreed."""
        agreed = self.agreed
        for uri in sorted(uris & agreed):
            self.tell_update(uri)
        self._missed |= uris - agreed
        self.poke()

    def catch_up(self, uris: Iterable[str]) -> None:
        """Report those of `uris` that are agreed as changed, as updates may have been lost."""
        for uri in sorted(self.agreed.intersection(uris)):
            self.tell_update(uri)

    async def ensure(self, uri: str, seconds: float) -> bool:
        """See `Subscriber.ensure`."""
        if self.is_agreed(uri):
            return True
        self.refused.pop(uri, None)  # an earlier refusal does not count: the upstream is asked again
        self.poke()
        until = trio.current_time() + seconds
        while not self.is_agreed(uri):
            if uri in self.refused:
                raise self.refused[uri].anew()
            if uri in self.answering:  # a person may be asked: the time begins anew after that
                await self._progress.park()
                until = trio.current_time() + seconds
            else:
                with trio.move_on_at(until) as patience:
                    await self._progress.park()
                if patience.cancelled_caught:
                    return False
        return True

    async def ensure_all(self, uris: Iterable[str], seconds: float) -> frozenset[str]:
        """Wait until each of `uris` is agreed or refused, or time is up. Return those that are agreed."""
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
