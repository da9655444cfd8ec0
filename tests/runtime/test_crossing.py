"""Ten clients with equal messages: equal request ids and progress tokens, at once, on the same tools.

Every call has a unique key, which the server puts into all messages about the call: a message that reaches
another call has crossed. A seed decides in which order calls go on, end, fail and are cancelled.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import trio
import trio.testing

from mcpmux import app
from mcpmux.clients.http_endpoint import HttpEndpoint
from mcpmux.config import Config, Http, Limits, Upstream
from mcpmux.errors import TransportClosed
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin
from mcpmux.transports.sse import SseDecoder
from tests.oracle import SchemaOracle
from tests.peers.client import ScriptedClient
from tests.peers.http_client import HttpClient
from tests.peers.http_server import open_http_face
from tests.peers.revision import CAPABILITIES, CLIENT_INFO, LEGACY, MODERN, VERSION, Json
from tests.peers.server import RpcFailure, ScriptedServer
from tests.runtime.http_front import start_endpoint
from tests.runtime.world import open_world

CLIENTS = [LEGACY, MODERN] * 5
TOKENS: list[Any] = [0, 1, "1", None]  # None: a call that wants no progress
UPSTREAMS = {"x": LEGACY, "y": MODERN}
CLIENT = {"name": "crossing", "version": "1"}
PATIENCE = 20.0  # seconds for one round, on a busy machine


class Fate(NamedTuple):
    """The fate of a call: the number of its progress notifications, and its end.

    `late`: it is cancelled, and answered nevertheless.
    """

    steps: int
    end: str

    @property
    def cancelled(self) -> bool:
        return self.end in ("cancel", "late")


class Worker(ScriptedServer):
    """Its tool follows the fate of each call. `begun` has the request id of each key."""

    def __init__(self, revision: str) -> None:
        tool = {"name": "work", "inputSchema": {"type": "object"}}
        super().__init__(revision, tools=[tool], handlers={"tools/call": Worker.work})
        self.begun: dict[str, Any] = {}
        self.stopped: Counter[str] = Counter()
        self._orders: dict[str, trio.MemorySendChannel[str]] = {}
        self._changed = trio.lowlevel.ParkingLot()

    async def until(self, what: Any) -> None:
        """Wait until `what()` holds."""
        while not what():
            await self._changed.park()

    def order(self, key: str, order: str) -> None:
        self._orders[key].send_nowait(order)

    async def work(self, params: Json, message: Json) -> Json:
        key = params["arguments"]["key"]
        assert key not in self.begun, "asked twice"
        self._orders[key], orders = trio.open_memory_channel[str](100)
        self.begun[key] = message["id"]
        self._changed.unpark_all()
        try:
            async for order in orders:
                if order == "step":
                    await self.say_progress(params, message)
                elif order == "fail":
                    raise RpcFailure(-32000, key, {"key": key})
                else:
                    break
        except trio.Cancelled:
            self.stopped[key] += 1
            self._changed.unpark_all()
            if params["arguments"]["late"]:
                with trio.CancelScope(shield=True):
                    await self.say_progress(params, message)
                    await self.send({"id": message["id"], "result": self.result(key)})
            raise
        return self.result(key)

    async def say_progress(self, params: Json, message: Json) -> None:
        """Send progress also without a token: then about the request's id, as a careless server would."""
        token = params.get("_meta", {}).get("progressToken", message["id"])
        about = {"progressToken": token, "progress": 1, "message": params["arguments"]["key"]}
        await self.send({"method": "notifications/progress", "params": about})

    def result(self, key: str) -> Json:
        result: Json = {"content": [{"type": "text", "text": key}]}
        return result | ({"resultType": "complete"} if self.modern else {})


