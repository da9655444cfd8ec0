"""The growth of a message costs no more than in proportion, and is not kept: a walk over MCP's schemas.

Every text, array and object that a peer can send, from either side and in both eras, comes at once, a hundred
and a thousand times its usual size. A part fails that costs too much time, or that stays in memory.
"""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcpmux.clients.stdio_client import serve_messages
from mcpmux.config import AccessRule, Caching
from mcpmux.config.views import Parameter, Selector, View, ViewOverride
from mcpmux.errors import TransportClosed
from mcpmux.protocol.principal import ANYONE
from tests.grown_examples import Place, example, places
from tests.official_schema import OfficialSchema, find_schemas, load_schema
from tests.peers.pipe import PromptMemoryPipe, open_memory_pipes
from tests.peers.revision import CAPABILITIES, MODERN, VERSION, Json
from tests.peers.subscribable import SUBSCRIPTION_ID
from tests.runtime.world import World, open_world
from tests.step_watch import StepWatch
from tests.whole import WHOLE, when_whole

LEGACY: Final = "2025-11-25"
URI, NAME, TASK = "file:///a", "t", "task"
VIEW: Final = "some"

USUAL: Final = {"text": 100, "name": 100, "items": 10, "members": 10}
TIMES: Final = (1, 100, 1000)  # the cost of a few is too small to predict the cost of many
EXCESS: Final = 2.5  # times the time that would be in proportion is too long: the machine is shared
FLOOR_SECONDS: Final = 0.2  # shorter times are mostly noise
TRIES: Final = 3  # of which the quickest counts
FILLERS: Final = ("a", "a/%252e//\\{+b}__?#")  # plain, and with all that means something

REPEATED: Final = 6  # messages with other texts, of the largest size
KEPT_PART: Final = 0.5  # of what they hold, which may be in a bounded memory
LARGE_BYTES, MANY = 2**20, 48  # messages that fill any bounded memory
KEPT_BYTES: Final = 36 * 2**20  # the largest of these, with what may be used twice

Origin = Literal["asks", "tells", "answers a question", "answers", "says", "wants to know", "fails"]
"""What is large: a client asks, tells and answers; a server answers, says, wants to know and fails."""

RULES = (
    AccessRule(effect="deny", targets=("file:///secret/*", "x__secret*")),
    AccessRule(effect="allow"),
)
VIEWS = {
    VIEW: View(
        exclude=(Selector(name="hidden*"),),
        overrides=(
            ViewOverride(upstream="x", name=NAME, parameters={"p": Parameter(default="d", required=False)}),
        ),
    )
}
TOOL = {"name": NAME, "inputSchema": {"type": "object", "properties": {"p": {"type": "string"}}}}
OFFERS: Json = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "completions": {},
    "logging": {},
    "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}},
}
ASKABLE: Json = {
    "sampling": {"tools": {}, "context": {}},
    "elicitation": {"form": {}, "url": {}},
    "roots": {"listChanged": True},
}
OWN = ("ping", "logging/setLevel")  # not asked of a server when its client asks
EXTRA = {"tools/call": ("progressToken",), "subscriptions/listen": ("resourceSubscriptions",)}
"""Members of requests that are optional, and make the server say something."""
OPENINGS = ("initialize", "server/discover")
QUESTIONS = ("sampling/createMessage", "elicitation/create", "roots/list")


class Case(NamedTuple):
    """One place that grows. `origin`: in what; `method`: of what it is or answers."""

    origin: Origin
    method: str
    definition: str
    place: Place


