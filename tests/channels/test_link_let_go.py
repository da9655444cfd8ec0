"""A message that was read is let go of, however long the next one takes: it may be the largest there is."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest
from trio.testing import wait_all_tasks_blocked

from mcpmux.channels.opener import open_duplex_channel
from tests.peers.pipe import MemoryPipe, PromptMemoryPipe, open_memory_pipes

HELD_HERE = 2  # by the test, and by the question


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("kind", [MemoryPipe, PromptMemoryPipe])
@pytest.mark.parametrize("said", ['{"jsonrpc": "2.0", "method": "notifications/x"}', "no message at all"])
async def test_what_was_read_is_not_kept_until_the_next_message(kind, said):
    ours, theirs = open_memory_pipes(kind=kind)
    message = said.encode()
    async with open_duplex_channel(ours, lambda _: None) as link:
        await theirs.send(message)
        await wait_all_tasks_blocked()
        assert sys.getrefcount(message) == HELD_HERE
        await theirs.send(message)
        await theirs.aclose()
        await link.ended.wait()
        assert sys.getrefcount(message) == HELD_HERE
