"""Know what a server lists under names: its tools, or its prompts. Pure.

    unknown --learn--> known --changed, or KNOWN_SECONDS over--> outdated --learn--> known

An outdated list stays readable until it is learned again.
"""

from __future__ import annotations

import math
from typing import Any, Final

from mcpmux.mux.view import Hints, hints_of
from mcpmux.protocol.envelope import value_of
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.tasks import support_in

KNOWN_SECONDS: Final = 60.0  # until a list is asked for again: servers may not announce changes
_KEPT: Final = ("annotations", "inputSchema", "outputSchema", "execution")
"""The members that are asked about."""


class Listing:
    """The items of one list of a server, as it sent the list last.

    `items`: by its own name, what is asked about each. `changes`: the number of reported changes.
    """

    def __init__(self) -> None:
        self.items: dict[str, Fields] = {}
        self.changes = 0
        self._hints: Hints | None = None
        self._until = -math.inf

    def __repr__(self) -> str:
        return f"<Listing of {len(self.items)} items until {self._until:.0f}, {self.changes} changes>"

    def is_known(self, now: float) -> bool:
        """Return whether the list need not be asked for again."""
        return now < self._until

    def changed(self) -> None:
        """Take note that the server has reported a change, or may have missed to."""
        self.changes += 1
        self._until = -math.inf

    def learn(self, items: dict[str, Fields], now: float, changes: int) -> None:
        """Take the whole list. `changes`: the number of reported changes when its fetch began."""
        # Copied: a member would keep the whole message from which it was read.
        self.items = {
            name: {key: item[key].copy() for key in _KEPT if key in item} for name, item in items.items()
        }
        self._hints = None
        # A list that was fetched while a change was reported may be from before the change.
        self._until = now + KNOWN_SECONDS if changes == self.changes else -math.inf

    # About tools

    @property
    def hints(self) -> Hints:
        """The hints in the annotations of the tools, by name: the same object until the list is learned."""
        if self._hints is None:
            annotations = {name: value_of(item.get("annotations")) for name, item in self.items.items()}
            self._hints = {name: hints_of(annotation) for name, annotation in annotations.items()}
        return self._hints

    def schema(self, name: str, member: str = "inputSchema") -> dict[str, Any]:
        """Return the schema that a tool has as `member`; an empty one when it has none."""
        schema = value_of(self.items.get(name, {}).get(member))
        return schema if isinstance(schema, dict) else {}

    def task_support(self, name: str) -> str | None:
        """Return the task support that a tool states; None for an unknown tool."""
        return support_in(self.items[name]) if name in self.items else None
