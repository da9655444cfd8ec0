"""Answers that are served again without a request, and others, in both eras."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mcpmux.config import AccessRule, Caching
from mcpmux.protocol.principal import ANYONE, Principal
from tests.peers.client import ScriptedClient
from tests.peers.revision import LEGACY, MODERN, Json
from tests.peers.server import CACHE, RpcFailure, ScriptedServer
from tests.peers.subscribable import OFFERS, Subscribable
from tests.runtime.world import World, open_world

ALICE, BOB = Principal("alice"), Principal("bob")
URI = "file:///a"
READ = {"uri": "docs+file:///a"}
TRUSTING = Caching(trust_announcements=True)
SILENT = {"resources": {"subscribe": True}, "tools": {}}
"""Capabilities of a server that announces no changes."""


class Library(Subscribable):
    """Counts what it is asked. `hints`: of reads, `list_hints`: of lists; `held`: answers wait for it."""

    def __init__(self, revision: str = MODERN, **settings: Any) -> None:
        super().__init__(revision, **settings)
        self.hints: Json = {"ttlMs": 5000, "cacheScope": "public"}
        self.list_hints: Json | None = None
        self.asked: Counter[str] = Counter()
        self.held: trio.Event | None = None
        self.fails: RpcFailure | None = None
        self.says_progress = False
        self.text = 0

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method not in ("resources/read", "tools/call", "resources/list", "tools/list"):
            return await super().handle(method, params, message)
        self.asked[method] += 1
        if method == "resources/read":
            self.text += 1
        result = await self.make(method, params, message)
        if self.held is not None:
            await self.held.wait()
        if self.fails is not None:
            raise self.fails
        return result

    async def make(self, method: str, params: Json, message: Json) -> Json:
        if method == "resources/read":
            if self.says_progress:
                log = {"level": "info", "data": "reading"}
                await self.send({"method": "notifications/message", "params": log})
            result: Json = {"contents": [{"uri": params["uri"], "text": str(self.text)}]}
            return result | ({"resultType": "complete"} | self.hints if self.modern else {})
        if method == "tools/call":
            return {"content": [], "resultType": "complete"} if self.modern else {"content": []}
        result = await super().handle(method, params, message)
        return result | (self.list_hints or {}) if self.modern else result

    @property
    def reads(self) -> int:
        return self.asked["resources/read"]


class Slow(Library):
    """Takes seven seconds for a read."""

    async def make(self, method: str, params: Json, message: Json) -> Json:
        if method == "resources/read":
            await trio.sleep(7)
        return await super().make(method, params, message)


async def ready(world: World, principal: Principal = ANYONE, revision: str = MODERN) -> ScriptedClient:
    """Open a client of servers that are connected and have acknowledged their subscriptions."""
    client = world.client(principal=principal)
    if revision == MODERN:
        await client.request("server/discover")
    else:
        await client.initialize(revision)
    await wait_all_tasks_blocked()
    return client


@asynccontextmanager
async def open_docs(docs: ScriptedServer, **settings: Any) -> AsyncIterator[tuple[World, ScriptedClient]]:
    """Open a mux before `docs`, with a client that is ready."""
    async with open_world({"docs": docs}, **settings) as world:
        yield world, await ready(world)


async def read(client: ScriptedClient) -> str:
    text: str = (await client.request("resources/read", READ))["contents"][0]["text"]
    return text


async def together(world: World, count: int, principals: tuple[Principal, ...] = (ANYONE,)) -> list[Any]:
    """Return clients that have asked the same, all of them waiting."""
    clients = [await ready(world, principals[n % len(principals)]) for n in range(count)]
    for client in clients:
        await client.start("resources/read", READ)
    await wait_all_tasks_blocked()
    return clients


async def give_up(client: ScriptedClient) -> None:
    """Cancel the client's last request."""
    await client.send({"method": "notifications/cancelled", "params": {"requestId": client._ids}})
    await wait_all_tasks_blocked()


def counts(world: World, name: str = "docs") -> tuple[int, int, int]:
    cached = world.mux.store.count(name)
    return cached.hits, cached.misses, cached.shared


# Reads


