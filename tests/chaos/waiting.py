"""Waiting for what nobody tells: processes that end, tables that become empty."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trio

POLL_SECONDS = 0.05


async def until(condition: Callable[[], object], seconds: float) -> bool:
    """Wait until something is so; False when it is not in time."""
    with trio.move_on_after(seconds):
        while not condition():  # noqa: ASYNC110 - it is looked at from outside
            await trio.sleep(POLL_SECONDS)
        return True
    return bool(condition())


def count_descriptors(pid: int | str = "self") -> int:
    """How many files, pipes and sockets a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
