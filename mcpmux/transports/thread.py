"""Run blocking work in a thread of trio, where the system may have no more threads.

Background tasks use it: what ends one of them ends mcpmux.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, TypeVarTuple

import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

NO_THREAD = "can't start new thread"  # the text of a RuntimeError, as Python has no other type for it


async def run_in_thread(work: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Return what `work` returns. If cancelled, its thread stays behind. Raises OSError: no thread starts."""
    with starting_thread():
        return await trio.to_thread.run_sync(work, *arguments, abandon_on_cancel=True)


@contextmanager
def starting_thread() -> Iterator[None]:
    """Raise OSError in the place of the RuntimeError of a thread that cannot be started."""
    try:
        yield
    except RuntimeError as error:
        if str(error) != NO_THREAD:
            raise
        raise OSError(None, "the system starts no more threads") from None