async def test_a_public_read_is_served_until_its_time_is_over(autojump_clock):
    docs = Library()
    async with open_world({"docs": docs}) as world:
        alice, bob = await ready(world, ALICE), await ready(world, BOB)
        first = await alice.request("resources/read", READ)
        await trio.sleep(3)
        again = await bob.request("resources/read", READ)
        assert docs.reads == 1
        assert again["contents"] == first["contents"] == [{"uri": READ["uri"], "text": "1"}]
        assert first["ttlMs"] == 5000
        assert again["ttlMs"] == pytest.approx(2000, abs=50)
        assert again["cacheScope"] == "public"
        await trio.sleep(2)
        assert await read(alice) == "2"
        assert counts(world) == (1, 2, 0)


@pytest.mark.parametrize(
    "hints", [{"ttlMs": 5000, "cacheScope": "private"}, {"ttlMs": 0, "cacheScope": "public"}]
)
async def test_what_is_private_or_not_fresh_is_asked_for_each_time(hints, autojump_clock):
    docs = Library()
    docs.hints = hints
    async with open_docs(docs) as (_, client):
        assert [await read(client) for _ in range(50)] == [str(n + 1) for n in range(50)]


async def test_an_error_is_not_kept(autojump_clock):
    docs = Library()
    docs.fails = RpcFailure(-32603, "busy")
    async with open_docs(docs) as (_, client):
        with pytest.raises(RpcFailure):
            await read(client)
        docs.fails = None
        assert await read(client) == "2"


async def test_questions_and_answers_to_repeated_requests_are_not_kept(autojump_clock):
    class Asking(Library):
        async def make(self, method: str, params: Json, message: Json) -> Json:
            if "requestState" in params:
                return {"contents": [], "resultType": "complete", "ttlMs": 5000, "cacheScope": "public"}
            return {"resultType": "input_required", "requestState": "s", "inputRequests": {}}

    docs = Asking()
    async with open_docs(docs) as (_, client):
        for _ in range(2):
            question = await client.request("resources/read", READ)
            assert question["resultType"] == "input_required"
            again = {**READ, "requestState": question["requestState"], "inputResponses": {}}
            assert (await client.request("resources/read", again))["resultType"] == "complete"
        assert docs.reads == 4


async def test_a_read_that_says_something_on_its_way_is_not_kept(autojump_clock):
    docs = Library()
    docs.says_progress = True
    async with open_docs(docs, settings={"docs": {"prefix": "docs"}}) as (_, client):
        for _ in range(2):
            await client.start("resources/read", READ, **{"io.modelcontextprotocol/logLevel": "info"})
            await client.receive_method("notifications/message")
            await client.receive()
        assert docs.reads == 2


async def test_other_meta_of_a_client_is_for_the_server_each_time(autojump_clock):
    docs = Library()
    async with open_docs(docs) as (_, client):
        for _ in range(2):
            await client.request("resources/read", READ, **{"example.com/tenant": "a"})
        assert docs.reads == 2


@pytest.mark.parametrize("told", [URI, "file:///a/b", "file:///"])
async def test_an_update_ends_it_before_any_client_hears_of_it(told, autojump_clock):
    docs = Library()
    async with open_docs(docs) as (world, client):
        await client.start(
            "subscriptions/listen", {"notifications": {"resourceSubscriptions": [READ["uri"]]}}
        )
        await client.receive_method("notifications/subscriptions/acknowledged")
        reader = await ready(world)
        assert [await read(reader), await read(reader)] == ["1", "1"]
        await docs.update(told, through=URI)
        await wait_all_tasks_blocked()
        assert await read(reader) == "2"


async def test_a_lost_connection_ends_it(autojump_clock):
    docs = Library()
    docs.hints["ttlMs"] = 600_000
    async with open_docs(docs) as (world, client):
        await read(client)
        await world.kill("docs")
        await trio.sleep(5)
        assert await read(client) == "2"


@pytest.mark.parametrize("off", ["everywhere", "for the upstream"])
async def test_it_can_be_turned_off_and_on_while_it_runs(off, autojump_clock):
    docs = Library()
    async with open_docs(docs) as (world, client):
        on = world.mux.config
        without = (
            attrs.evolve(on, caching=Caching(enabled=False))
            if off == "everywhere"
            else attrs.evolve(on, upstreams=(attrs.evolve(on.upstreams[0], caching=False),))
        )
        await read(client)
        world.mux.apply(without)
        assert [await read(client), await read(client)] == ["2", "3"]
        world.mux.apply(on)
        assert [await read(client), await read(client)] == ["4", "4"]
        assert world.connects == {"docs": 1}


