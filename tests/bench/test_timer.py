"""Waiting for a moment: never early, hardly late, and again and again."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest
import trio

from mcpmux.bench.schedule import SHORT_SECONDS, open_timer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no timerfd")

SLACK_SECONDS = 1.0  # on a busy machine; a timer that does not end is what is looked for


@pytest.mark.parametrize("wait", [-1.0, 0.0, 1e-9, 0.0001, SHORT_SECONDS, 3 * SHORT_SECONDS, 0.02])
async def test_it_wakes_after_the_moment(wait: float) -> None:
    with open_timer() as sleep_until, trio.fail_after(30):
        for _ in range(3):
            moment = trio.current_time() + wait
            await sleep_until(moment)
            assert moment <= trio.current_time() < max(moment, trio.current_time() - 1) + SLACK_SECONDS


async def test_a_wait_that_was_cut_off_does_not_spoil_the_next() -> None:
    with open_timer() as sleep_until, trio.fail_after(30):
        with trio.CancelScope() as scope:
            scope.cancel()
            await sleep_until(trio.current_time() + 1.5 * SHORT_SECONDS)
        assert scope.cancelled_caught
        await trio.sleep(2 * SHORT_SECONDS)  # the first wait would be over by now
        moment = trio.current_time() + SHORT_SECONDS
        await sleep_until(moment)
        assert trio.current_time() >= moment


async def test_even_no_wait_lets_others_run() -> None:
    ran: list[bool] = []
    with open_timer() as sleep_until:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.lowlevel.checkpoint)
            nursery.start_soon(_note, ran)
            await sleep_until(trio.current_time() - 1)
            await sleep_until(trio.current_time() - 1)
            assert ran == [True]


async def _note(ran: list[bool]) -> None:
    ran.append(True)


def timers() -> int:
    """Count the timers of the kernel that this process has."""
    files = Path("/proc/self/fd").iterdir()
    return sum(file.is_symlink() and str(file.readlink()).endswith("[timerfd]") for file in files)


async def test_its_descriptor_is_given_back() -> None:
    count = timers()
    with open_timer():
        assert timers() == count + 1
    assert timers() == count


async def test_without_timers_of_the_kernel_it_is_the_event_loop_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_arguments, **_options: object())
    with open_timer() as sleep_until:
        assert sleep_until is trio.sleep_until