class Peer:
    """One end of a stream, which keeps no message. Answers requests.

    `patience`: how long it waits for an answer, in seconds of virtual time.
    """

    patience = 5.0

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._waits: dict[Any, trio.Event] = {}

    async def send(self, message: Json) -> None:
        await self._pipe.send(json.dumps({"jsonrpc": "2.0", **message}).encode())

    async def ask(self, message: Json) -> None:
        """Send a request and wait for its answer, or until all tasks are blocked."""
        answered = self._waits[message["id"]] = trio.Event()
        await self.send(message)
        with trio.move_on_after(self.patience):
            await answered.wait()
        self._waits.pop(message["id"], None)

    async def serve(self) -> None:
        with suppress(TransportClosed):
            async with trio.open_nursery() as nursery:
                while True:
                    message = json.loads(await self._pipe.receive())
                    if "method" not in message:
                        if (waits := self._waits.pop(message.get("id"), None)) is not None:
                            waits.set()
                    elif "id" in message:
                        nursery.start_soon(self.answer, message)
                    else:
                        self.take(message)

    async def answer(self, message: Json) -> None:
        raise NotImplementedError

    def take(self, message: Json) -> None:
        """Take a notification."""


class Server:
    """The upstream. `grown`: what it says that is large, and when."""

    def __init__(self, revision: str) -> None:
        self.revision = revision
        self.schema = load_schema(revision)
        self.listen: Any = "listen"
        self.grown: Callable[[dict[str, Any]], Json] = dict
        self.case: Case | None = None
        self.peer: Peer

    async def serve(self, pipe: Any) -> None:
        server = self

        class Connection(Peer):
            patience = 1.0

            async def answer(self, message: Json) -> None:
                await server.answer(self, message)

        self.peer = Connection(pipe)
        await self.peer.serve()

    def known(self, method: str, token: Any) -> Json:
        is_list = method.endswith("/list")
        return {
            "uri": URI,
            "name": NAME,
            "taskId": TASK,
            "uriTemplate": "t:{id}",
            "protocolVersion": self.revision,
            "supportedVersions": [self.revision],
            "capabilities": OFFERS,
            "resultType": "complete",
            "ttlMs": 0 if is_list else 60_000,  # else the next list would come out of the cache
            "cacheScope": "public",
            "inputSchema": TOOL["inputSchema"],
            "progressToken": token,
            SUBSCRIPTION_ID: self.listen,
        }

    async def answer(self, peer: Peer, message: Json) -> None:
        method, params, case = message["method"], message.get("params", {}), self.case
        if method == "subscriptions/listen":
            self.listen = message["id"]
            acknowledged = {"_meta": {SUBSCRIPTION_ID: self.listen}, "notifications": params["notifications"]}
            await peer.send({"method": "notifications/subscriptions/acknowledged", "params": acknowledged})
            if case is None or case.method != method or case.origin != "answers":
                return
        values = self.known(method, params.get("_meta", {}).get("progressToken", 1))
        if case is not None and method == "tools/call":
            if case.origin == "says":
                await peer.send(self.grown(values))
            elif case.origin == "wants to know":
                await peer.ask(self.grown(values))
            elif case.origin == "answers a question":
                await peer.ask(
                    example(self.schema, self.schema.calls("ServerRequest")[case.method], None, 1, known={})
                )
        if case is not None and case.origin in ("answers", "fails") and method == case.method:
            grown = self.grown(values)
            answer = {"error": grown["error"]} if case.origin == "fails" else {"result": grown}
        elif "task" in params:
            answer = {"result": example(self.schema, "CreateTaskResult", None, 1, known=values)}
        elif method not in self.schema.calls("ClientRequest"):
            answer = {"error": {"code": -32601, "message": "Method not found"}}
        else:
            answer = {"result": example(self.schema, self.schema.result_of(method), None, 1, known=values)}
        await peer.send({"id": message["id"], **answer})