async def test_another_prefix_shows_in_what_was_kept(autojump_clock):
    docs, web = Library(), Library()
    async with open_world({"docs": docs, "web": web}) as world:
        client = await ready(world)
        for _ in range(2):
            await client.request("resources/list")
            await read(client)
        config = world.mux.config
        first, second = config.upstreams
        world.mux.apply(attrs.evolve(config, upstreams=(attrs.evolve(first, prefix="new"), second)))
        listed = await client.request("resources/list")
        assert "new+file:///a" in [item["uri"] for item in listed["resources"]]
        renamed = await client.request("resources/read", {"uri": "new+file:///a"})
        assert renamed["contents"][0]["uri"] == "new+file:///a"


async def test_the_only_unprefixed_upstream_is_remembered_too(autojump_clock):
    docs = Library()
    async with open_docs(docs, settings={"docs": {"prefix": ""}}, caching=TRUSTING) as (_, client):
        for _ in range(3):
            result = await client.request("resources/read", {"uri": URI})
            assert result["contents"] == [{"uri": URI, "text": "1"}]
            assert len((await client.request("resources/list"))["resources"]) == 4
        assert docs.asked == {"resources/read": 1, "resources/list": 1}


# One exchange for many


async def test_a_hundred_who_ask_at_once_cost_one_exchange(autojump_clock):
    docs = Library()
    docs.held = trio.Event()
    async with open_world({"docs": docs}) as world:
        clients = await together(world, 100, (ALICE, BOB))
        docs.held.set()
        for client in clients:
            assert (await client.receive())["result"]["contents"][0]["text"] == "1"
        assert docs.reads == 1
        assert counts(world) == (0, 1, 99)


async def test_who_waits_takes_over_when_the_leader_gives_up(autojump_clock):
    docs = Library()
    docs.held = trio.Event()
    async with open_world({"docs": docs}) as world:
        leader, *others = await together(world, 4)
        await give_up(leader)
        await wait_all_tasks_blocked()
        assert docs.reads == 2
        docs.held.set()
        for client in others:
            assert (await client.receive())["result"]["contents"][0]["text"] == "2"
        assert docs.reads == 2


async def test_who_waits_can_give_up_and_nobody_else_notices(autojump_clock):
    docs = Library()
    docs.held = trio.Event()
    async with open_world({"docs": docs}) as world:
        leader, waiter, other = await together(world, 3)
        await give_up(waiter)
        await wait_all_tasks_blocked()
        docs.held.set()
        for client in (leader, other):
            assert (await client.receive())["result"]["contents"][0]["text"] == "1"
        assert docs.reads == 1


async def test_who_waits_has_a_deadline_of_its_own(autojump_clock):
    docs = Library()
    docs.held = trio.Event()
    async with open_world({"docs": docs}, settings={"docs": {"request_timeout": 10.0}}) as world:
        began = trio.current_time()
        (leader,) = await together(world, 1)
        await trio.sleep(6)
        (waiter,) = await together(world, 1)
        waits_since = trio.current_time()
        assert (await leader.receive())["error"]["code"] == -31002
        assert trio.current_time() - began == pytest.approx(10, abs=0.5)
        assert (await waiter.receive())["error"]["code"] == -31002
        assert trio.current_time() - waits_since == pytest.approx(10, abs=0.5)
        assert docs.reads == 2


async def test_a_request_after_anothers_answer_has_its_whole_time(autojump_clock):
    """Or a slow server would fail those whom it would have answered without any sharing."""
    docs = Slow()
    docs.hints = {"ttlMs": 0, "cacheScope": "private"}
    async with open_world({"docs": docs}, settings={"docs": {"request_timeout": 10.0}}) as world:
        for client in await together(world, 2, (ALICE, BOB)):
            assert "result" in await client.receive()
        assert docs.reads == 2


