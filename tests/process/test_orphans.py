"""Children of a process that is killed: real processes, which do what they can to stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from textwrap import dedent

import pytest
import trio

from mcpmux.transports.orphan_guard import OrphanGuard
from mcpmux.transports.process import ChildProcess, StopLadder, open_process
from tests.process.running import ended, is_gone

LADDER = StopLadder(close_seconds=0.05, terminate_seconds=0.05)
LIMIT = 100_000

STUBBORN = """
    import signal, subprocess, sys
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    if len(sys.argv) > 1:
        child = subprocess.Popen([sys.executable, sys.argv[0]], stdin=subprocess.DEVNULL)
        print(child.pid, flush=True)
    else:
        print("ready", flush=True)
    while True:
        signal.pause()
"""
OWNER = """
    import sys, trio
    from mcpmux.transports.orphan_guard import OrphanGuard
    from mcpmux.transports.process import StopLadder, open_process

    async def main():
        guard = OrphanGuard()
        options = dict(stop=StopLadder(1, 1), on_stderr_line=print, max_message_bytes=1000, guard=guard)
        async with open_process(sys.executable, sys.argv[1:], {}, None, **options) as child:
            print(child.pid, guard.pid, (await child.receive()).decode(), flush=True)
            await trio.sleep_forever()

    trio.run(main)
"""


def guarded(guard: OrphanGuard, command: str, *args: str) -> AbstractAsyncContextManager[ChildProcess]:
    """Return the context of a child that `guard` guards."""
    return open_process(
        command, args, {}, None, stop=LADDER, on_stderr_line=print, max_message_bytes=LIMIT, guard=guard
    )


@pytest.fixture
def stubborn(tmp_path: Path) -> Path:
    path = tmp_path / "stubborn.py"
    path.write_text(dedent(STUBBORN))
    return path


async def test_no_child_nor_grandchild_outlives_an_owner_that_is_killed(stubborn):
    with trio.fail_after(20):
        owner = await trio.lowlevel.open_process(
            [sys.executable, "-c", dedent(OWNER), str(stubborn), "parent"], stdout=subprocess.PIPE
        )
        assert owner.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            line += await owner.stdout.receive_some()
        child, reaper, grandchild = map(int, line.split())
        assert not any(map(is_gone, (child, reaper, grandchild)))
        owner.send_signal(signal.SIGKILL)
        await owner.wait()
        for pid in (child, grandchild, reaper):
            await ended(pid)


async def test_one_reaper_runs_as_long_as_there_is_a_child(stubborn):
    guard = OrphanGuard()
    assert guard.pid is None
    with trio.fail_after(10):
        async with guarded(guard, sys.executable, str(stubborn)):
            first = guard.pid
            assert first is not None
            async with guarded(guard, sys.executable, str(stubborn)):
                assert guard.pid == first
            assert not is_gone(first)
    assert guard.pid is None
    assert is_gone(first)


async def test_a_reaper_that_is_killed_is_replaced_and_knows_the_children(stubborn, monkeypatch):
    monkeypatch.setattr("mcpmux.transports.orphan_guard.AGAIN_SECONDS", 0.01)
    guard = OrphanGuard()
    with trio.fail_after(20):
        async with guarded(guard, sys.executable, str(stubborn)) as child:
            assert await child.receive() == b"ready"
            first = guard.pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            while guard.pid in (first, None):  # noqa: ASYNC110  # no event tells of it
                await trio.sleep(0.01)
            second, reaper = guard.pid, guard._reaper
            assert second is not None and reaper is not None and reaper.stdin is not None
            await reaper.stdin.aclose()  # as the kernel does when we are killed
            assert await child.wait() == -signal.SIGKILL
    assert is_gone(second)


async def test_a_guard_that_cannot_start_its_reaper_lets_the_child_run(stubborn, monkeypatch):
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    with trio.fail_after(10):
        async with guarded(OrphanGuard(), "cat") as child:
            await child.send(b"hello")
            assert await child.receive() == b"hello"


async def test_the_reaper_does_not_end_what_mcpmux_has_ended_itself(stubborn):
    with trio.fail_after(20):
        reaper = await trio.lowlevel.open_process(
            [sys.executable, "-I", "-S", "mcpmux/transports/orphan_reaper.py"], stdin=subprocess.PIPE
        )
        spared = await trio.lowlevel.open_process(
            [sys.executable, str(stubborn)], stdout=subprocess.PIPE, start_new_session=True
        )
        assert reaper.stdin is not None and spared.stdout is not None
        try:
            await spared.stdout.receive_some()
            await reaper.stdin.send_all(b"+%d\n-%d\n" % (spared.pid, spared.pid))
            await reaper.stdin.aclose()
            assert await reaper.wait() == 0
            assert spared.poll() is None
        finally:
            spared.kill()
            await spared.wait()