class Caller:
    """One client. Each message to it is judged at once."""

    def __init__(self, revision: str) -> None:
        self.revision = revision
        self.keys: dict[int, str] = {}
        self.tokens: dict[str, Any] = {}
        self.progress: Counter[str] = Counter()
        self.answers: dict[str, Json] = {}
        self._ids = 100
        self._changed = trio.lowlevel.ParkingLot()

    def request(self, upstream: str, key: str, token: Any, late: bool) -> Json:
        """Return the request of a call. All clients count their ids alike."""
        self._ids += 1
        self.keys[self._ids], self.tokens[key] = key, token
        meta: Json = {} if token is None else {"progressToken": token}
        if self.revision == MODERN:
            meta |= {VERSION: MODERN, CLIENT_INFO: CLIENT, CAPABILITIES: {}}
        params: Json = {"name": f"{upstream}__work", "arguments": {"key": key, "late": late}}
        params |= {"_meta": meta} if meta else {}
        return {"jsonrpc": "2.0", "id": self._ids, "method": "tools/call", "params": params}

    def hear(self, message: Json, of: str | None = None) -> None:
        """Check a message and keep it. `of`: the key of the call on whose stream it came."""
        SchemaOracle(self.revision).check_from_server(message, "tools/call")
        if message.get("method") == "notifications/progress":
            key = message["params"]["message"]
            assert of in (None, key)
            token = message["params"]["progressToken"]
            assert (self.tokens[key], type(self.tokens[key])) == (token, type(token))
            assert key not in self.answers, "progress after the answer"
            self.progress[key] += 1
        elif "id" in message:
            key = self.keys[message["id"]]
            assert of in (None, key)
            assert key not in self.answers, "answered twice"
            self.answers[key] = message
            body = message.get("error") or message["result"]["content"][0]
            assert body.get("message", body.get("text")) == key
        self._changed.unpark_all()

    async def until_answered(self, key: str) -> None:
        while key not in self.answers:
            await self._changed.park()

    def id_of(self, key: str) -> int:
        return next(number for number, of in self.keys.items() if of == key)


class PipeCaller(Caller):
    """A client on a pipe of its own."""

    def __init__(self, client: ScriptedClient) -> None:
        super().__init__(client.revision)
        self._client = client

    async def listen(self) -> None:
        with suppress(TransportClosed):
            while True:
                self.hear(await self._client.receive_raw())

    async def call(self, upstream: str, key: str, token: Any, late: bool, nursery: trio.Nursery) -> None:
        await self._client.send(self.request(upstream, key, token, late))

    async def cancel(self, key: str) -> None:
        params = {"requestId": self.id_of(key)}
        await self._client.send({"method": "notifications/cancelled", "params": params})

    async def vanish(self) -> None:
        await self._client.vanish()


class HttpCaller(Caller):
    """A client with connections of its own."""

    def __init__(self, revision: str, pool: HttpPool) -> None:
        super().__init__(revision)
        self._client = HttpClient(pool)
        self._session: Json = {"MCP-Protocol-Version": revision}
        self._scopes: dict[str, trio.CancelScope] = {}

    async def greet(self) -> None:
        """Open a session, in the era that has them."""
        if self.revision != MODERN:
            self._session = await self._client.initialize(self.revision)

    async def call(self, upstream: str, key: str, token: Any, late: bool, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._exchange, key, self.request(upstream, key, token, late))

    async def _exchange(self, key: str, message: Json) -> None:
        headers = self._session | {"Mcp-Method": "tools/call", "Mcp-Name": message["params"]["name"]}
        with trio.CancelScope() as self._scopes[key]:
            async with self._client.open(message, headers) as response:
                decoder = SseDecoder(1 << 20)
                if response.status == 202:  # the client has taken it back, so there is no answer
                    return
                if response.headers["content-type"] == "application/json":
                    self.hear(json.loads(await response.read()), key)
                    return
                while chunk := await response.receive_some():
                    for event in decoder.feed(chunk):
                        if event.data:
                            self.hear(json.loads(event.data), key)

    async def cancel(self, key: str) -> None:
        """Cancel as the era does: by closing the stream or by a notification."""
        if self.revision == MODERN:
            self._scopes[key].cancel()
            return
        cancelled = {"method": "notifications/cancelled", "params": {"requestId": self.id_of(key)}}
        assert (await self._client.send({"jsonrpc": "2.0", **cancelled}, self._session)).status == 202


Calls = dict[str, tuple[Any, Worker, Fate]]
"""Key → its client, its server, and what becomes of it."""


async def play(
    seed: int, callers: list[Any], workers: dict[str, Worker], ends: list[str], nursery: trio.Nursery
) -> None:
    """Play one round: each client makes a call with each token on each upstream, all at once."""
    rng = random.Random(seed)
    calls: Calls = {}
    for number, caller in enumerate(callers):
        for (name, worker), token in product(workers.items(), TOKENS):
            key = f"{seed}/{number}/{name}/{token!r}"
            fate = Fate(rng.randrange(4), rng.choice(ends))
            calls[key] = caller, worker, fate
            await caller.call(name, key, token, fate.end == "late", nursery)
    with trio.fail_after(PATIENCE):
        for key, (_, worker, _) in calls.items():
            await worker.until(partial(worker.begun.__contains__, key))
        await act(rng, calls)
        await settle(calls)
    judge(calls)