async def test_a_servers_error_answers_all_waiting_requests_of_the_principal(autojump_clock):
    docs = Library()
    docs.held, docs.fails = trio.Event(), RpcFailure(-32602, "Resource not found", {"uri": URI})
    async with open_world({"docs": docs}) as world:
        clients = await together(world, 4, (ALICE, BOB))
        docs.held.set()
        for client in clients:
            error = (await client.receive())["error"]
            assert (error["code"], error["data"]) == (-32602, {"uri": READ["uri"]})
        assert docs.reads == 3  # Alice's for both of hers; each of Bob's finds it is not for him


async def test_a_lost_connection_is_not_shared_as_an_answer(autojump_clock):
    docs = Library()
    docs.held = trio.Event()
    async with open_world({"docs": docs}) as world:
        clients = await together(world, 3)
        await world.kill("docs")
        docs.held.set()
        for client in clients:
            assert "result" in await client.receive()


async def test_a_private_answer_goes_to_who_asked_alone(autojump_clock):
    docs = Library()
    docs.hints, docs.held = {"ttlMs": 5000, "cacheScope": "private"}, trio.Event()
    async with open_world({"docs": docs}) as world:
        clients = await together(world, 3)
        docs.held.set()
        texts = {(await client.receive())["result"]["contents"][0]["text"] for client in clients}
        assert texts == {"1", "2", "3"}


@pytest.mark.parametrize("caching", [Caching(), TRUSTING])
@pytest.mark.parametrize("down", [LEGACY, MODERN])
@pytest.mark.parametrize("prefix", ["docs", ""])
async def test_a_list_is_asked_for_again_after_a_tool_was_called(prefix, down, caching, autojump_clock):
    """Servers announce `listChanged` and then never send it; some mark their lists as fresh as well."""
    docs = Library()
    docs.list_hints = {"ttlMs": 60_000, "cacheScope": "public"} if caching is not TRUSTING else None
    settings = {"docs": {"prefix": prefix}}
    async with open_world({"docs": docs}, settings=settings, caching=caching) as world:
        client = await ready(world, revision=down)
        for count in range(3):
            for _ in range(2):
                assert len((await client.request("resources/list"))["resources"]) == 4 + count
            docs.items("resources/list").append({"uri": f"memo:new{count}", "name": "new"})
            await client.request("tools/call", {"name": "docs__write" if prefix else "write"})
        assert docs.asked["resources/list"] == 3


async def test_answers_fetched_during_a_lost_tool_call_end_with_it(autojump_clock):
    docs = Library()
    docs.list_hints = {"ttlMs": 60_000, "cacheScope": "public"}
    async with open_world({"docs": docs}) as world:
        caller, other = await ready(world), await ready(world)
        docs.held = trio.Event()
        await caller.start("tools/call", {"name": "docs__write"})
        await wait_all_tasks_blocked()
        docs.held = None
        for _ in range(2):
            assert len((await other.request("resources/list"))["resources"]) == 4
        assert docs.asked["resources/list"] == 1
        docs.items("resources/list").append({"uri": "memo:new", "name": "new"})
        await world.kill("docs")
        await trio.sleep(5)
        assert len((await other.request("resources/list"))["resources"]) == 5


async def test_what_a_task_has_done_shows_when_its_end_is_told(autojump_clock):
    docs = Library(LEGACY)
    docs.hints = {}
    async with open_docs(docs, caching=TRUSTING) as (_, client):
        assert len((await client.request("resources/list"))["resources"]) == 4
        docs.items("resources/list").append({"uri": "memo:new", "name": "new"})
        status = {"taskId": "1", "status": "completed", "createdAt": "2026-01-01T00:00:00Z", "ttl": None}
        await docs.send({"method": "notifications/tasks/status", "params": status})
        await wait_all_tasks_blocked()
        assert len((await client.request("resources/list"))["resources"]) == 5


async def test_an_unknown_method_may_change_what_was_kept(autojump_clock):
    docs = Library()
    docs.list_hints = {"ttlMs": 60_000, "cacheScope": "public"}

    async def index(server: Any, _params: Json, _message: Json) -> Json:
        server.items("resources/list").append({"uri": "memo:new", "name": "new"})
        return {"resultType": "complete"}

    docs.handlers = {"vendor/index": index}
    async with open_docs(docs, settings={"docs": {"prefix": ""}}) as (_, client):
        assert len((await client.request("resources/list"))["resources"]) == 4
        await client.request("vendor/index")
        assert len((await client.request("resources/list"))["resources"]) == 5


