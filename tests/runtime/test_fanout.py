"""One resource and a thousand clients: who gets updates, who waits, and the cost."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from subprocess import PIPE

import pytest
import trio
import trio.testing

from mcpmux.errors import TransportClosed
from mcpmux.transports.http.client import HttpPool, HttpResponse
from mcpmux.transports.http.route import HttpOrigin, PoolLimits
from mcpmux.transports.sse import SseDecoder
from tests.peers.client import ScriptedClient
from tests.peers.http_client import HttpClient, request
from tests.peers.pipe import CAPACITY
from tests.peers.revision import LEGACY, MODERN, make_fields, make_request
from tests.peers.subscribable import Subscribable
from tests.runtime.fanout_server import CLIENTS, URIS
from tests.runtime.test_subscriptions import subscribe
from tests.runtime.world import open_world

ROOT = Path(__file__).resolve().parents[2]
UPDATED = "notifications/resources/updated"
EACH_ERA = 500  # clients
STUCK = 200
BURST = 10_000  # updates
PATIENCE = 100.0  # seconds, on a busy machine

IDLE_BYTES_LIMIT = 32 * 1024  # of memory for one idle subscriber; it takes 20 KiB
GROWTH_LIMIT = 4 * 1024 * 1024  # bytes that a process may grow by noise alone


async def count_updates(client: ScriptedClient, heard: Counter[ScriptedClient]) -> None:
    """Read all the time."""
    with suppress(TransportClosed):
        while True:
            if (await client.receive_raw()).get("method") == UPDATED:
                heard[client] += 1


@pytest.mark.slow
async def test_a_thousand_clients_get_updates_past_those_who_do_not_read(autojump_clock):
    server = Subscribable(MODERN)
    async with open_world({"x": server, "y": Subscribable(LEGACY)}) as world, trio.open_nursery() as nursery:
        clients = [world.client() for _ in range(2 * EACH_ERA)]
        for client in clients[:EACH_ERA]:
            await client.initialize(LEGACY)
        for client in clients:
            await subscribe(client, ["x+memo:1"])
        assert server.subscribes == {"memo:1": 1}

        updates: Counter[ScriptedClient] = Counter()
        stuck = clients[:: len(clients) // STUCK]
        reading = [client for client in clients if client not in stuck]
        for client in reading:
            nursery.start_soon(count_updates, client, updates)
        began = trio.current_time()
        for number in range(1, 2 * CAPACITY):
            await server.update("memo:1")
            await trio.testing.wait_all_tasks_blocked()
            assert {updates[client] for client in reading} == {number}
        assert trio.current_time() == began  # nothing but the update itself was needed, least of all time

        for client in stuck:
            nursery.start_soon(count_updates, client, updates)
        await trio.testing.wait_all_tasks_blocked()
        assert {updates[client] for client in stuck} == {
            CAPACITY + 2
        }  # one in hand, and one for all the rest
        nursery.cancel_scope.cancel()


# Over HTTP, with mcpmux in a separate process


class Child:
    """The process of `fanout_server`."""

    def __init__(self, process: trio.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self.stdin, self.stdout = process, process.stdin, process.stdout
        self._lines = b""
        self.port = 0

    def resident_bytes(self) -> int:
        """Return the memory that it has in use."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    async def line(self) -> str:
        """Return the next line of its output."""
        while b"\n" not in self._lines:
            chunk = await self.stdout.receive_some()
            assert chunk, "the process has ended"
            self._lines += chunk
        line, _, self._lines = self._lines.partition(b"\n")
        return line.decode()

    async def update(self, uri: str, count: int) -> None:
        """Have the server tell of so many updates, and wait until mcpmux has them."""
        await self.stdin.send_all(f"{uri} {count}\n".encode())
        assert await self.line() == "done"


@asynccontextmanager
async def open_child() -> AsyncIterator[Child]:
    command = [sys.executable, "-m", "tests.runtime.fanout_server"]
    process = await trio.lowlevel.open_process(command, stdin=PIPE, stdout=PIPE, cwd=ROOT)
    child = Child(process)
    try:
        with trio.fail_after(PATIENCE):
            child.port = int(await child.line())
            yield child
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            await child.stdin.aclose()
            await child.stdout.aclose()


