"""A read is never older than any change by a client, in any worker and any order.

A server has a number that each call raises while it works, some time before it answers. Its lists and its
one resource say the number and are fresh for a minute. Whoever asks after a call has ended, answered or
cancelled, gets at least the number that it has made.
"""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mcpmux.config import Caching
from mcpmux.mux.cache import ROW_BYTES, Generations
from tests.peers.client import ScriptedClient
from tests.peers.revision import MODERN, Json
from tests.peers.server import ScriptedServer
from tests.runtime.world import World, open_world

FRESH = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "public"}
WORKERS, CLIENTS, STEPS = 2, 3, 40
LONGEST_SECONDS = 0.2


class State:
    """The state that all connections of the server share.

    `made`: the number that each call has made, so far; `ended`: the highest of those that have ended.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.number = 0
        self.made: dict[str, int] = {}
        self.ended = 0

    async def pause(self) -> None:
        await trio.sleep(self.chance.choice((0.0, 0.01, self.chance.uniform(0, LONGEST_SECONDS))))


class Counting(ScriptedServer):
    def __init__(self, state: State) -> None:
        super().__init__(MODERN, resources=[], tools=[])
        self.state = state

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method not in ("resources/list", "resources/read", "tools/call"):
            return await super().handle(method, params, message)
        await self.state.pause()
        if method == "tools/call":
            self.state.number += 1
            self.state.made[params["arguments"]["call"]] = self.state.number
            await self.state.pause()
            return {"resultType": "complete", "content": []}
        number = str(self.state.number)
        await self.state.pause()
        if method == "resources/list":
            return FRESH | {"resources": [{"uri": "memo:n", "name": number}]}
        return FRESH | {"contents": [{"uri": "memo:n", "text": number}]}


async def use(client: ScriptedClient, state: State, seen: list[int]) -> None:
    """Do a client's steps, one after the other."""
    for number in range(STEPS):
        await state.pause()
        step = state.chance.choices(("list", "read", "call", "give up"), (5, 5, 1, 1))[0]
        least = state.ended
        if step in ("list", "read"):
            params = {"uri": "docs+memo:n"} if step == "read" else {}
            result = await client.request("resources/read" if step == "read" else "resources/list", params)
            value = result["contents"][0]["text"] if step == "read" else result["resources"][0]["name"]
            assert int(value) >= least, f"{step} says {value} after {least}"
            seen.append(int(value))
        else:
            name = f"{id(client)} {number}"
            await client.start("tools/call", {"name": "docs__raise", "arguments": {"call": name}})
            if step == "call":
                await client.receive()
                made = state.made[name]
            else:
                await state.pause()
                made = state.made.get(name, 0)
                request = {"requestId": client._ids}
                await client.send({"method": "notifications/cancelled", "params": request})
                discover = await client.start("server/discover")  # is answered behind the cancellation
                while (await client.receive())["id"] != discover:
                    pass  # the answer has overtaken it
            state.ended = max(state.ended, made)


async def run(seed: int, caching: Caching) -> tuple[list[int], int]:
    """Return the values seen, and how often an answer came from the cache."""
    state = State(random.Random(seed))
    counters = memoryview(bytearray(WORKERS * ROW_BYTES))
    seen: list[int] = []
    async with AsyncExitStack() as stack:
        worlds: list[World] = []
        for number in range(WORKERS):
            shared: dict[str, Any] = {"generations": Generations(counters, number, WORKERS)}
            servers = {"docs": Counting(state)}
            worlds.append(await stack.enter_async_context(open_world(servers, caching=caching, **shared)))
        async with trio.open_nursery() as nursery:
            for world in worlds:
                for _ in range(CLIENTS):
                    nursery.start_soon(use, world.client(), state, seen)
        return seen, sum(world.mux.store.count("docs").hits for world in worlds)


@pytest.mark.parametrize("seed", range(12))
def test_no_read_is_older_than_what_was_done_before_it(seed: int):
    seen, hits = trio.run(run, seed, Caching(), clock=MockClock(autojump_threshold=0))
    assert len(seen) > STEPS
    assert hits > 0, "nothing came from memory, so nothing was tried"
