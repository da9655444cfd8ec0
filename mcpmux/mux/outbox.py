"""What one client still has to hear: changes, each at most once, in bounded memory.

`resources/updated` and `list_changed` say "look again", so a second one while the first still waits adds
nothing: the box holds one per URI and one per kind of list. A server may name any number of sub-resources
of a subscribed one; past DETAIL_LIMIT the subscribed one stands for them. So the size is bounded by what
the client subscribed to, however fast things change and however slowly it reads; nothing is lost. The status
of a task and its progress are kept in the same way, the latest for each task.

    put(event) when its key is absent → appended, `put` says True
    put(event) when its key waits     → it takes the place of the waiting one, counted as merged
    put(event, whole) when many wait  → as put(whole)
    take()                            → the oldest, removed
"""

from __future__ import annotations

from mcpmux.protocol.call import Event
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.raw_json import Fields

DETAIL_LIMIT = 256  # waiting changes after which sub-resources are not told one by one any more

Key = tuple[str, str]

_NAMED_BY = ("uri", "taskId", "elicitationId", "progressToken")


def _subject(params: Fields) -> str:
    """What a notification is about: a later one about the same takes the place of the one that waits."""
    return next((bytes(params[name]).decode() for name in _NAMED_BY if name in params), "")


class Outbox:
    """The waiting changes of one client, oldest first."""

    __slots__ = ("_waiting", "merged")

    def __init__(self) -> None:
        self._waiting: dict[Key, Event] = {}
        self.merged = 0

    def __repr__(self) -> str:
        return f"<Outbox {len(self._waiting)} waiting, {self.merged} merged>"

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, event: Event, whole: Event | None = None, *, is_known: bool = True) -> bool:
        """Keep `event` to be told; False when one that says the same waits already, or it is dropped.

        `whole` says that of the subscribed resource, when `event` is about a part of it. No event of an
        unknown kind stands for another; it is dropped, and counted as merged, when DETAIL_LIMIT others wait.
        """
        is_full = len(self._waiting) >= DETAIL_LIMIT
        if whole is not None and is_full:
            event = whole
        key = (event.method, _subject(event.params) if is_known else bytes(raw(event.params)).decode())
        is_new = key not in self._waiting
        if is_new and is_full and not is_known:
            is_new = False
        else:
            self._waiting[key] = event
        self.merged += not is_new
        return is_new

    def drop(self, method: str) -> bool:
        """Nothing of that kind is to be told any more; whether any waited."""
        kept = {key: event for key, event in self._waiting.items() if key[0] != method}
        dropped = len(kept) < len(self._waiting)
        self._waiting = kept
        return dropped

    def take(self) -> Event | None:
        """The event that has waited longest, None when there is none."""
        if not self._waiting:
            return None
        return self._waiting.pop(next(iter(self._waiting)))