# Lists


@pytest.mark.parametrize("down", [LEGACY, MODERN])
@pytest.mark.parametrize("up", [LEGACY, MODERN])
async def test_lists_of_those_who_announce_are_asked_for_again_after_a_change(up, down, autojump_clock):
    docs, web = Library(up), Library(up)
    async with open_world({"docs": docs, "web": web}, caching=TRUSTING) as world:
        client = await ready(world, revision=down)
        first = await client.request("resources/list")
        for _ in range(3):
            assert await client.request("resources/list") == first
        assert docs.asked["resources/list"] == web.asked["resources/list"] == 1
        docs.items("resources/list").append({"uri": "memo:new", "name": "new"})
        await docs.notify("notifications/resources/list_changed")
        await wait_all_tasks_blocked()
        client = await ready(world, revision=down)
        listed = [item["uri"] for item in (await client.request("resources/list"))["resources"]]
        assert "docs+memo:new" in listed
        assert (docs.asked["resources/list"], web.asked["resources/list"]) == (2, 1)
        await docs.notify("notifications/tools/list_changed")
        await wait_all_tasks_blocked()
        await client.request("resources/list")
        assert docs.asked["resources/list"] == 2


@pytest.mark.parametrize("up", [LEGACY, MODERN])
async def test_a_stale_list_without_announcements_is_fetched_each_time(up, autojump_clock):
    docs = Library(up, capabilities=SILENT)
    async with open_docs(docs) as (_, client):
        for _ in range(3):
            await client.request("resources/list")
        assert docs.asked["resources/list"] == 3


async def test_a_list_is_asked_for_again_at_some_time_without_any_announcement(autojump_clock):
    docs = Library()
    async with open_docs(docs, caching=TRUSTING) as (_, client):
        for _ in range(7):
            await client.request("resources/list")
            await trio.sleep(19)
        assert docs.asked["resources/list"] == 2


async def test_a_list_whose_changes_cannot_arrive_is_fetched_each_time(autojump_clock):
    class Silent(Library):
        async def _listen(self, wish: Json, listen: Any) -> Json:
            raise RpcFailure(-32601, "Method not found")

    docs = Silent()
    async with open_docs(docs, caching=TRUSTING) as (_, client):
        for _ in range(2):
            await client.request("resources/list")
        assert docs.asked["resources/list"] == 2


async def test_a_fresh_list_is_kept_page_by_page(autojump_clock):
    docs = Library(capabilities=SILENT)
    docs.list_hints, docs.page_size = {"ttlMs": 8000, "cacheScope": "public"}, 2
    async with open_docs(docs, page_size=2) as (_, client):
        first = await client.walk("resources/list", "resources")
        await trio.sleep(3)
        again = await client.request("resources/list")
        assert again["ttlMs"] == pytest.approx(5000, abs=100)
        assert await client.walk("resources/list", "resources") == first
        assert docs.asked["resources/list"] == 2
        await trio.sleep(6)
        assert await client.walk("resources/list", "resources") == first
        assert docs.asked["resources/list"] == 4


async def test_all_pages_of_a_merged_list_have_one_scope(autojump_clock):
    secret, docs = Library(), Library()
    secret.list_hints, docs.list_hints = CACHE, {"ttlMs": 8000, "cacheScope": "public"}
    docs.page_size = 2
    async with open_world({"secret": secret, "docs": docs}, page_size=2) as world:
        client = await ready(world)
        first = await client.request("resources/list")
        second = await client.request("resources/list", {"cursor": first["nextCursor"]})
        assert [page["cacheScope"] for page in (first, second)] == ["private", "private"]


async def test_a_private_list_is_for_one_principal_and_one_host_app(autojump_clock):
    docs = Library()
    docs.list_hints = {"ttlMs": 8000, "cacheScope": "private"}
    async with open_world({"docs": docs}) as world:
        alice, bob = await ready(world, ALICE), await ready(world, BOB)
        for _ in range(3):
            for client in (alice, bob):
                assert (await client.request("resources/list"))["cacheScope"] == "private"
        assert docs.asked["resources/list"] == 2
        other = await ready(world, ALICE)
        other.capabilities = {"sampling": {}}
        await other.request("resources/list")
        assert docs.asked["resources/list"] == 3


