"""The laws of exchanges, for any acts of clients, a server and the clock in any order.

A script is made up by Hypothesis and acted out in virtual time, with a server and clients of both eras.
Between its pauses everything may overlap. Always:

    each request has one answer, or none if it was cancelled, or if its client has gone
    a client gets no message about a request that it has the answer to
    a server gets at most one cancellation of a request, and at most one answer to each of its requests
    slots, deadlines, tickets and tasks are given back
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpmux.channels.questions import PARK_SECONDS
from mcpmux.clients.stdio_client import serve_messages
from mcpmux.errors import TransportClosed
from tests.peers.client import ScriptedClient
from tests.peers.pipe import PromptMemoryPipe, open_memory_pipes
from tests.peers.revision import LEGACY, MODERN, Json
from tests.peers.server import CACHE, ScriptedServer
from tests.runtime.test_exchanges import tasks
from tests.runtime.world import World, open_world

ERAS = st.sampled_from([MODERN, LEGACY])
URI = "file:///a"
ASKED: dict[str, Json] = {
    "tools/call": {"name": "x__t", "arguments": {}},
    "resources/read": {"uri": f"x+{URI}"},
}
RESULTS: Json = {
    "tools/call": {"content": []},
    "resources/read": {"contents": [{"uri": URI, "text": "a"}]} | CACHE,
}
TIMEOUT, MAXIMUM, SLOTS = 5.0, 12.0, 3
LIMITS: Json = {
    "request_timeout": TIMEOUT,
    "timeouts": {"tools/call": TIMEOUT},
    "max_request_timeout": MAXIMUM,
    "max_in_flight": SLOTS,
}
# Longer than any deadline, and than a parked call is kept.
END_SECONDS = PARK_SECONDS + 100.0
EXAMPLES = 100
STEPS = 60


class Step(NamedTuple):
    """`what` happens, to the `which`-th of those that it can happen to, counted around.

    `settles`: what follows of it has happened before the next step; else both overlap.
    """

    what: str
    which: int
    method: str
    settles: bool


STEP = st.builds(
    Step,
    st.sampled_from(
        ["request"] * 6
        + ["progress", "progress", "answer", "answer", "answer", "answer twice", "error", "ask", "ask"]
        + ["resume", "resume", "cancel", "cancel", "cancel", "wait", "wait", "wait long"]
        + ["take back", "fall silent", "fall silent"]
        + ["lose the server", "leave", "deafen", "listen"]
    ),
    st.integers(0, 7),
    st.sampled_from(sorted(ASKED)),
    st.sampled_from([True, True, False]),
)


class Server(ScriptedServer):
    """Answers calls on command. `lives`: what it has seen, by connection; `open`: calls it works on."""

    def __init__(self, revision: str) -> None:
        super().__init__(revision, resources=[{"uri": URI, "name": "a"}], tools=[], prompts=[])
        self.lives: list[list[Json]] = []
        self.open: dict[Any, Json] = {}
        self._questions = 0

    async def serve(self, pipe: Any) -> None:
        self.seen = []
        self.lives.append(self.seen)
        self.open.clear()
        await super().serve(pipe)

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method not in ASKED:
            return await super().handle(method, params, message)
        self.open[message["id"]] = message
        try:
            await trio.sleep_forever()
        finally:
            self.open.pop(message["id"], None)
        raise AssertionError

    async def act(self, step: Step) -> None:
        """Do something about one of the calls."""
        if not self.open:
            return
        request_id = list(self.open)[step.which % len(self.open)]
        call = self.open[request_id]
        with suppress(TransportClosed):
            if step.what == "progress":
                token = call["params"].get("_meta", {}).get("progressToken", request_id)
                progress = {"progressToken": token, "progress": 1}
                await self.send({"method": "notifications/progress", "params": progress})
            elif step.what == "ask":
                await self._ask(call)
            elif step.what == "take back":
                cancelled = {"requestId": f"q{self._questions}"}
                await self.send({"method": "notifications/cancelled", "params": cancelled})
            elif step.what == "error":
                await self._answer_with(request_id, error={"code": -32602, "message": "no"})
            else:
                modern = {"resultType": "complete"} if self.modern else {}
                for _ in range(2 if step.what == "answer twice" else 1):
                    await self._answer_with(request_id, result=RESULTS[call["method"]] | modern)

    async def _answer_with(self, request_id: Any, **answer: Any) -> None:
        self.open.pop(request_id, None)
        await self.send({"id": request_id, **answer})

    async def _ask(self, call: Json) -> None:
        """Cancel as its era does."""
        if self.modern:
            wishes = {"resultType": "input_required", "inputRequests": {"q": {"method": "roots/list"}}}
            await self._answer_with(call["id"], result=wishes | {"requestState": "s"})
        else:
            self._questions += 1
            await self.send({"id": f"q{self._questions}", "method": "roots/list"})


async def _serve(world: World, pipe: Any) -> None:
    await serve_messages(pipe, world.mux.service)
    await pipe.aclose()


class Client:
    """`told`: the messages it got, in order; `asked`: its requests by id, `cancelled` those it took back."""

    def __init__(self, world: World, revision: str) -> None:
        ours, theirs = open_memory_pipes(kind=PromptMemoryPipe)
        world.nursery.start_soon(_serve, world, theirs)
        self._client = ScriptedClient(ours)
        self._client.capabilities = {"roots": {}}
        self._revision = revision
        self.told: list[Json] = []
        self.asked: dict[int, Json] = {}
        self.cancelled: set[int] = set()
        self.gone = False
        self._hears = trio.Event()
        self._hears.set()
        self._was_deaf = False  # and may have been closed for that
        self.is_silent = False  # and answers no request

    async def begin(self, nursery: trio.Nursery) -> None:
        if self._revision != MODERN:
            await self._client.initialize(self._revision)
        nursery.start_soon(self._read)

    async def _read(self) -> None:
        try:
            while True:
                await self._hears.wait()
                message = await self._client.receive_raw()
                self.told.append(message)
                if "method" in message and "id" in message and not self.is_silent:
                    await self._client.send({"id": message["id"], "result": {"roots": []}})
        except TransportClosed:
            assert self.gone or self._was_deaf
            self.gone = True

    @property
    def waiting(self) -> list[int]:
        """Its requests that have no answer so far."""
        answered = {message["id"] for message in self.told if "method" not in message}
        return [number for number in self.asked if number not in answered | self.cancelled]

    async def act(self, step: Step) -> None:
        if step.what == "leave":
            await self.leave()
        elif step.what == "deafen" and self._hears.is_set():
            self._hears, self._was_deaf = trio.Event(), True
        elif step.what == "listen":
            self.listen()
        elif step.what == "fall silent":
            self.is_silent = True
        elif step.what == "request":
            await self._ask(step.method, ASKED[step.method])
        elif step.what == "cancel" and self.waiting:
            number = self.waiting[step.which % len(self.waiting)]
            self.cancelled.add(number)
            for _ in range(1 + step.which % 2):
                await self._client.send(
                    {"method": "notifications/cancelled", "params": {"requestId": number}}
                )
        elif step.what == "resume":
            await self._resume(step)

    async def _ask(self, method: str, params: Json) -> None:
        number = await self._client.start(method, params, progressToken=self._client._ids + 1)
        self.asked[number] = {"method": method, "params": params}

    async def _resume(self, step: Step) -> None:
        """Answer what a call wanted to know, and go on with it; perhaps a second time."""
        wishes = [message for message in self.told if "inputRequests" in message.get("result", {})]
        if wishes:
            message = wishes[step.which % len(wishes)]
            call, result = self.asked[message["id"]], message["result"]
            more: Json = {"inputResponses": {key: {"roots": []} for key in result["inputRequests"]}}
            state = {"requestState": result["requestState"]} if "requestState" in result else {}
            await self._ask(call["method"], {**ASKED[call["method"]], **more, **state})

    def listen(self) -> None:
        self._hears.set()

    async def leave(self) -> None:
        self.gone = True
        self._hears.set()
        await self._client.vanish()

    def check(self) -> None:
        answers = Counter(message["id"] for message in self.told if "method" not in message)
        assert answers.keys() <= self.asked.keys()
        assert all(count == 1 for count in answers.values()), answers
        if not self.gone:
            unanswered = self.asked.keys() - answers.keys()
            assert unanswered <= self.cancelled, unanswered
        over: set[int] = set()
        for message in self.told:
            if "method" not in message:
                over.add(message["id"])
            elif message["method"] == "notifications/progress":
                assert message["params"]["progressToken"] not in over


def check_server(server: Server) -> None:
    for seen in server.lives:
        cancelled = Counter(
            m["params"]["requestId"] for m in seen if m.get("method") == "notifications/cancelled"
        )
        assert cancelled.keys() <= {message["id"] for message in seen if "id" in message}
        assert all(count == 1 for count in cancelled.values()), cancelled
        answered = Counter(message["id"] for message in seen if "method" not in message)
        assert all(count == 1 for count in answered.values()), answered


def check_nothing_is_held(world: World) -> None:
    upstream = world.mux.upstreams["x"]
    assert (upstream.status.in_flight, upstream.limiter.running, upstream.limiter.waiting) == (0, 0, 0)
    assert upstream.status.connection is not None
    channel = upstream.status.connection.channel
    assert channel.deadlines.watched == set()
    # A question of our own after its health may be on its way.
    assert [pending for pending in channel.pending_requests if pending.call.method in ASKED] == []
    assert not channel.questions.parked


async def act_out(up: str, downs: Sequence[str], script: Sequence[Step]) -> None:
    server = Server(up)
    async with open_world({"x": server, "y": ScriptedServer()}, settings={"x": LIMITS}) as world:
        await trio.testing.wait_all_tasks_blocked()
        count = tasks()
        async with trio.open_nursery() as nursery:
            clients = [Client(world, revision) for revision in downs]
            for client in clients:
                await client.begin(nursery)
            for step in script:
                await act(world, server, clients, step)
            for client in clients:
                client.listen()
            await trio.sleep(END_SECONDS)
            for client in clients:
                client.check()
            check_server(server)
            check_nothing_is_held(world)
            for client in clients:
                await client.leave()
            await trio.sleep(END_SECONDS)
            nursery.cancel_scope.cancel()
        assert tasks() == count


async def act(world: World, server: Server, clients: Sequence[Client], step: Step) -> None:
    here = [client for client in clients if not client.gone]
    if step.what == "lose the server":
        await world.kill("x")
    elif step.what in ("wait", "wait long"):
        await trio.sleep(1.0 if step.what == "wait" else TIMEOUT + 1)
    elif step.what in ("progress", "answer", "answer twice", "error", "ask", "take back"):
        await server.act(step)
    elif here:
        with suppress(TransportClosed):
            await here[step.which % len(here)].act(step)
    if step.settles:
        await trio.testing.wait_all_tasks_blocked()


@settings(max_examples=EXAMPLES)
@given(ERAS, st.lists(ERAS, min_size=1, max_size=3), st.lists(STEP, min_size=STEPS // 4, max_size=STEPS))
def test_every_exchange_ends_once_and_gives_back_what_it_had(
    up: str, downs: list[str], script: list[Step]
) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(partial(act_out, up, downs, script), clock=clock)
