"""How a command runs what is asynchronous."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple

import trio

Given = TypeVarTuple("Given")
Result = TypeVar("Result")


def run(work: Callable[[*Given], Awaitable[Result]], *given: *Given) -> Result:
    """Do `work` and return what it returns. Raises what it raises, and KeyboardInterrupt for Ctrl-C.

    Ctrl-C interrupts it where it waits, never in the middle of a step: what is half made cannot clean up.
    """
    return trio.run(work, *given, restrict_keyboard_interrupt_to_checkpoints=True)