@pytest.fixture
def _many_files() -> Iterator[None]:
    """Allow a thousand connections, where the system lets us."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < CLIENTS:
        pytest.skip("too few open files are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], CLIENTS), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class HttpListener:
    """One client with its own stream of updates of the first URI. `heard` counts them."""

    def __init__(self, pool: HttpPool, uris: list[str]) -> None:
        self._client = HttpClient(pool)
        self._exposed = [f"x+{uri}" for uri in uris]
        self.heard: Counter[str] = Counter()

    async def open_session(self) -> AbstractAsyncContextManager[HttpResponse]:
        """Return the context of a legacy session's own stream, after it has subscribed."""
        session = await self._client.initialize(LEGACY)
        for uri in self._exposed:
            await self._client.send(request("resources/subscribe", {"uri": uri}), session)
        return self._client.open(None, session, "GET")

    async def open_listen(self) -> AbstractAsyncContextManager[HttpResponse]:
        """Return the context of a modern listen."""
        message = make_request(
            "subscriptions/listen", {"notifications": {"resourceSubscriptions": self._exposed}}
        )
        return self._client.open(message, make_fields(MODERN, message))

    async def run(self, revision: str, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Subscribe and count updates until cancelled. Started once the stream is open."""
        stream = await (self.open_listen() if revision == MODERN else self.open_session())
        decoder = SseDecoder(1 << 20)
        async with stream as response:
            while chunk := await response.receive_some():
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED
                self.take(decoder, chunk)

    def take(self, decoder: SseDecoder, chunk: bytes) -> None:
        for event in decoder.feed(chunk):
            message = json.loads(event.data) if event.data else {}
            if message.get("method") == UPDATED:
                self.heard[message["params"]["uri"]] += 1


async def crowd(child: Child, pool: HttpPool, revision: str, nursery: trio.Nursery) -> list[HttpListener]:
    """Open so many clients of an era, each with its stream."""
    listeners = [HttpListener(pool, URIS[:1]) for _ in range(EACH_ERA)]
    for listener in listeners:
        await nursery.start(listener.run, revision)
    return listeners


@pytest.mark.process
@pytest.mark.usefixtures("_many_files")
async def test_a_thousand_streams_over_http_cost_little_and_all_hear():
    async with open_child() as child, trio.open_nursery() as nursery:
        limits = PoolLimits(connections=CLIENTS)
        with HttpPool(HttpOrigin(False, "127.0.0.1", child.port), limits=limits) as pool:
            for revision in (LEGACY, MODERN):  # what is loaded at the first use is not the price of a client
                await nursery.start(HttpListener(pool, URIS[:1]).run, revision)
            listeners: list[HttpListener] = []
            for revision in (LEGACY, MODERN):
                earlier = child.resident_bytes()
                listeners += await crowd(child, pool, revision, nursery)
                cost = (child.resident_bytes() - earlier) / EACH_ERA
                print(f"an idle subscriber of {revision} costs {cost / 1024:.1f} KiB")
                assert cost < IDLE_BYTES_LIMIT
            await child.update(URIS[0], 1)
            while not all(listener.heard for listener in listeners):
                await trio.lowlevel.checkpoint()
            assert {listener.heard[f"x+{URIS[0]}"] for listener in listeners} == {1}
            nursery.cancel_scope.cancel()


@pytest.mark.process
@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_a_burst_over_http_takes_no_memory_and_ends_with_everything(revision: str):
    async with open_child() as child:
        with HttpPool(HttpOrigin(False, "127.0.0.1", child.port)) as pool:
            listener = HttpListener(pool, URIS)
            stream = await (listener.open_listen() if revision == MODERN else listener.open_session())
            async with stream as response:
                decoder = SseDecoder(1 << 20)
                listener.take(decoder, await response.receive_some())
                await child.update("*", 1000)  # what a first burst leaves in use is not growth
                earlier = child.resident_bytes()
                await child.update("*", BURST)
                assert child.resident_bytes() - earlier < GROWTH_LIMIT
                while len(listener.heard) < len(URIS):
                    listener.take(decoder, await response.receive_some())
                count = sum(listener.heard.values())
                await child.update(URIS[0], 1)
                listener.heard.clear()
                while listener.heard[f"x+{URIS[0]}"] == 0:
                    listener.take(decoder, await response.receive_some())
                assert count + sum(listener.heard.values()) < BURST / 2