async def act(rng: random.Random, calls: Calls) -> None:
    """Let all calls go on and end, in any order."""
    turns = [key for key, (_, _, fate) in calls.items() for _ in range(fate.steps + 1)]
    rng.shuffle(turns)
    left = Counter(turns)
    for key in turns:
        caller, worker, fate = calls[key]
        left[key] -= 1
        if left[key]:
            worker.order(key, "step")
        elif fate.cancelled:
            await caller.cancel(key)
        else:
            worker.order(key, fate.end)


async def settle(calls: Calls) -> None:
    """Wait until every call has been answered, or its cancellation has arrived."""
    for key, (caller, worker, fate) in calls.items():
        if fate.cancelled:
            await worker.until(partial(worker.stopped.__contains__, key))
        else:
            await caller.until_answered(key)


def judge(calls: Calls) -> None:
    """Check that each call had its own fate. (Crossed messages are noticed where they arrive.)"""
    for key, (caller, worker, fate) in calls.items():
        assert worker.stopped[key] == fate.cancelled, (key, fate)
        assert (key in caller.answers) == (not fate.cancelled), (key, fate)
        steps = fate.steps if caller.tokens[key] is not None else 0
        assert caller.progress[key] == steps or (fate.cancelled and caller.progress[key] <= steps), key


def cancellations(worker: Worker) -> Counter[Any]:
    """Count how often each request id was cancelled."""
    messages = [message for message in worker.seen if message.get("method") == "notifications/cancelled"]
    return Counter(message["params"]["requestId"] for message in messages)


def assert_nothing_in_flight(mux: app.Mux) -> None:
    for upstream in mux.upstreams.values():
        assert upstream.status.connection is not None
        assert "<PendingRequests 0 in flight>" in repr(upstream.status.connection.channel)


async def test_nothing_crosses_on_pipes(autojump_clock):
    workers = {name: Worker(revision) for name, revision in UPSTREAMS.items()}
    async with open_world(dict(workers)) as world, trio.open_nursery() as nursery:
        callers = []
        for revision in CLIENTS:
            client = world.client()
            if revision != MODERN:
                await client.initialize(revision)
                await client.drain()  # the upstreams have just appeared, of which it is notified
            callers.append(PipeCaller(client))
            nursery.start_soon(callers[-1].listen)
        for seed in range(20):
            await play(seed, callers, workers, ["finish", "fail", "cancel", "late"], nursery)
        await trio.testing.wait_all_tasks_blocked()
        for worker in workers.values():
            assert cancellations(worker) == {worker.begun[key]: 1 for key in worker.stopped}
        assert_nothing_in_flight(world.mux)
        for caller in callers:
            await caller.vanish()
        await trio.sleep(PATIENCE)
        assert not world.nursery.child_tasks
        assert "<NotificationHub 0 listeners" in repr(world.mux.hub)


@asynccontextmanager
async def open_http_world(workers: dict[str, Worker]) -> AsyncIterator[tuple[app.Mux, HttpEndpoint, int]]:
    """Open mcpmux with HTTP on both sides. Yields it, its endpoint, and the port of that."""
    async with AsyncExitStack() as stack:
        faces = {name: await stack.enter_async_context(open_http_face(w)) for name, w in workers.items()}
        upstreams = tuple(Upstream(name=name, target=Http(face.url)) for name, face in faces.items())
        mux = await stack.enter_async_context(app.open_mux(Config(upstreams=upstreams)))
        nursery = await stack.enter_async_context(trio.open_nursery())
        sessions = Limits(max_sessions=len(CLIENTS))
        serving = {"poller": mux.poller}
        yield mux, *await start_endpoint(nursery, mux.service, sessions=sessions, serving=serving)
        nursery.cancel_scope.cancel()


async def test_nothing_crosses_on_http():
    workers = {name: Worker(revision) for name, revision in UPSTREAMS.items()}
    async with open_http_world(workers) as (mux, endpoint, port), trio.open_nursery() as nursery:
        with ExitStack() as pools:
            callers = []
            for revision in CLIENTS:
                pool = pools.enter_context(HttpPool(HttpOrigin(False, "127.0.0.1", port)))
                callers.append(HttpCaller(revision, pool))
                await callers[-1].greet()
            for seed in range(5):
                await play(seed, callers, workers, ["finish", "fail", "cancel"], nursery)
            legacy = workers["x"]
            assert cancellations(legacy) == {legacy.begun[key]: 1 for key in legacy.stopped}
            assert not cancellations(workers["y"])
            with trio.fail_after(PATIENCE):
                while nursery.child_tasks:
                    await trio.lowlevel.checkpoint()
            assert_nothing_in_flight(mux)
            for session in endpoint.sessions.values():
                assert " 0 in flight" in repr(session)
            nursery.cancel_scope.cancel()