async def test_lists_of_a_shared_legacy_session_are_the_same_for_all(autojump_clock):
    docs = Library(LEGACY)
    async with open_world({"docs": docs}, caching=TRUSTING) as world:
        for principal in (ALICE, BOB):
            await (await ready(world, principal)).request("resources/list")
        assert docs.asked["resources/list"] == 1


class PrivateWorld(World):
    """Opens a new server for every connection; `opened` has all of them."""

    def __init__(self, servers: Mapping[str, ScriptedServer | None]) -> None:
        super().__init__(servers)
        self.opened: list[Library] = []

    @asynccontextmanager
    async def open_channel(self, upstream: Any, hear: Any, watch: Any = None) -> AsyncIterator[Any]:
        number = self.connects.get("docs", 0)
        self.servers["docs"] = server = Library(LEGACY, uris=[f"memo:{number}"])
        self.opened.append(server)
        async with super().open_channel(upstream, hear, watch) as channel:
            yield channel


async def test_clients_with_sessions_of_their_own_get_lists_of_their_own(autojump_clock):
    settings = {"docs": {"session": "per-client"}}
    async with open_world(
        {"docs": None}, settings=settings, world_class=PrivateWorld, caching=TRUSTING
    ) as world:
        clients = [await ready(world, revision=LEGACY) for _ in range(2)]
        seen = []
        for client in clients * 4:
            request_id = await client.start("resources/list")
            while (answer := await client.receive()).get("id") != request_id:
                pass
            seen.append([item["uri"] for item in answer["result"]["resources"]])
        assert seen == [["docs+memo:1"], ["docs+memo:2"]] * 4
        assert isinstance(world, PrivateWorld)
        assert [server.asked["resources/list"] for server in world.opened] == [0, 1, 1]


async def test_access_rules_are_applied_to_what_was_kept(autojump_clock):
    docs = Library()
    docs.list_hints = {"ttlMs": 8000, "cacheScope": "public"}
    rules = (
        AccessRule(effect="allow", principals=("alice",), targets=("file:///*",)),
        AccessRule(effect="allow", principals=("bob",), targets=("memo:*",)),
    )
    async with open_world({"docs": docs}, access=rules) as world:
        alice, bob = await ready(world, ALICE), await ready(world, BOB)
        for _ in range(2):
            for client, seen in ((alice, "file:"), (bob, "memo:")):
                listed = await client.request("resources/list")
                assert listed["cacheScope"] == "private"
                assert listed["resources"]
                assert all(item["uri"].startswith(f"docs+{seen}") for item in listed["resources"])
        assert docs.asked["resources/list"] == 1
        assert await read(alice) == "1"
        with pytest.raises(RpcFailure):
            await read(bob)
        world.mux.apply(attrs.evolve(world.mux.config, access=rules[1:]))
        assert (await alice.request("resources/list"))["resources"] == []
        with pytest.raises(RpcFailure):
            await read(alice)


async def test_an_upstream_that_comes_or_goes_shows_in_the_merged_list(autojump_clock):
    docs, web = Library(), Library()
    servers: dict[str, Any] = {"docs": docs, "web": web}
    async with open_world(servers, caching=TRUSTING) as world:
        client = await ready(world)

        async def listed() -> int:
            return len((await client.request("resources/list"))["resources"])

        assert [await listed(), await listed()] == [8, 8]
        world.mux.drain("web")
        assert [await listed(), await listed()] == [4, 4]
        world.mux.release("web")
        assert [await listed(), await listed()] == [8, 8]
        world.servers["web"] = None
        await world.kill("web")
        await trio.sleep(20)
        assert await listed() == 4
        world.servers["web"] = web
        await trio.sleep(60)
        assert await listed() == 8
        world.mux.upstreams.become({"docs": world.mux.upstreams["docs"]})
        assert await listed() == 4


