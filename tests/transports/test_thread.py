"""A system that starts no more threads."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from mcpmux.transports.byte_stream import reason_of
from mcpmux.transports.thread import run_in_thread

MANY = 200  # more than trio keeps idle
NO_STACK = 2**47  # bytes, more than there are addresses: the system refuses a thread with it


async def test_a_thread_that_cannot_be_started_is_an_error_of_the_system() -> None:
    reasons, done = list[str](), threading.Event()
    limiter = trio.to_thread.current_default_thread_limiter()
    usual = limiter.total_tokens

    async def wait() -> None:
        try:
            await run_in_thread(done.wait)
        except OSError as error:
            reasons.append(reason_of(error))

    limiter.total_tokens = MANY
    former = threading.stack_size(NO_STACK)
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(MANY):
                nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            done.set()
    finally:
        threading.stack_size(former)
        limiter.total_tokens = usual
    assert set(reasons) == {"the system starts no more threads"}


async def test_other_errors_of_the_work_stay() -> None:
    def fail() -> None:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        await run_in_thread(fail)
