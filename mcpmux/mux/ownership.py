"""Whose a thing is that a server speaks of by an id: a task, a URL that a user was sent to.

A thing is named by (upstream key, the upstream's own id) and has at most one owner, the first one. Whoever
is asked about a thing that is nobody's may go by the id alone: ids are made to be unguessable.
"""

from __future__ import annotations

from typing import Generic, TypeVar

OWNED_LIMIT = 1000  # things of one owner: more than any client looks after
HELD_LIMIT = 50_000  # tasks of principals; about 10 MB

Note = TypeVar("Note")
Key = tuple[str, str]


class Ownership(Generic[Note]):
    """Who owns what, with a note for each thing.

    Each owner holds at most OWNED_LIMIT things; past that its oldest is nobody's again. When an owner goes,
    all it had is nobody's.
    """

    def __init__(self) -> None:
        self._things: dict[Key, tuple[object, Note]] = {}
        self._of_owner: dict[object, dict[Key, None]] = {}

    def __repr__(self) -> str:
        return f"<Ownership {len(self._things)} things of {len(self._of_owner)} owners>"

    def __len__(self) -> int:
        return len(self._things)

    def add(self, upstream: str, own_id: str, owner: object, note: Note) -> None:
        """`owner` has made it; nothing changes when it has an owner already."""
        key = (upstream, own_id)
        if key in self._things:
            return
        held = self._of_owner.setdefault(owner, {})
        if len(held) >= OWNED_LIMIT:
            oldest = next(iter(held))
            del held[oldest], self._things[oldest]
        held[key] = None
        self._things[key] = (owner, note)

    def find(self, upstream: str, own_id: str) -> tuple[object, Note] | None:
        """(owner, note); None when it is nobody's."""
        return self._things.get((upstream, own_id))

    def is_of(self, upstream: str, own_id: str, client: object) -> bool:
        """Whether it is `client`'s."""
        found = self.find(upstream, own_id)
        return found is not None and found[0] is client

    def may_use(self, upstream: str, own_id: str, client: object) -> bool:
        """Whether it is `client`'s, or nobody's."""
        return self.find(upstream, own_id) is None or self.is_of(upstream, own_id, client)

    def leave(self, owner: object) -> None:
        """The owner has gone."""
        for key in self._of_owner.pop(owner, ()):
            del self._things[key]


class Holding:
    """Tasks of principals: the first one that a task is noted for has it, whatever session made it.

    Past HELD_LIMIT the oldest is nobody's again. A restart forgets all.
    """

    def __init__(self) -> None:
        self._holders: dict[tuple[str, str], str] = {}

    def __repr__(self) -> str:
        return f"<Holding {len(self._holders)} tasks>"

    def note(self, upstream: str, task_id: str, principal: str) -> None:
        """A task was made for `principal`; nothing happens when it is nobody in particular ("")."""
        if not principal:
            return
        self._holders.setdefault((upstream, task_id), principal)
        if len(self._holders) > HELD_LIMIT:
            del self._holders[next(iter(self._holders))]

    def may_use(self, upstream: str, task_id: str, principal: str) -> bool:
        """Whether it is `principal`'s, or nobody's."""
        return self._holders.get((upstream, task_id), principal) == principal
