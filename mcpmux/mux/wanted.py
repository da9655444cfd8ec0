"""Decide what to ask of an upstream so that clients get updates of the URIs that they want.

Updates come in two ways: `direct`, from the upstream to this process, and `shared`, through the owner, the
replica that asks the upstream for all replicas of a cluster. A wanted URI, in either way:

    state     event                                             next state
    new       the upstream or the owner agrees                  agreed
    agreed    the way breaks off, or is not granted any more    missed
    missed    agreed again: its subscribers get an update       agreed
    new or    the upstream refuses                              refused
    missed    the owner does not grant it: the upstream is asked
    refused   a client subscribes to it, a listen is opened     as before the refusal
              for other URIs, a new connection begins, or
              REASK_SECONDS have passed

The owner:

    state     new URIs are asked of    event                                  next state
    TRUSTED   the owner                its listen is refused or breaks off    FAILED
    FAILED    the upstream             RETRY_SECONDS have passed              TRIED
    TRIED     both                     it acknowledges                        TRUSTED
    TRIED     both                     its listen is refused or breaks off    FAILED
    any                                another replica is the owner           TRUSTED

A listen is replaced, never changed: the next one asks for all URIs, and the one before ends once it is
acknowledged. A URI that changes to the shared way stays subscribed in the direct way for a while.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Set
from typing import Any, Final

from mcpmux.errors import RpcError
from mcpmux.protocol.codes import METHOD_NOT_FOUND

BROKEN_SECONDS: Final = 5.0  # after a listen at the upstream broke off
REASK_SECONDS: Final = 30.0  # until refused URIs that are still wanted are asked for again
RETRY_SECONDS = 2.0  # after an owner did not answer, or did not know yet that it is the owner


class Trust(enum.Enum):
    """The states of the owner."""

    TRUSTED = enum.auto()
    FAILED = enum.auto()
    TRIED = enum.auto()


class Way:
    """One way in which updates come. `agreed`: the URIs whose updates come in it.

    `is_open`: whether the newest acknowledged listen lasts, which asked `server` for `asked`. `is_asking`:
    whether the next one is not acknowledged yet. `again_at`: when to ask again, though the wanted URIs have
    not changed. `has_gap`: whether changes may have been missed since the last listen; the subscriber
    sets it, too, when lists were fetched before the first one was acknowledged.
    """

    def __init__(self, *, for_lists: bool = False) -> None:
        """`for_lists`: whether there is a listen even when no URI is wanted."""
        self.for_lists = for_lists
        self.agreed: set[str] = set()
        self.server: object = None
        self.asked: frozenset[str] = frozenset()
        self.is_open = self.is_asking = self.has_gap = False
        self.again_at = math.inf

    def ask_at(self, at: float) -> None:
        """Ask again at `at`, in seconds, or earlier."""
        self.again_at = min(self.again_at, at)


class Wanted:
    """The wanted URIs of one upstream, and what was agreed about them.

    `turn` changes whenever there may be something else to ask. `refused`: the errors of refused URIs.
    """

    def __init__(self, uris: Callable[[], Set[str]]) -> None:
        """`uris` returns the wanted URIs as they are now, without a copy: there may be very many."""
        self.uris = uris
        self.direct, self.shared = Way(), Way()
        self.refused: dict[str, RpcError] = {}
        self.owner: Any = None
        self.turn = 0
        self._trust = Trust.TRUSTED
        self._declined: set[str] = set()  # URIs that the owner does not grant
        self._both_until = -math.inf  # until when URIs that the owner grants stay subscribed at the upstream
        self._missed: set[str] = set()
        self._changed: list[str] = []

    def __repr__(self) -> str:
        return f"<Wanted {len(self.agreed)} agreed, {len(self.refused)} refused, {len(self._missed)} missed>"

    @property
    def agreed(self) -> frozenset[str]:
        return frozenset(self.direct.agreed | self.shared.agreed)

    def is_agreed(self, uri: str) -> bool:
        return uri in self.direct.agreed or uri in self.shared.agreed

    def unanswered(self, uris: set[str]) -> set[str]:
        """Return those of `uris` that are neither agreed nor refused."""
        return uris - self.direct.agreed - self.shared.agreed - self.refused.keys()

    def take_changed(self) -> list[str]:
        """Return the URIs to report as changed, as updates may have been missed, and forget them."""
        changed, self._changed = self._changed, []
        return changed

    # Connections, and the owner

    def begin(self, owner: Any, *, for_lists: bool) -> None:
        """Begin a connection, without any listen. `owner`: the object to ask for shared URIs, or None."""
        self.direct, self.shared = Way(for_lists=for_lists), Way()
        # A refusal is for one connection: a restarted server may agree.
        self.refused.clear()
        self._both_until = -math.inf
        self.follow(owner)

    def end(self) -> None:
        """End the connection, and all listens."""
        for way in (self.direct, self.shared):
            self._lose(way, way.agreed)

    def follow(self, owner: Any) -> None:
        """Ask `owner` for shared URIs from now on."""
        self.owner = owner
        self._trust = Trust.TRUSTED
        self._declined.clear()
        self.shared.again_at = math.inf
        self.turn += 1

    # What to ask for

    def of_upstream(self, now: float) -> frozenset[str]:
        """Return the URIs that the upstream itself is to be asked for."""
        uris = self.uris()
        if self.owner is None:
            return frozenset(uris)
        return frozenset(uri for uri in uris if not self._is_expected(uri, now))

    def differing(self, now: float) -> list[str]:
        """Return the URIs to subscribe to or unsubscribe from at a legacy upstream."""
        return sorted((self.of_upstream(now) - self.refused.keys()) ^ self.direct.agreed)

    def is_of_upstream(self, uri: str, now: float) -> bool:
        return uri in self.uris() and not self._is_expected(uri, now)

    def _is_expected(self, uri: str, now: float) -> bool:
        """Return whether the owner passes on `uri`, or is about to: the upstream need not be asked."""
        if self.owner is None:
            return False
        is_direct = uri in self.direct.agreed
        if uri in self.shared.agreed:
            return not is_direct or now >= self._both_until
        return not is_direct and self._trust is Trust.TRUSTED and uri not in self._declined

    def next_listen(self, way: Way, now: float) -> frozenset[str] | None:
        """Return the URIs for the next listen; None if there is nothing to ask, or to end.

        No URIs: the present listen is to end, see `stop`, unless the way is for lists too.
        """
        if way is self.direct:
            uris = self.of_upstream(now)
            if not uris and not way.for_lists:
                return uris if way.is_open else None
            is_asked = way.is_open and way.asked == uris
            return None if is_asked and self.refused.keys() >= uris - way.agreed else uris
        wanted = self.uris()
        self._declined &= wanted
        uris = frozenset(wanted - self._declined - self.refused.keys())
        if self.owner is None or not uris:
            # The listen goes on as long as a wanted URI has no other way.
            is_needed = not (way.agreed & wanted) <= self.direct.agreed
            return None if is_needed or not (way.is_open or way.agreed) else frozenset()
        is_asked = way.is_open and way.server == self.owner and way.asked == uris
        way.is_asking = not is_asked and self._trust is not Trust.FAILED
        return uris if way.is_asking else None

    # Events

    def look_again(self) -> None:
        """Note that some URIs may not be wanted any more."""
        # Later clients of them are owed no change.
        if self._missed or self.refused:
            uris = self.uris()
            self._missed &= uris
            for uri in self.refused.keys() - uris:
                del self.refused[uri]
        self.turn += 1

    def ask_again(self, uris: Iterable[str]) -> set[str]:
        """Ask for those of `uris` that are not agreed, also if they were refused. Return these."""
        asked = {uri for uri in uris if not self.is_agreed(uri)}
        for uri in asked:
            self.refused.pop(uri, None)
        if asked:
            self.turn += 1
        return asked

    def come_due(self, way: Way) -> None:
        """Ask again what was refused in `way`, as `again_at` has come."""
        way.again_at = math.inf
        if way is self.direct:
            self.refused.clear()
        else:
            self._declined.clear()
            if self._trust is Trust.FAILED:
                self._trust = Trust.TRIED
        self.turn += 1

    def agree(self, way: Way, uris: Iterable[str]) -> None:
        for uri in uris:
            way.agreed.add(uri)
            self.refused.pop(uri, None)
            if uri in self._missed:
                self._missed.discard(uri)
                self._changed.append(uri)
        if not self.direct.agreed.isdisjoint(self.shared.agreed):
            self.turn += 1  # one of the two ways can end now

    def refuse(self, uris: Iterable[str], code: int, reason: str, now: float) -> None:
        """Refuse `uris`, with an error for each that begins with `reason`."""
        for uri in uris:
            self.refuse_with(uri, RpcError(code, f"{reason} {uri}"), now)

    def refuse_with(self, uri: str, error: RpcError, now: float) -> None:
        self.refused[uri] = error
        self.direct.ask_at(now + REASK_SECONDS)

    def leave(self, uri: str) -> None:
        """End the direct way of `uri`, which is not wanted in it any more."""
        self.direct.agreed.discard(uri)

    def miss(self, uris: Iterable[str]) -> None:
        """Report `uris` as changed, as updates may have been missed: now, or once they are agreed."""
        for uri in sorted(uris):
            if self.is_agreed(uri):
                self._changed.append(uri)
            else:
                self._missed.add(uri)
        self.turn += 1

    def acknowledge(
        self,
        way: Way,
        server: object,
        asked: frozenset[str],
        granted: frozenset[str],
        now: float,
        *,
        settle_seconds: float = 0.0,
        goes_on: bool = True,
    ) -> None:
        """Make the listen that asked `server` for `asked` the newest one of `way`.

        `settle_seconds`: the longest time that the owner may take to pass on an update. `goes_on`: the listen
        sends all updates that the one before it at `server` has not sent.
        """
        granted &= asked
        declined = asked - granted
        if not goes_on and (not way.is_open or way.server == server):
            self._lose(way, way.agreed)
        if self._lose(way, way.agreed - granted) - asked:
            # They were dropped, and are wanted again since it was asked.
            self.turn += 1
        way.server, way.asked, way.is_open = server, asked, True
        way.is_asking = way.has_gap = False
        if way is self.shared:
            self._trust = Trust.TRUSTED
            way.asked = granted
            # The owner may pass on an update later than it was asked.
            if not granted.isdisjoint(self.direct.agreed):
                self._both_until = now + settle_seconds
                self.direct.ask_at(self._both_until)
            if declined:
                self._declined |= declined
                way.ask_at(now + REASK_SECONDS)
                self.turn += 1
        self.agree(way, sorted(granted))
        if way is self.direct:
            self.refuse(sorted(declined), METHOD_NOT_FOUND, "the upstream does not tell about", now)

    def stop(self, way: Way) -> bool:
        """End the listen of `way`, as `next_listen` said. Return whether its URIs are wanted in the other."""
        has_moved = not way.agreed.isdisjoint(self.uris())
        way.agreed.clear()
        way.is_open = False
        return has_moved

    def break_off(self, way: Way, server: object, now: float, *, is_over: bool) -> None:
        """End the newest listen of `way`. `is_over`: the server has ended it in order."""
        way.is_open, way.has_gap = False, True
        if way is self.direct:
            self._lose(way, way.agreed)
            way.ask_at(now + BROKEN_SECONDS)
        elif not (is_over and way.is_asking):  # else the acknowledgement of the next listen decides
            self._fail(server, now)

    def fail_to_listen(
        self, way: Way, server: object, asked: frozenset[str], now: float, *, is_refused: bool
    ) -> None:
        """End a listen that was not acknowledged. `is_refused`: the server has refused it, or was silent."""
        way.is_asking = False
        if way is self.shared:
            self._fail(server, now)
            return
        self.refuse(sorted(asked - way.agreed), METHOD_NOT_FOUND, "the upstream does not tell about", now)
        if not is_refused:
            way.ask_at(now + BROKEN_SECONDS)
        elif way.has_gap:
            way.ask_at(now + REASK_SECONDS)

    def _fail(self, server: object, now: float) -> None:
        """Ask the upstream itself, and later the owner again."""
        if not self.shared.is_open:
            self._lose(self.shared, self.shared.agreed)
        if server == self.owner:
            self._trust = Trust.FAILED
            self.shared.ask_at(now + RETRY_SECONDS)
        self.turn += 1

    def end_replaced(self, server: object, granted: frozenset[str], *, is_over: bool) -> None:
        """End a listen of the shared way that another one has replaced. `is_over`: see `break_off`."""
        if not is_over or not self.shared.is_open or self.shared.server != server:
            # Its last updates may be lost.
            self.miss(granted & self.agreed)

    def _lose(self, way: Way, uris: Iterable[str]) -> frozenset[str]:
        """Remove `uris` from `way`. Return those that are missed from now on."""
        lost = way.agreed.intersection(uris)
        way.agreed -= lost
        missed = frozenset(self.uris() & lost - self.agreed)
        self._missed |= missed
        return missed
