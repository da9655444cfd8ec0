from __future__ import annotations

import trio
from structlog.testing import capture_logs

from mcpmux.app.loop_watch import HELD_SECONDS, PAUSE_SECONDS, LoopWatch


async def test_rounds_that_hold_the_event_loop_are_in_the_log(autojump_clock: trio.testing.MockClock) -> None:
    processor = [0.0]
    watch = LoopWatch(lambda: processor[0])

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
        assert [(each["longest_ms"], each["times"]) for each in logs] == [(250, 1)]
        await trio.sleep(PAUSE_SECONDS)
        await hold(0.125)
    trio.lowlevel.remove_instrument(watch)
    assert [(each["longest_ms"], each["times"]) for each in logs] == [(250, 1), (750, 3)]
    assert {each["log_level"] for each in logs} == {"warning"}
