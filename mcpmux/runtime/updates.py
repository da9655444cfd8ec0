"""Updates of resources that clients are still to be told of, the oldest first. Pure; times are handed in.

    heard --`known`, or its pause is over--> due --`take`--> told

Promises: however often a resource changes it waits once. One that has changed again after what is known is
told now and once more later: whoever asks in between may be given what it was in between.
"""

from __future__ import annotations

from math import inf

Key = tuple[str, str]
"""The key of an upstream's session, and the upstream's own URI."""


class Updates:
    """Of one relay."""

    def __init__(self) -> None:
        self._waiting: dict[Key, tuple[float, float]] = {}  # when it was heard of first and last
        self._known = -inf

    def __repr__(self) -> str:
        return f"<Updates {len(self._waiting)}>"

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: Key) -> bool:
        return key in self._waiting

    def put(self, key: Key, heard: float) -> None:
        """A resource has changed."""
        found = self._waiting.get(key)
        self._waiting[key] = (heard if found is None else found[0], heard)

    def known(self, until: float) -> None:
        """All that was heard of until then may be told."""
        self._known = until

    def due(self, pause: float) -> float:
        """When the next one is to be told, if nothing is `known` before; there is one."""
        first, _ = next(iter(self._waiting.values()))
        return -inf if first <= self._known else first + pause

    def take(self) -> Key:
        """The next one, which is told now."""
        key = next(iter(self._waiting))
        first, last = self._waiting.pop(key)
        if first < last and last > self._known:
            self._waiting[key] = (last, last)
        return key

    def take_all(self, upstream: str | None = None) -> list[Key]:
        """All, or those of one session, which are told now and not again."""
        taken = [key for key in self._waiting if upstream is None or key[0] == upstream]
        for key in taken:
            del self._waiting[key]
        return taken

    def move(self, upstream: str, other: str) -> None:
        """What is to be told of one session is told of another in its place."""
        waiting, self._waiting = self._waiting, {}
        for (owner, uri), (first, last) in waiting.items():
            key = (other if owner == upstream else owner, uri)
            found = self._waiting.get(key, (first, last))
            self._waiting[key] = (min(first, found[0]), max(last, found[1]))
