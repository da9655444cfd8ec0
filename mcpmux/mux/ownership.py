"""Remember which client owns a thing that a server names by an id: a task, a URL that a user was sent to.

A thing is named by (upstream key, the upstream's own id) and has at most one owner, the first one.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from mcpmux.lru import Lru
from mcpmux.protocol.raw_json import SHORT_CHARS

OWNED_LIMIT = 1000  # things of one owner: more than any client looks after
MADE_LIMIT = 50_000  # tasks of all clients
MADE_BYTES = 32 * 2**20  # of those tasks

NoteT = TypeVar("NoteT")
TaskKey = tuple[str, str]


class Ownership(Generic[NoteT]):
    """The owner of each thing, with a note.

    Each owner holds at most OWNED_LIMIT things; past that its oldest loses its owner. When an owner leaves,
    all its things lose theirs.
    """

    def __init__(self) -> None:
        self._things: dict[TaskKey, tuple[object, NoteT]] = {}
        self._of_owner: dict[object, dict[TaskKey, None]] = {}

    def __len__(self) -> int:
        return len(self._things)

    def add(self, upstream: str, own_id: str, owner: object, note: NoteT) -> None:
        """Make `owner` the owner of a thing that has none yet."""
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
        """Return the things of `owner`, the oldest first: ((upstream, own id), note)."""
        return [(key, self._things[key][1]) for key in self._of_owner.get(owner, ())]

    def find(self, upstream: str, own_id: str) -> tuple[object, NoteT] | None:
        """Return (owner, note); None for a thing without an owner."""
        return self._things.get((upstream, own_id))

    def is_of(self, upstream: str, own_id: str, client: object) -> bool:
        """Return whether a thing is `client`'s."""
        owner = self.find(upstream, own_id)
        return owner is not None and owner[0] is client

    def may_use(self, upstream: str, own_id: str, client: object) -> bool:
        """Return whether a thing is `client`'s, or has no owner."""
        # Then its id is enough: ids are made to be unguessable.
        return self.find(upstream, own_id) is None or self.is_of(upstream, own_id, client)

    def leave(self, owner: object) -> None:
        """Remove an owner that has gone; its things have none any more."""
        for key in self._of_owner.pop(owner, ()):
            del self._things[key]


class MadeTasks:
    """The tool that made each task, and the principal it was made for: the first one, in any session.

    Past the limits the least recently used task is forgotten: it has no principal and an unknown tool. A
    restart forgets all.
    """

    def __init__(self) -> None:
        self._made: Lru[TaskKey, tuple[str, str | None]] = Lru(MADE_LIMIT, MADE_BYTES)

    def note(self, upstream: str, task_id: str, principal: str, tool: str | None) -> None:
        """Note that a call of `tool` made a task for `principal`, "" if that is unknown."""
        key = (upstream, task_id)
        holder, known_tool = self._made.get(key, ("", None))
        self._made[key] = (holder or principal, tool or known_tool)

    def tool_of(self, upstream: str, task_id: str | None) -> str | None:
        """Return the tool that made a task, or None when that is unknown."""
        return self._made.get((upstream, task_id or ""), ("", None))[1]

    def may_use(self, upstream: str, task_id: str, principal: str) -> bool:
        """Return whether a task is `principal`'s, or no principal's."""
        return self._made.get((upstream, task_id), ("", None))[0] in ("", principal)
