"""Whose a thing is that a server speaks of by an id: a task, a URL that a user was sent to.

A thing is named by (upstream key, the upstream's own id) and has at most one owner, the first one. Whoever
is asked about a thing that is nobody's may go by the id alone: ids are made to be unguessable.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from mcpmux.lru import Lru
from mcpmux.protocol.raw_json import SHORT_CHARS

OWNED_LIMIT = 1000  # things of one owner: more than any client looks after
MADE_LIMIT = 50_000  # tasks of all clients
MADE_BYTES = 32 * 2**20  # of them

NoteT = TypeVar("NoteT")
TaskKey = tuple[str, str]


class Ownership(Generic[NoteT]):
    """Who owns what, with a note for each thing.

    Each owner holds at most OWNED_LIMIT things; past that its oldest is nobody's again. When an owner goes,
    all it had is nobody's.
    """

    def __init__(self) -> None:
        self._things: dict[TaskKey, tuple[object, NoteT]] = {}
        self._of_owner: dict[object, dict[TaskKey, None]] = {}

    def __len__(self) -> int:
        return len(self._things)

    def add(self, upstream: str, own_id: str, owner: object, note: NoteT) -> None:
        """`owner` has made it; nothing changes when it has an owner already."""
        key = (upstream, own_id)
        if key in self._things or len(own_id) > SHORT_CHARS:  # no client can name the latter
            return
        held = self._of_owner.setdefault(owner, {})
        if len(held) >= OWNED_LIMIT:
            oldest = next(iter(held))
            del held[oldest], self._things[oldest]
        held[key] = None
        self._things[key] = (owner, note)

    def held_by(self, owner: object) -> list[tuple[TaskKey, NoteT]]:
        """What `owner` has, the oldest first: ((upstream, own id), note)."""
        return [(key, self._things[key][1]) for key in self._of_owner.get(owner, ())]

    def find(self, upstream: str, own_id: str) -> tuple[object, NoteT] | None:
        """(owner, note); None when it is nobody's."""
        return self._things.get((upstream, own_id))

    def is_of(self, upstream: str, own_id: str, client: object) -> bool:
        found = self.find(upstream, own_id)
        return found is not None and found[0] is client

    def may_use(self, upstream: str, own_id: str, client: object) -> bool:
        """Whether it is `client`'s, or nobody's."""
        return self.find(upstream, own_id) is None or self.is_of(upstream, own_id, client)

    def leave(self, owner: object) -> None:
        """The owner has gone."""
        for key in self._of_owner.pop(owner, ()):
            del self._things[key]


class MadeTasks:
    """Which tool has made a task, and for which principal: the first one, whatever session it was made in.

    Past its bounds the one that was used longest ago is forgotten: it is nobody's, and of an unknown tool. A
    restart forgets all.
    """

    def __init__(self) -> None:
        self._made: Lru[TaskKey, tuple[str, str | None]] = Lru(MADE_LIMIT, MADE_BYTES)

    def note(self, upstream: str, task_id: str, principal: str, tool: str | None) -> None:
        """A call of `tool` has made a task for `principal`, "" for nobody in particular."""
        key = (upstream, task_id)
        holder, known = self._made.get(key, ("", None))
        self._made[key] = (holder or principal, tool or known)

    def tool_of(self, upstream: str, task_id: str | None) -> str | None:
        """The tool that has made a task, None when that is not known."""
        return self._made.get((upstream, task_id or ""), ("", None))[1]

    def may_use(self, upstream: str, task_id: str, principal: str) -> bool:
        """Whether it is `principal`'s, or nobody's."""
        return self._made.get((upstream, task_id), ("", None))[0] in ("", principal)
