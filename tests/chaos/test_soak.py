"""A day of traffic in little time: clients come, ask, listen, give up and vanish, and mcpmux does not grow.

mcpmux is a separate process here, so that only its own memory is measured. The short test is for every day;
`MCPMUX_CHAOS_SEED` sets another seed.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trio

from tests.chaos.clients import HttpClient
from tests.chaos.load import SHARED, Load
from tests.chaos.victims import Victim, Web
from tests.chaos.waiting import POLL_SECONDS, count_descriptors, count_kilobytes, read_metrics, until
from tests.peers.revision import LEGACY, MODERN, Json
from tests.real.mux import HttpMux, descendants

SEED = os.environ.get("MCPMUX_CHAOS_SEED", "7")
TOKEN = "the-token-of-the-soak"
NAMES = ("stdio-legacy", "stdio-modern", "http-both")
VISITORS = 8  # clients at a time
ASKS = 6  # exchanges of one visit, besides those that open, listen and change
SESSION_IDLE = 1.0  # seconds until mcpmux forgets who has vanished
ANSWER_SECONDS = 10.0  # trio remembers deadlines that do not count any more until they have passed
PATIENCE: Json = {"request_timeout": ANSWER_SECONDS, "timeouts": {"tools/call": ANSWER_SECONDS}}
HEAR_SECONDS = 20.0
END_SECONDS = 20.0
SWEEP_SECONDS = 1.5  # until mcpmux has looked for who has vanished

DESCRIPTORS = 4  # more than before, for what passes just then
COUNTED = "client_sessions|listening_clients|upstream_subscriptions|exchanges_in_flight"
TABLES = re.compile(rf"^mcpmux_(?:{COUNTED})(?:\{{.*\}})? (.+)$", re.MULTILINE)


class Soak:
    """mcpmux at `port`, with its admin listener."""

    def __init__(self, mux: HttpMux, port: int, admin: int | None) -> None:
        self._pid, self._port, self._admin = mux.pid, port, admin
        self._load = Load(list(NAMES), set(NAMES), ANSWER_SECONDS, SEED)
        self._chance = random.Random(SEED)

    @property
    def exchanges(self) -> int:
        return sum(self._load.verdicts.outcomes.values())

    def descriptors(self) -> int:
        return count_descriptors(self._pid)

    def kilobytes(self) -> int:
        """Return the process's private memory in kilobytes."""
        return count_kilobytes(self._pid)

    async def visits(self, count: int) -> None:
        """Let `count` clients come and go, some at a time."""
        left = iter(range(count))
        async with trio.open_nursery() as nursery:
            for _ in range(VISITORS):
                nursery.start_soon(self._visit_on, left)
        assert not self._load.verdicts.wrong, "\n".join(self._load.verdicts.wrong[:20])
        await self._is_empty()

    async def _visit_on(self, left: object) -> None:
        for _ in left:  # type: ignore[attr-defined]
            await self._visit(random.Random(self._chance.random()))

    async def _visit(self, chance: random.Random) -> None:
        """Live the life of one client."""
        async with trio.open_nursery() as nursery:
            client = HttpClient(self._port, chance.choice((MODERN, LEGACY)), nursery)
            await client.open()
            name = chance.choice(NAMES)
            if listens := chance.random() < 0.5:
                await client.subscribe([f"{name}+{SHARED}" for name in NAMES])
            for _ in range(ASKS):
                await self._load.ask_once(client, chance, chance.choice(NAMES))
            if listens:
                call = {"name": f"{name}__touch", "arguments": {"uri": SHARED}}
                assert "result" in await client.ask("tools/call", call)
                assert await until(partial(client.heard.get, f"{name}+{SHARED}"), HEAR_SECONDS)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await (client.close() if chance.random() < 0.5 else client.vanish())

    async def _is_empty(self) -> None:
        """Wait until mcpmux reports no clients."""
        if self._admin is None:
            await trio.sleep(SESSION_IDLE + SWEEP_SECONDS)
            return
        counts: list[str] = []
        with trio.move_on_after(END_SECONDS):
            while not counts or any(float(count) for count in counts):
                await trio.sleep(POLL_SECONDS)
                counts = TABLES.findall(await trio.to_thread.run_sync(read_metrics, self._admin, TOKEN))
        assert counts and not any(float(count) for count in counts), counts


@asynccontextmanager
async def soaking(tmp_path: Path, *, watched: bool) -> AsyncIterator[Soak]:
    """Run mcpmux in front of three servers. `watched`: with an admin listener, which sees every message."""
    web = Web("http-both", "both", tmp_path, random.Random(SEED))
    processes = descendants(os.getpid())
    async with trio.open_nursery() as nursery:
        await nursery.start(web.run)
        upstreams = {
            name: {"command": command[0], "args": command[1:], **PATIENCE}
            for name in NAMES[:2]
            for command in [Victim(name, name.partition("-")[2], tmp_path).command]
        }
        config: Json = {
            "upstreams": {**upstreams, web.name: {"url": web.url, **PATIENCE}},
            "limits": {"session_idle": SESSION_IDLE},
        }
        if watched:
            config["admin"] = {"port": 0, "token": TOKEN, "keep_exchanges": 100}
        path = tmp_path / "mcpmux.json"
        path.write_text(json.dumps(config))
        with HttpMux(path) as mux:
            admin = urlsplit(mux.line(containing="http").strip().split()[-1]).port if watched else None
            port = urlsplit(mux.url).port
            assert port is not None
            yield Soak(mux, port, admin)
            assert mux.stop() == 0
        nursery.cancel_scope.cancel()
    assert descendants(os.getpid()) - processes == set()


async def run_soak(tmp_path: Path, warm: int, visits: int, kilobytes: int, *, watched: bool) -> None:
    """Check that memory grows little between the end of the warm visits and the end of all."""
    async with soaking(tmp_path, watched=watched) as soak:
        await soak.visits(warm)
        count, memory, descriptors = soak.exchanges, soak.kilobytes(), soak.descriptors()
        await soak.visits(visits)
        more, larger = soak.descriptors() - descriptors, soak.kilobytes() - memory
        exchanges = soak.exchanges - count
        print(f"{visits} visits, {exchanges} exchanges: {more:+} descriptors, {larger:+} kB of {memory}")
        assert more <= DESCRIPTORS
        assert larger < kilobytes


async def test_clients_that_come_and_vanish_leave_nothing_behind(tmp_path: Path) -> None:
    """Tables and descriptors to the last; memory roughly, as the admin listener still fills what it shows."""
    await run_soak(tmp_path, warm=60, visits=100, kilobytes=8000, watched=True)


@pytest.mark.slow
async def test_a_day_of_clients_leaves_nothing_behind(tmp_path: Path) -> None:
    await run_soak(tmp_path, warm=900, visits=1500, kilobytes=4000, watched=False)