class Client(Peer):
    """`grown`: its answer to a question, if that is large."""

    def __init__(self, pipe: Any, revision: str) -> None:
        super().__init__(pipe)
        self.schema = load_schema(revision)
        self.revision = revision
        self.grown: Callable[[dict[str, Any]], Json] | None = None

    def known(self) -> Json:
        return {
            "uri": f"x+{URI}",
            "name": f"x__{NAME}",
            "taskId": f"x+{TASK}",
            "protocolVersion": self.revision,
            "capabilities": ASKABLE,
            VERSION: self.revision,
            CAPABILITIES: ASKABLE,
        }

    async def answer(self, message: Json) -> None:
        schema = load_schema(LEGACY)
        if self.grown is not None:
            result = self.grown({})
        else:
            result = example(schema, schema.result_of(message["method"]), None, 1, known={"uri": URI})
        await self.send({"id": message["id"], "result": result})


class Scene:
    """mcpmux between a client and a server."""

    def __init__(self, world: World, client: Client, server: Server) -> None:
        self.world, self.client, self.server = world, client, server
        self.said: Case | None = None  # of which something was said last

    def schema_of(self, case: Case) -> OfficialSchema:
        """Return the schema of the sender of what grows."""
        is_client = case.origin in ("asks", "tells", "answers a question")
        return self.client.schema if is_client else self.server.schema

    async def play(self, case: Case, size: int, filler: str, salt: str) -> None:
        """Exchange one message in which the place of a case has a size."""

        def grow(schema: OfficialSchema, known: Json) -> Json:
            self.said = case
            return example(schema, case.definition, case.place, size, known=known, filler=filler, salt=salt)

        client, server = self.client, self.server
        server.case, client.grown = case, None
        server.grown = partial(grow, server.schema)
        if case.origin == "asks":
            await self._ask(grow(client.schema, client.known()))
        elif case.origin == "tells":
            await client.send(grow(client.schema, client.known()))
        else:
            if case.origin == "answers a question":
                client.grown = partial(grow, client.schema)
            method = case.method if case.origin in ("answers", "fails") else "tools/call"
            if method in OPENINGS:
                self.world.mux.restart("x")
                await wait_all_tasks_blocked()
                await self._ask_for("tools/list", salt)
            else:
                await self._ask_for(method, salt)
        await wait_all_tasks_blocked()
        server.case, client.grown = None, None
        if case.method in OPENINGS:
            self.world.mux.restart("x")
            await wait_all_tasks_blocked()

    async def _ask_for(self, method: str, salt: str) -> None:
        """Let the client ask for something, so that the server may answer."""
        schema, client = self.client.schema, self.client
        definition = schema.calls("ClientRequest").get(method)
        if definition is not None:
            uri = f"x+{URI}{salt}"
            values = client.known() | {"uri": uri, "resourceSubscriptions": [uri]}
            await self._ask(
                example(schema, definition, None, 1, known=values, salt=salt, extra=EXTRA.get(method, ()))
            )

    async def _ask(self, message: Json) -> None:
        if message["method"] != "subscriptions/listen":
            await self.client.ask(message)
            return
        await self.client.send(message)
        await trio.sleep(10)  # in which mcpmux listens, too
        await self.client.send({"method": "notifications/cancelled", "params": {"requestId": message["id"]}})


@asynccontextmanager
async def open_scene(down: str, up: str) -> AsyncIterator[Scene]:
    """Open a client that listens to everything, in a view, and under rules."""
    server, other = Server(up), Server(up)
    servers: dict[str, Any] = {"x": server, "y": other}
    async with open_world(servers, access=RULES, views=VIEWS, caching=Caching(max_bytes=2**20)) as world:
        ours, theirs = open_memory_pipes(kind=PromptMemoryPipe)
        client = Client(ours, down)
        serve = partial(serve_messages, theirs, world.mux.service, principal=ANYONE.within(VIEW))
        world.nursery.start_soon(serve)
        world.nursery.start_soon(client.serve)
        scene = Scene(world, client, server)
        if down == MODERN:
            wish = {"resourceSubscriptions": [f"x+{URI}"], "toolsListChanged": True}
            params = {"_meta": {VERSION: MODERN, CAPABILITIES: ASKABLE}, "notifications": wish}
            await client.send({"id": "listen", "method": "subscriptions/listen", "params": params})
        else:
            info = {"name": "c", "version": "1"}
            params = {"protocolVersion": down, "capabilities": ASKABLE, "clientInfo": info}
            await client.ask({"id": "i", "method": "initialize", "params": params})
            await client.send({"method": "notifications/initialized"})
            await client.ask({"id": "s", "method": "resources/subscribe", "params": {"uri": f"x+{URI}"}})
            if up == LEGACY:
                params = {"name": f"x__{NAME}", "task": {}}
                await client.ask({"id": "t", "method": "tools/call", "params": params})
        await wait_all_tasks_blocked()
        yield scene


