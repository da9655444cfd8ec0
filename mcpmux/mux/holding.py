"""Which principal a task is of. A thing that is nobody's goes by its id, as ids are made to be unguessable.

Rules
  * A task is named by (upstream key, the upstream's own id); the first principal that it is noted for has it.
  * A principal has what it made, whatever session it made it in, and when that session is gone.
  * Past HELD_LIMIT the oldest is nobody's again. A restart forgets all.
"""

from __future__ import annotations

HELD_LIMIT = 50_000  # tasks; about 10 MB


class Holding:
    """Tasks of principals, by name."""

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
