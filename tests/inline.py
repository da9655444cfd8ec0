"""Exchanges as the edges to clients run them: without a task as long as that can be."""

from __future__ import annotations

from collections.abc import Awaitable
from contextvars import copy_context
from typing import TypeVar

import trio

from mcpmux.transports.inline import Inline

T = TypeVar("T")


async def run_inline(work: Awaitable[T]) -> T:
    """Await `work` inline, and return its result. When cancelled, cancel it as an impatient client does."""
    results: list[T] = []

    async def keep() -> None:
        results.append(await work)

    changed = trio.Event()
    running = Inline(keep(), copy_context(), changed.set)
    if running.start():
        try:
            await changed.wait()
        except trio.Cancelled:
            await running
            raise
    await running
    return results[0]