def cases(down: OfficialSchema, up: OfficialSchema) -> Iterator[Case]:
    """Yield every place that may grow, once for each definition that it is in."""

    def is_passed(method: str) -> bool:
        """Return whether mcpmux sends such a request to the server, perhaps for the client."""
        return method not in OWN and (method in OPENINGS or method in down.calls("ClientRequest"))

    triples: list[tuple[Origin, str, str, OfficialSchema]] = [
        *(("asks", *call, down) for call in down.calls("ClientRequest").items()),
        *(("tells", *call, down) for call in down.calls("ClientNotification").items()),
        *(
            ("answers", method, up.result_of(method), up)
            for method in up.calls("ClientRequest")
            if is_passed(method)
        ),
        *(("says", *call, up) for call in up.calls("ServerNotification").items()),
        ("fails", "tools/call", "JSONRPCErrorResponse", up),
        ("fails", "resources/read", "JSONRPCErrorResponse", up),
    ]
    if questions := up.calls("ServerRequest"):
        triples += [("wants to know", *call, up) for call in questions.items()]
    if questions and down.calls("ServerRequest"):  # a modern client answers by asking again
        triples += [("answers a question", method, down.result_of(method), down) for method in QUESTIONS]
    if "InputRequiredResult" in up.definitions:
        triples.append(("answers", "tools/call", "InputRequiredResult", up))
    if "CreateTaskResult" in up.definitions:
        triples.append(("answers", "tools/call", "CreateTaskResult", up))
    seen = set()
    for origin, method, definition, schema in triples:
        for place in places(schema, definition):
            if (sort := (origin, place.sort)) not in seen:
                seen.add(sort)
                yield Case(origin, method, definition, place)


