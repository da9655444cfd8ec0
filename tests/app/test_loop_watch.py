from __future__ import annotations

import time

import pytest
import trio
from structlog.testing import capture_logs

from mcpmux.app.loop_watch import HELD_SECONDS, PAUSE_SECONDS, SAMPLE_SECONDS, LoopWatch
from mcpmux.channels.opener import open_duplex_channel
from tests.peers.pipe import open_memory_pipes
from tests.step_watch import run_watched


async def test_rounds_that_hold_the_event_loop_are_in_the_log(autojump_clock: trio.testing.MockClock) -> None:
    processor = [0.0]
    watch = LoopWatch(lambda: processor[0], lambda: processor[0])

    async def hold(seconds: float) -> None:
        processor[0] += seconds
        await trio.sleep(1)

    trio.lowlevel.add_instrument(watch)
    with capture_logs() as logs:
        await trio.sleep(PAUSE_SECONDS)
        await hold(HELD_SECONDS / 2)
        assert logs == []
        for seconds in (0.25, 0.5, 0.75):
            await hold(seconds)
        assert [(log["longest_ms"], log["times"]) for log in logs] == [(250, 1)]
        await trio.sleep(PAUSE_SECONDS)
        await hold(0.125)
    trio.lowlevel.remove_instrument(watch)
    assert [(log["longest_ms"], log["times"]) for log in logs] == [(250, 1), (750, 3)]
    assert {log["log_level"] for log in logs} == {"warning"}


async def test_the_processors_time_is_not_read_in_each_round(autojump_clock: trio.testing.MockClock) -> None:
    reads = 0

    def clock() -> float:
        nonlocal reads
        reads += 1
        return 0.0

    wall = [0.0]
    trio.lowlevel.add_instrument(watch := LoopWatch(clock, lambda: wall[0]))
    for _ in range(100):
        wall[0] += SAMPLE_SECONDS / 10
        await trio.sleep(1)
    trio.lowlevel.remove_instrument(watch)
    assert reads <= 12


async def _hold_in_each_task() -> None:
    """Hold the event loop in a task of the test, and in one of mcpmux's that does what the test gives it."""

    def hold() -> None:
        until = time.thread_time() + 1.5 * HELD_SECONDS
        while time.thread_time() < until:
            pass

    def hear(_notification: object) -> None:
        hold()
        is_held.set()

    is_held = trio.Event()
    ours, theirs = open_memory_pipes()
    async with open_duplex_channel(theirs, hear):
        hold()
        await ours.send(b'{"jsonrpc":"2.0","method":"notifications/x"}')
        await is_held.wait()


def test_a_test_fails_when_mcpmux_holds_the_event_loop() -> None:
    with pytest.raises(AssertionError, match=r"^steps of over 100 ms: channel reader: \d+ ms$"):
        run_watched(_hold_in_each_task)