async def test_an_upstream_without_a_kept_list_shows_its_new_items(autojump_clock):
    docs, web = Library(), Subscribable(MODERN, uris=["memo:9"], capabilities={"tools": {}})
    settings = {"web": {"caching": False}}
    async with open_world({"docs": docs, "web": web}, settings=settings, caching=TRUSTING) as world:
        client = await ready(world)
        for _ in range(2):
            listed = (await client.request("resources/list"))["resources"]
            assert [resource["uri"] for resource in listed if resource["uri"].startswith("web+")] == []
        web.capabilities = OFFERS
        await world.kill("web")
        await trio.sleep(30)
        listed = (await client.request("resources/list"))["resources"]
        assert [resource["uri"] for resource in listed if resource["uri"].startswith("web+")] == [
            "web+memo:9"
        ]


async def test_a_raw_uri_is_found_without_walking_the_lists_again(autojump_clock):
    docs, web = Library(uris=["memo:1"]), Library(uris=["memo:2"])
    async with open_world({"docs": docs, "web": web}, caching=TRUSTING) as world:
        client = await ready(world)
        for uri in ("memo:1", "memo:2") * 3:
            await client.request("resources/read", {"uri": uri})
        assert docs.asked["resources/list"] == web.asked["resources/list"] == 1


async def test_a_raw_uri_that_is_new_without_a_word_is_found(autojump_clock):
    docs, web = Library(uris=["memo:1"]), Library(uris=["memo:2"])
    async with open_world({"docs": docs, "web": web}, caching=TRUSTING) as world:
        client = await ready(world)
        await client.request("resources/read", {"uri": "memo:1"})
        web.items("resources/list").append({"uri": "memo:new", "name": "new"})
        answer = await client.request("resources/read", {"uri": "memo:new"})
        assert answer["contents"][0]["uri"] == "web+memo:new"


async def test_a_shortened_name_is_found_in_the_kept_list_or_anew(
    autojump_clock,
):
    names = [f"{letter * 80}" for letter in "abc"]
    docs = Library(uris=["memo:1"])
    docs.lists["tools/list"] = ("tools", [{"name": names[0], "inputSchema": {"type": "object"}}])
    async with open_world({"docs": docs, "web": Library()}) as world:
        client = await ready(world)
        (tool,) = (await client.request("tools/list"))["tools"]
        for _ in range(3):
            await client.request("tools/call", {"name": tool["name"]})
        assert docs.asked == {"tools/list": 2, "tools/call": 3}  # by the client, and for the first call
        space = world.mux.router.resolver.namespace.spaces["docs"]
        docs.items("tools/list").append({"name": names[1], "inputSchema": {"type": "object"}})
        await client.request("tools/call", {"name": space.expose_name(names[1])})
        with pytest.raises(RpcFailure, match="Unknown tool"):
            await client.request("tools/call", {"name": space.expose_name(names[2])})


async def test_a_forgotten_cursor_drops_the_kept_list(autojump_clock):
    docs = Library(capabilities=SILENT)
    docs.list_hints, docs.page_size = {"ttlMs": 60_000, "cacheScope": "public"}, 2
    async with open_docs(docs, page_size=2) as (_, client):
        first = await client.request("resources/list")
        docs.fails = RpcFailure(-32602, "Invalid cursor")
        left_out = await client.request("resources/list", {"cursor": first["nextCursor"]})
        assert left_out["resources"] == []
        docs.fails = None
        assert len(await client.walk("resources/list", "resources")) == 4
        assert docs.asked["resources/list"] == 4


async def test_a_listen_that_breaks_off_ends_what_it_would_have_told(autojump_clock):
    docs = Library()
    async with open_docs(docs, caching=TRUSTING) as (_, client):
        for _ in range(2):
            await client.request("resources/list")
        (listen,) = docs._listens
        await docs.send(
            {
                "id": listen,
                "result": {
                    "resultType": "complete",
                    "_meta": {"io.modelcontextprotocol/subscriptionId": listen},
                },
            }
        )
        await wait_all_tasks_blocked()
        for _ in range(2):
            await client.request("resources/list")
        assert docs.asked["resources/list"] == 3
        await trio.sleep(30)  # another listen is open
        for _ in range(2):
            await client.request("resources/list")
        assert docs.asked["resources/list"] == 4