class Walk:
    """Plays cases. `failures`: what they have shown. `unsaid`: those without a request."""

    def __init__(self, watch: StepWatch) -> None:
        self._watch = watch
        self._salts = 0
        self.failures: list[str] = []
        self.played = 0
        self.unsaid: list[str] = []

    def _salt(self) -> str:
        self._salts += 1
        return f"s{self._salts}-"

    async def _seconds(self, scene: Scene, case: Case, times: int, filler: str, tries: int) -> float:
        took = []
        for _ in range(tries):
            seconds = self._watch.seconds
            await scene.play(case, USUAL[case.place.kind] * times, filler, self._salt())
            took.append(self._watch.seconds - seconds)
        return min(took)

    async def find_growth(self, scene: Scene, case: Case) -> None:
        """Note a case whose time grows faster than its size."""
        for filler in FILLERS if case.place.kind in ("text", "name") else FILLERS[:1]:
            self.played += 1
            for tries in (1, TRIES):
                few, more, many = [await self._seconds(scene, case, times, filler, tries) for times in TIMES]
                grown = (TIMES[2] - TIMES[0]) / (TIMES[1] - TIMES[0])
                allowed = max(FLOOR_SECONDS, EXCESS * grown * (more - few))
                if many - few <= allowed:
                    break
            else:
                durations = ", ".join(f"{seconds * 1000:.1f} ms" for seconds in (few, more, many))
                self.failures.append(f"{durations} at {TIMES} times {filler!r}: {self._told(case)}")

    async def find_kept(self, scene: Scene, case: Case) -> None:
        """Note a case whose large message stays in memory."""
        size = USUAL[case.place.kind] * (TIMES[2] if case.place.kind in ("text", "name") else 100)
        grown = example(scene.schema_of(case), case.definition, case.place, size, known={})
        length = len(json.dumps(grown))
        few = await self._kept(scene, case, size, REPEATED)
        if few < KEPT_PART * REPEATED * length:
            return
        if await self._kept(scene, case, size, 4 * REPEATED) < 2 * few:  # some small memory is full
            return
        if case.place.kind in ("text", "name"):
            kept = await self._kept(scene, case, LARGE_BYTES, MANY)
        else:  # as many as usual, of which each is long
            size = USUAL[case.place.kind]
            kept = await self._kept(scene, case, size, MANY, LARGE_BYTES // size)
        if kept > KEPT_BYTES:
            self.failures.append(f"{kept / 2**20:.0f} MiB are kept of {MANY}: {self._told(case)}")

    async def _kept(self, scene: Scene, case: Case, size: int, times: int, length: int = 0) -> int:
        """Return the bytes that are there after messages with other texts, and were not before.

        `length`: of each text, at least.
        """
        self.played += 1
        await scene.play(case, 1, "a", self._salt())
        gc.collect()
        tracemalloc.start()
        try:
            for _ in range(times):
                await scene.play(case, size, "a", self._salt().ljust(length, "b"))
            gc.collect()
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    def _told(self, case: Case) -> str:
        return f"{case.origin}, {case.method}, {case.definition}: {case.place}"


# Between them the two have each era on either side, and all that is translated.
CROSSED: Final = [(LEGACY, MODERN), (MODERN, LEGACY)]
PAIRS: Final = [*CROSSED, *when_whole((LEGACY, LEGACY), (MODERN, MODERN))]
SAMPLE: Final = 24  # one place of so many is enough to see at once what is wrong everywhere
SAMPLES = [pytest.param(*pair, SAMPLE, id=f"sample of {pair[0]} to {pair[1]}") for pair in CROSSED]
WALKS = [pytest.param(*pair, 1, marks=pytest.mark.slow, id=f"{pair[0]} to {pair[1]}") for pair in PAIRS]
PART: Final = 1 if WHOLE else 8  # what is kept takes long to find
PARTS = [pytest.param(*pair, PART, marks=pytest.mark.slow, id=f"{pair[0]} to {pair[1]}") for pair in PAIRS]
pytestmark = pytest.mark.skipif(find_schemas() is None, reason="needs the official schemas")


def walk(look: Callable[[Walk, Scene, Case], Awaitable[None]], down: str, up: str, step: int) -> Walk:
    """Look at each `step`-th case of a client and a server."""
    watch = StepWatch()
    findings = Walk(watch)

    async def run() -> None:
        async with open_scene(down, up) as scene:
            for case in islice(cases(load_schema(down), load_schema(up)), step // 2, None, step):
                await look(findings, scene, case)
                if scene.said is not case:
                    findings.unsaid.append(str(case))

    trio.run(run, clock=MockClock(autojump_threshold=0), instruments=[watch])
    assert findings.played > 300 / step
    assert not findings.unsaid, "\n".join(["", *findings.unsaid])
    return findings


@pytest.mark.parametrize(("down", "up", "step"), SAMPLES + WALKS)
def test_the_cost_of_a_message_is_proportional_to_its_size(down: str, up: str, step: int):
    findings = walk(Walk.find_growth, down, up, step)
    assert not findings.failures, "\n".join(["", *findings.failures])


@pytest.mark.parametrize(("down", "up", "step"), PARTS)
def test_no_part_of_a_message_is_kept_without_a_bound(down: str, up: str, step: int):
    gc.collect()
    gc.freeze()  # what is there already need not be looked through again
    try:
        findings = walk(Walk.find_kept, down, up, step)
    finally:
        gc.unfreeze()
    assert not findings.failures, "\n".join(["", *findings.failures])
