"""Resources that have changed, from the worker that hears of it to the others, which forget them.

    worker --`Changed`--> keeper --`Changed`--> each other worker --answers--> keeper --`Known`--> worker

Then that worker tells its clients: wherever these ask now, they get nothing older. Who does not answer within
SPREAD_SECONDS is not waited for.

Promises: adding never waits; what waits is bounded, past that everything of an upstream has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio

from mcpmux.runtime.upstreams.fleet import Fleet

WAITING_LIMIT = 10_000  # resources
SPREAD_SECONDS = 1.0  # for the others to hear of a change before the first client does, at the latest

Resource = tuple[str, str | None]
"""An upstream's name and its own URI; None: all that it has."""

Known = Callable[[], None]
"""Called when the process knows of a change, or is not waited for any more."""


class Changes:
    """What one process is still to be told."""

    def __init__(self) -> None:
        self._waiting: dict[Resource, None] = {}
        self._known: list[Known] = []
        self._arrival = trio.Event()

    def __repr__(self) -> str:
        return f"<Changes {len(self._waiting)}>"

    def add(self, resources: Iterable[Resource], known: Known | None = None) -> None:
        """These have changed. `known` is for who takes them; never called, when nobody does."""
        if known is not None:
            self._known.append(known)
        self._waiting.update(dict.fromkeys(resources))
        if len(self._waiting) > WAITING_LIMIT:
            self._waiting = {(name, None): None for name, _ in self._waiting}
        self._arrival.set()

    async def take(self) -> tuple[tuple[Resource, ...], list[Known]]:
        """All that waits, once there is anything, and whom to call when it is known."""
        await self._arrival.wait()
        taken, self._waiting, self._arrival = tuple(self._waiting), {}, trio.Event()
        known, self._known = self._known, []
        return taken, known


class Rounds:
    """What a worker has said of changes, by the numbers that it gave, until all others know. Pure."""

    def __init__(self) -> None:
        self._open: dict[int, float] = {}  # when it was said, the oldest first
        self._known: set[int] = set()  # those of them that all know of, behind one that they do not
        self._last = 0

    def __repr__(self) -> str:
        return f"<Rounds {len(self._open)} open>"

    def begin(self, now: float) -> int:
        """The number of what is said now, about all that was heard of until now."""
        self._last += 1
        self._open[self._last] = now
        return self._last

    def known(self, number: int, now: float) -> float | None:
        """All know of that one: until when all that was heard of is known; None when something before is not.

        What nobody has answered for SPREAD_SECONDS is not waited for.
        """
        if number in self._open:
            self._known.add(number)
        until = None
        while self._open:
            oldest, said = next(iter(self._open.items()))
            if oldest not in self._known and said + SPREAD_SECONDS > now:
                break
            del self._open[oldest]
            self._known.discard(oldest)
            until = said
        return until


def forget_changed(fleet: Fleet, resources: Iterable[Resource]) -> None:
    """Nothing that was said of these is used again."""
    for session in fleet.sessions():
        memory = session.memory
        for name, uri in resources if memory is not None else ():
            if name == session.name and memory is not None:
                memory.drop() if uri is None else memory.updated(uri)
