"""No step of the event loop may take long inside mcpmux: every asynchronous test runs under this watch.

It is the watch that mcpmux has in production, for single steps instead of rounds: beside mcpmux's tasks a
round lets those of scripted peers run, whose messages are checked against schemas. Steps count of tasks whose
first function is mcpmux's own. Time counts as the processor's time of the thread, without what garbage
collection takes of it, which looks at everything that a run of tests holds.

A test for which a step has to be long is marked `holds_loop` with the reason.
"""

from __future__ import annotations

import gc
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any, Final

import pytest
import trio

import mcpmux
from mcpmux.app.loop_watch import HELD_SECONDS, LoopWatch

PRODUCT: Final = f"{Path(mcpmux.__file__).parent}/"


class _Collections:
    """Counts the seconds that garbage collection has taken."""

    def __init__(self) -> None:
        self.seconds = self._began = 0.0
        gc.callbacks.append(self._on_collection)

    def _on_collection(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.seconds += time.thread_time() - self._began


_collections: Final = _Collections()


def _clock() -> float:
    return time.thread_time() - _collections.seconds


@cache
def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(PRODUCT)


class StepWatch(LoopWatch):
    """Measures the steps of mcpmux's tasks. `held`: those that were too long, by the names of their tasks.

    `seconds`: of all of them together.
    """

    def __init__(self, clock: Callable[[], float] = _clock) -> None:
        super().__init__(clock)
        self.held: list[str] = []
        self.seconds = 0.0
        self._task = ""

    def before_io_wait(self, timeout: float) -> None:
        """Leave rounds alone."""

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Begin a step, if it is one of mcpmux's."""
        code = getattr(task.coro, "cr_code", None)  # compiled coroutines have none
        self._task = task.name if code is None or _is_ours(code) else ""
        if self._task:
            self.begin()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """End a step."""
        if self._task:
            self.seconds += self.end()

    def report(self, held: float) -> None:
        """Remember a long step."""
        self.held.append(f"{self._task}: {held * 1000:.0f} ms")


def run_watched(
    test: Callable[[], Awaitable[Any]],
    *,
    clock: trio.abc.Clock | None = None,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> Any:
    """Run a test as `trio.run` does. Fails it if a step of mcpmux held the event loop."""
    watch = StepWatch()
    outcome = trio.run(test, clock=clock, instruments=[*instruments, watch])
    assert not watch.held, f"steps of over {HELD_SECONDS * 1000:.0f} ms: {'; '.join(watch.held)}"
    return outcome


def watch_steps(item: pytest.Item) -> None:
    """Let a test run under the watch, if it is an asynchronous one that is not marked `holds_loop`."""
    function = getattr(item, "obj", None)
    if inspect.iscoroutinefunction(function) and not item.get_closest_marker("holds_loop"):
        item.add_marker(pytest.mark.trio(run=run_watched))
