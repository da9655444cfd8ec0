"""How often something may have changed at each upstream, counted for all processes that serve together.

An answer is asked for in one generation of its upstream and may be used again in that one only. What a
client does begins another generation twice: when it is sent, and when it is over, however it ends. So nobody
who asks after an act gets what was asked for before its end, in any process, and none has to tell another.

    act(name)   another generation for every process
    hear(name)  another generation for every other process; this one knows what exactly has changed

Layout of the counters: a row for each process, which it alone writes, of 64-bit counters: SLOTS of acts,
then SLOTS of what was heard. Upstreams share a slot when the hash of their names is the same, which only
makes what is remembered of them old too early. Slot 0 is for what is made of all upstreams together.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from zlib import crc32

SLOTS: Final = 256
ALL: Final = ""
"""In place of a name: all upstreams together. No upstream has this name."""

ROW_BYTES: Final = 2 * SLOTS * 8


class Generations:
    """The counters, and the row of this process in them, one of as many `processes`."""

    def __init__(self, counters: memoryview | None = None, process: int = 0, processes: int = 1) -> None:
        """`counters`: ROW_BYTES for each process, all zero at first, in memory that they share.

        Without it, those of one process that shares nothing.
        """
        data = memoryview(bytearray(ROW_BYTES)) if counters is None else counters
        self._counts = data.cast("B").cast("Q")
        self._row = process * 2 * SLOTS
        self.processes = processes

    def __repr__(self) -> str:
        return f"<Generations {self.of(ALL)}, row {self._row // (2 * SLOTS)} of {self.processes}>"

    def act(self, name: str) -> None:
        """Something was done at an upstream, or is being done."""
        counts, begin = self._counts, self._row
        counts[begin + _slot(name)] += 1
        counts[begin] += 1

    def hear(self, name: str) -> None:
        """An upstream has said that something has changed, and this process has forgotten that."""
        if self.processes > 1:
            counts, begin = self._counts, self._row + SLOTS
            counts[begin + _slot(name)] += 1
            counts[begin] += 1

    def of(self, name: str) -> int:
        """The generation of an upstream, or of ALL, for this process."""
        counts, slot = self._counts, _slot(name)
        if self.processes == 1:
            return counts[slot]
        heard = sum(counts[SLOTS + slot :: 2 * SLOTS]) - counts[self._row + SLOTS + slot]
        return sum(counts[slot :: 2 * SLOTS]) + heard


@lru_cache(maxsize=4096)
def _slot(name: str) -> int:
    return crc32(name.encode()) % (SLOTS - 1) + 1 if name else 0
