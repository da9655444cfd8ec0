"""How many things happened when, in bounded memory. Pure.

Slots begin a second wide. When there would be more than SLOTS of them, pairs become one, so that the picture
always has between half of SLOTS and SLOTS of them, whatever the span, once it is long enough.
"""

from __future__ import annotations

from typing import NamedTuple

SLOTS = 120


class Slot(NamedTuple):
    """From `start` (seconds since 1970) on, for the timeline's width."""

    start: int
    answers: int
    failed: int


class Timeline:
    """`width`: seconds of a slot."""

    __slots__ = ("_slots", "width")

    def __init__(self) -> None:
        self.width = 1
        self._slots: dict[int, list[int]] = {}

    def __repr__(self) -> str:
        return f"<Timeline of {len(self._slots)} slots of {self.width} s>"

    def add(self, moment: float, failed: bool) -> None:
        """Something happened at `moment`, seconds since 1970."""
        place = int(moment // self.width)
        slot = self._slots.get(place)
        if slot is None:
            self._slots[place] = [1, int(failed)]
            self._shrink()
        else:
            slot[0] += 1
            slot[1] += failed

    def _shrink(self) -> None:
        while max(self._slots) - min(self._slots) >= SLOTS:
            self.width *= 2
            slots: dict[int, list[int]] = {}
            for place, (count, failed) in self._slots.items():
                known = slots.setdefault(place // 2, [0, 0])
                known[0] += count
                known[1] += failed
            self._slots = slots

    def slots(self) -> list[Slot]:
        """Without gaps, oldest first."""
        if not self._slots:
            return []
        places = range(min(self._slots), max(self._slots) + 1)
        return [Slot(place * self.width, *self._slots.get(place, (0, 0))) for place in places]
