"""Access rules between clients of every revision and servers of both eras: filtered, refused, untold.

What rules and views have in common is tested with both; what only views have is in `test_views`.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import attrs
import pytest
import trio

from mcpmux.config import AccessRule
from mcpmux.config.views import Selector, View
from mcpmux.mux.policy import policy_of
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.runtime.access_control import ALL_SHOWN
from mcpmux.runtime.client_outbox import ClientOutbox
from tests.peers.client import ScriptedClient
from tests.peers.revision import ERAS, LEGACY, MODERN, Json
from tests.peers.server import CACHE, RpcFailure, ScriptedServer
from tests.peers.subscribable import Subscribable
from tests.peers.task_server import EXTENSION, TaskServer
from tests.runtime.world import World, open_world

REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", MODERN]
ALICE, BOB = Principal("alice"), Principal("bob")
SECRET_WORDS = ("secret", "vault")

RULES = (
    AccessRule(effect="allow", principals=("alice",), upstreams=("docs",)),
    AccessRule(
        effect="deny", principals=("alice",), targets=("file:///secret/*", "secret-*"), name="no-secrets"
    ),
    AccessRule(effect="allow", principals=("bob",)),
)
"""Alice may use all of `docs` but its secrets, Bob everything, nobody else anything."""

CODING = View(include=(Selector(upstream="docs"),), exclude=(Selector(name="*secret*"),))
VIEWS = {"coding": CODING, "own": View(include=(Selector(upstream="*"),), principals=("alice",))}
CODER = ANYONE.within("coding")


class Restriction(NamedTuple):
    """Settings by which `few` may use all of `docs` but its secrets, and `many` everything."""

    settings: Json
    few: Principal
    many: Principal


RULED = Restriction({"access": RULES}, ALICE, BOB)
VIEWED = Restriction({"views": VIEWS}, CODER, ANYONE)
by_each_restriction = pytest.mark.parametrize("restriction", [RULED, VIEWED], ids=["rules", "view"])

LISTS = [
    ("resources/list", "resources", "uri"),
    ("resources/templates/list", "resourceTemplates", "uriTemplate"),
    ("tools/list", "tools", "name"),
    ("prompts/list", "prompts", "name"),
]


class Store(Subscribable):
    """Has open and secret things of every kind; `seen` tells what it was asked."""

    def __init__(self, revision: str, *, page_size: int = 1000, count: int = 1, **settings: Any) -> None:
        numbers = range(count)
        uris = [f"file:///{kind}/{n}" for n in numbers for kind in ("open", "secret")]
        super().__init__(revision, uris=uris)
        self.page_size = page_size
        self.instructions = settings.get("instructions")
        self.capabilities = {
            "resources": {"subscribe": True, "listChanged": True},
            "tools": {"listChanged": True},
            "prompts": {"listChanged": True},
            "completions": {},
        }
        templates = ["file:///open/{name}", "file:///secret/{name}", "file:///{+path}"]
        self.lists = {
            "resources/list": ("resources", [{"uri": uri, "name": "x"} for uri in uris]),
            "resources/templates/list": (
                "resourceTemplates",
                [{"uriTemplate": template, "name": "x"} for template in templates],
            ),
            "tools/list": (
                "tools",
                [{"name": f"{k}-tool", "inputSchema": {"type": "object"}} for k in ("open", "secret")],
            ),
            "prompts/list": ("prompts", [{"name": f"{k}-prompt"} for k in ("open", "secret")]),
        }

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        more = {"resultType": "complete"} if self.modern else {}
        if method == "resources/read":
            result = {"contents": [{"uri": params["uri"], "text": "t"}]} | more
            return result | (CACHE | {"cacheScope": "public"} if self.modern else {})
        if method == "tools/call":
            return {"content": [{"type": "text", "text": params["name"]}]} | more
        if method == "prompts/get":
            return {"messages": []} | more
        if method == "completion/complete":
            return {"completion": {"values": ["v"]}} | more
        return await super().handle(method, params, message)

    def asked(self, *methods: str) -> list[Json]:
        return [message for message in self.seen if message.get("method") in methods]


def stores(up: str = MODERN) -> dict[str, Any]:
    return {"docs": Store(up, instructions="docs!"), "vault": Store(up, instructions="vault!")}


async def client_of(world: World, principal: Principal, revision: str) -> ScriptedClient:
    return await world.open_client(revision, principal=principal)


def knows_nothing(told: Any, *words: str) -> None:
    for word in words or SECRET_WORDS:
        assert word not in repr(told), told


@by_each_restriction
@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", REVISIONS)
async def test_lists_show_what_may_be_used_and_name_nothing_else(restriction, up, down, autojump_clock):
    servers = stores(up)
    async with open_world(servers, **restriction.settings) as world:
        few, many = [await client_of(world, rules, down) for rules in (restriction.few, restriction.many)]
        servers["vault"].seen.clear()
        for method, key, name in LISTS:
            page = await few.request(method)
            knows_nothing(page)
            assert [item[name] for item in page[key]], page
        assert not servers["vault"].asked(*(method for method, _, _ in LISTS))
        for method, key, _ in LISTS:
            assert "vault" in repr(await many.request(method)), key
        assert len(await many.walk("resources/list", "resources")) == 4
        if restriction is RULED:
            stranger = await client_of(world, ANYONE, down)
            for method, key, _ in LISTS:
                assert (await stranger.request(method))[key] == []


@by_each_restriction
@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", REVISIONS)
async def test_listed_items_are_usable_and_others_are_unknown(restriction, up, down, autojump_clock):
    servers = stores(up)
    async with open_world(servers, **restriction.settings) as world:
        few, many = [await client_of(world, rules, down) for rules in (restriction.few, restriction.many)]
        for method, key, member, use in (
            ("resources/list", "resources", "uri", "resources/read"),
            ("tools/list", "tools", "name", "tools/call"),
            ("prompts/list", "prompts", "name", "prompts/get"),
        ):
            listed = {item[member] for item in await few.walk(method, key)}
            assert listed
            for item in await many.walk(method, key):
                if item[member] in listed:
                    await few.request(use, {member: item[member]})
                else:
                    nobodys = "vault+file:///nowhere" if member == "uri" else "nobody__has-this"
                    await check_absent(few, use, member, item[member], nobodys)
        assert not servers["vault"].asked("resources/read", "tools/call", "prompts/get")
        assert not [message for message in servers["docs"].seen if "secret" in repr(message.get("params"))]


def without_hint(error: Json) -> str:
    """Return the message of an error without its hint, which names no secret."""
    message, _, near = error["message"].partition("; did you mean ")
    knows_nothing(near)
    return str(message)


async def check_absent(client: ScriptedClient, method: str, key: str, refused: str, nonexistent: str) -> None:
    """Check that the answers about a refused and a missing target have the same words."""
    error = await client.refusal(method, {key: refused})
    other = await client.refusal(method, {key: nonexistent})
    for failure in (error, other):
        failure["message"] = without_hint(failure)
    assert repr(error).replace(refused, "…") == repr(other).replace(nonexistent, "…")


SPELLED_URIS = [
    "docs+file:///open/../secret/0",
    "docs+file:///open/%2e%2e/secret/0",
    "docs+FILE:///secret/0",
    "docs+file:///s%65cret/0",
    "docs+file://localhost/secret/0",
    "file:///secret/0",
    "vault+file:///open/0",
    "nobody+file:///open/0",
]


@by_each_restriction
@pytest.mark.parametrize("uri", SPELLED_URIS)
@pytest.mark.parametrize("down", ERAS)
async def test_no_spelling_of_a_denied_uri_is_read(restriction, uri, down, autojump_clock):
    servers = stores()
    async with open_world(servers, **restriction.settings) as world:
        few = await client_of(world, restriction.few, down)
        error = await few.refusal("resources/read", {"uri": uri})
        assert without_hint(error) == f"Resource not found: no upstream owns {uri}"
        assert not servers["docs"].asked("resources/read") + servers["vault"].asked("resources/read")


@by_each_restriction
@pytest.mark.parametrize("down", REVISIONS)
async def test_a_raw_uri_or_name_belongs_to_an_allowed_upstream(restriction, down, autojump_clock):
    servers = stores()
    async with open_world(servers, **restriction.settings) as world:
        few, many = [await client_of(world, rules, down) for rules in (restriction.few, restriction.many)]
        result = await few.request("resources/read", {"uri": "file:///open/0"})
        assert result["contents"][0]["uri"] == "docs+file:///open/0"
        result = await few.request("tools/call", {"name": "open-tool"})
        assert result["content"][0]["text"] == "open-tool"
        error = await many.refusal("resources/read", {"uri": "file:///open/0"})
        assert "ask for docs+file:///open/0 or vault+file:///open/0" in error["message"]
        assert not servers["vault"].asked("resources/read")


@by_each_restriction
@pytest.mark.parametrize("down", REVISIONS)
async def test_completions_are_given_only_where_they_tell_of_nothing_hidden(
    restriction, down, autojump_clock
):
    async with open_world(stores(), **restriction.settings) as world:
        few = await client_of(world, restriction.few, down)
        hidden = ["docs+file:///secret/{name}", "vault+file:///open/{name}"]
        # A view shows the template that stands for everything; a rule judges all that it stands for.
        hidden += ["docs+file:///{+path}"] if restriction is RULED else []
        for ref, absence in (
            ({"type": "ref/resource", "uri": "docs+file:///open/{name}"}, None),
            *(
                ({"type": "ref/resource", "uri": uri}, f"Resource not found: no upstream owns {uri}")
                for uri in hidden
            ),
            ({"type": "ref/prompt", "name": "docs__open-prompt"}, None),
            ({"type": "ref/prompt", "name": "docs__secret-prompt"}, "Unknown prompt: docs__secret-prompt"),
        ):
            params = {"ref": ref, "argument": {"name": "name", "value": "v"}}
            if absence is None:
                await few.request("completion/complete", params)
            else:
                assert without_hint(await few.refusal("completion/complete", params)) == absence


DODGES: list[tuple[str, Json]] = [
    ("resources/read", {"uri": "docs+file:///open/0", "URI": "file:///secret/0"}),
    ("tools/call", {"name": "docs__open-tool", "Name": "secret-tool"}),
    ("prompts/get", {"name": "docs__open-prompt", "NAME": "secret-prompt"}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "docs__open-prompt", "Name": "x"}}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "docs__open-prompt"}, "Ref": {}}),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "docs__open-prompt", "uri": "file:///secret/{name}"}},
    ),
    (
        "completion/complete",
        {"ref": {"type": "ref/resource", "uri": "docs+file:///open/{name}", "name": "secret"}},
    ),
    ("tasks/get", {"taskId": "docs+1", "ta\u017fk\u0049d": "2"}),
]


@pytest.mark.parametrize(("method", "params"), DODGES, ids=lambda value: str(list(value)))
@pytest.mark.parametrize("prefix", ["docs", ""])
async def test_no_member_that_resembles_the_judged_one_is_passed_on(method, params, prefix, autojump_clock):
    """Servers that do not look at the case of letters, such as those in Go, take the last one."""
    server = Store(MODERN)
    async with open_world({"docs": server}, access=RULES, settings={"docs": {"prefix": prefix}}) as world:
        alice = await client_of(world, ALICE, MODERN)
        error = await alice.refusal(method, params)
        assert error["code"] == -32602
        assert re.search('is not known; is|has a "(uri|name)" and no', error["message"])
        assert not server.asked(method)


@pytest.mark.parametrize("template", ["open/../secret/{name}", "%73ecret/{name}", "open/..%2fsecret/{name}"])
async def test_no_spelling_of_a_denied_template_is_completed(template, autojump_clock):
    servers = stores()
    async with open_world(servers, access=RULES) as world:
        alice = await client_of(world, ALICE, MODERN)
        ref = {"type": "ref/resource", "uri": f"docs+file:///{template}"}
        argument = {"name": "name", "value": ""}
        error = await alice.refusal("completion/complete", {"ref": ref, "argument": argument})
        assert without_hint(error) == f"Resource not found: no upstream owns docs+file:///{template}"
        assert not servers["docs"].asked("completion/complete")


async def test_a_page_of_which_hardly_anything_is_shown_comes_to_an_end(autojump_clock):
    hidden = AccessRule(effect="allow", principals=("alice",), targets=("file:///open/199",))
    server = Store(MODERN, page_size=10, count=200)
    async with open_world({"docs": server, "vault": Store(MODERN)}, access=(hidden,), page_size=5) as world:
        alice = world.client(principal=ALICE)
        page = await alice.request("resources/list")
        assert page["resources"] == []
        assert len(server.asked("resources/list")) == 5  # ten page sizes of items
        assert [item["uri"] for item in await alice.walk("resources/list", "resources")] == [
            "docs+file:///open/199"
        ]


async def test_a_list_that_begins_again_ends_under_rules_too(autojump_clock):
    uris = [f"file:///{kind}/{number}" for number in range(200) for kind in ("secret", "open")]

    async def answer(_server: ScriptedServer, params: Json, _message: Json) -> Json:
        start = int(params.get("cursor", 0))
        page = [{"uri": uris[place % len(uris)], "name": "x"} for place in range(start, start + 20)]
        return {"resultType": "complete", "resources": page, "nextCursor": str(start + 20), **CACHE}

    server = ScriptedServer(resources=[], handlers={"resources/list": answer})
    async with open_world({"docs": server}, access=RULES, page_size=5) as world:
        seen = [
            item["uri"] for item in await world.client(principal=ALICE).walk("resources/list", "resources")
        ]
    assert seen == [f"docs+{uri}" for uri in uris[1::2]]


@pytest.mark.parametrize("down", REVISIONS)
async def test_a_failed_upstream_is_told_only_to_who_may_use_it(down, autojump_clock):
    async with open_world({"docs": Store(MODERN), "vault": None}, access=RULES) as world:
        alice, bob = await client_of(world, ALICE, down), await client_of(world, BOB, down)
        knows_nothing(await alice.request("tools/list"))
        assert "vault" in repr(await bob.request("tools/list"))


@pytest.mark.parametrize("down", REVISIONS)
async def test_the_introduction_tells_of_nothing_hidden(down, autojump_clock):
    rules = (
        AccessRule(effect="allow", principals=("alice",), upstreams=("docs",), methods=("read",)),
        AccessRule(effect="allow", principals=("bob",)),
    )
    async with open_world(stores(), access=rules) as world:

        async def introduced(principal: Principal) -> Json:
            client = world.client(principal=principal)
            if down == MODERN:
                return await client.request("server/discover")
            return await client.initialize(down)

        alice, bob = await introduced(ALICE), await introduced(BOB)
        knows_nothing(alice)
        assert alice["capabilities"] == {"resources": {"listChanged": True}}
        assert "docs!" in alice["instructions"]
        assert {"tools", "prompts", "completions"} <= bob["capabilities"].keys()
        assert "vault!" in bob["instructions"]
        stranger = await introduced(Principal(""))
        assert stranger["capabilities"] == {} and "instructions" not in stranger


async def test_what_only_some_may_see_is_not_for_a_shared_cache(autojump_clock):
    servers = stores()
    async with open_world(servers, access=RULES) as world:
        alice = world.client(principal=ALICE)
        for method, params in (("resources/list", {}), ("resources/read", {"uri": "docs+file:///open/0"})):
            assert (await alice.request(method, params))["cacheScope"] == "private"
    async with open_world(servers) as world:
        result = await world.client().request("resources/read", {"uri": "docs+file:///open/0"})
        assert result["cacheScope"] == "public"


# One unprefixed upstream


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", REVISIONS)
async def test_the_rules_hold_for_an_upstream_that_is_passed_through(up, down, autojump_clock):
    server = Store(up)
    bare = {"docs": {"prefix": ""}}
    async with open_world({"docs": server}, access=RULES, settings=bare) as world:
        alice = await client_of(world, ALICE, down)
        for method, key, name in LISTS:
            items = [item[name] for item in (await alice.request(method))[key]]
            assert items and not any("secret" in item for item in items)
        await alice.request("resources/read", {"uri": "file:///open/0"})
        await alice.request("tools/call", {"name": "open-tool"})
        server.seen.clear()
        await alice.refusal("resources/read", {"uri": "file:///secret/0"})
        await alice.refusal("tools/call", {"name": "secret-tool"})
        await alice.refusal("prompts/get", {"name": "secret-prompt"})
        ref = {"type": "ref/resource", "uri": "file:///{+path}"}
        await alice.refusal("completion/complete", {"ref": ref, "argument": {"name": "path", "value": ""}})
        for kind in ("ref/Resource", "", None):
            unknown = {"type": kind, "uri": "file:///secret/{name}", "name": "open-prompt"}
            argument = {"name": "name", "value": ""}
            error = await alice.refusal("completion/complete", {"ref": unknown, "argument": argument})
            assert error["code"] == -32602
        error = await alice.refusal("vendor/anything", {})
        assert error["code"] == -32601
        stranger = await client_of(world, Principal(""), down)
        assert (await stranger.request("resources/list"))["resources"] == []
        await stranger.refusal("resources/read", {"uri": "file:///open/0"})
        methods = {message.get("method") for message in server.seen}
        assert methods <= {"ping", None, *(method for method, _, _ in LISTS)}  # lists: for hints


# Subscriptions and changes


async def subscribe(client: ScriptedClient, uris: list[str], **lists: bool) -> Json:
    """Return the granted part: the acknowledgement's filter, or the URIs that were not refused."""
    if client.revision == MODERN:
        wish = {"resourceSubscriptions": uris, **lists}
        await client.start("subscriptions/listen", {"notifications": wish})
        acknowledged: Json = (await client.receive())["params"]["notifications"]
        return acknowledged
    granted = []
    for uri in uris:
        try:
            await client.request("resources/subscribe", {"uri": uri})
            granted.append(uri)
        except RpcFailure:
            pass
    return {"resourceSubscriptions": granted}


ALL_LISTS = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}


@by_each_restriction
@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", REVISIONS)
async def test_only_what_may_be_subscribed_to_is(restriction, up, down, autojump_clock):
    servers = stores(up)
    async with open_world(servers, **restriction.settings) as world:
        few = await client_of(world, restriction.few, down)
        uris = ["docs+file:///open/0", "docs+file:///secret/0", "vault+file:///open/0", "file:///secret/0"]
        granted = await subscribe(few, uris)
        assert granted == {"resourceSubscriptions": ["docs+file:///open/0"]}
        await trio.sleep(10)
        assert servers["docs"].subscribed == {"file:///open/0"}
        assert servers["vault"].subscribed == set()


@pytest.mark.parametrize("down", REVISIONS)
async def test_updates_of_a_denied_part_are_not_sent(down, autojump_clock):
    server = Subscribable(MODERN, uris=["file:///a"])
    rules = (
        AccessRule(effect="allow", principals=("alice",), targets=("file:///a", "file:///a/*")),
        AccessRule(effect="deny", targets=("file:///a/secret*",)),
    )
    async with open_world({"docs": server, "vault": Store(MODERN)}, access=rules) as world:
        alice = await client_of(world, ALICE, down)
        await subscribe(alice, ["docs+file:///a"])
        await server.update("file:///a/secret1", through="file:///a")
        await server.update("file:///a/open", through="file:///a")
        messages = await alice.drain()
        assert [message["params"]["uri"] for message in messages] == ["docs+file:///a/open"]


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", REVISIONS)
async def test_a_list_change_is_told_to_whom_the_list_is_of_use(up, down, autojump_clock):
    servers = stores(up)
    rules = (
        AccessRule(effect="allow", principals=("alice",), upstreams=("docs",), methods=("read",)),
        AccessRule(effect="allow", principals=("bob",)),
    )
    async with open_world(servers, access=rules) as world:
        alice, bob = await client_of(world, ALICE, down), await client_of(world, BOB, down)
        if down == MODERN:
            assert await subscribe(alice, [], **ALL_LISTS) == {"resourcesListChanged": True}
            assert await subscribe(bob, [], **ALL_LISTS) == ALL_LISTS
            await alice.drain(), await bob.drain()  # the upstreams have just appeared
        await servers["vault"].notify("notifications/resources/list_changed")
        await servers["docs"].notify("notifications/tools/list_changed")
        assert await alice.drain() == []
        assert len(await bob.drain()) == 2
        await servers["docs"].notify("notifications/resources/list_changed")
        assert [m["method"] for m in await alice.drain()] == ["notifications/resources/list_changed"]


LESS = (
    AccessRule(effect="allow", principals=("alice",), targets=("file:///open/0",)),
    AccessRule(effect="allow", principals=("bob",)),
)


@pytest.mark.parametrize("down", REVISIONS)
async def test_other_rules_end_subscriptions_that_are_no_longer_allowed(down, autojump_clock):
    servers = {"docs": Store(MODERN, count=2), "vault": Store(MODERN)}
    both = ["docs+file:///open/0", "docs+file:///open/1"]
    async with open_world(servers, access=RULES) as world:
        alice, bob = await client_of(world, ALICE, down), await client_of(world, BOB, down)
        assert (await subscribe(alice, both, **ALL_LISTS))["resourceSubscriptions"] == both
        assert (await subscribe(bob, both, **ALL_LISTS))["resourceSubscriptions"] == both
        await trio.sleep(10)
        await servers["docs"].update("file:///open/1")
        world.mux.router.adopt(policy_of(LESS), ALL_SHOWN)
        messages = await alice.drain()
        knows_nothing(messages)
        if down == MODERN:
            assert (
                messages[-1]["result"]["resultType"] == "complete"
            )  # a graceful end, so that it listens anew
            again = await subscribe(alice, both, **ALL_LISTS)
            assert again["resourceSubscriptions"] == both[:1]
        else:
            assert {message["method"] for message in messages[-3:]} == {
                f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")
            }
        changes = [message["method"] for message in await bob.drain()]
        assert set(changes) >= {f"notifications/{kind}/list_changed" for kind in ("tools", "resources")}
        await servers["docs"].update("file:///open/1")
        await servers["docs"].update("file:///open/0")
        assert [m["params"]["uri"] for m in await alice.drain()] == both[:1]
        assert [m["params"]["uri"] for m in await bob.drain()] == both[::-1]
        world.mux.router.adopt(policy_of(LESS[1:]), ALL_SHOWN)
        await alice.drain()
        await trio.sleep(10)
        await servers["docs"].update("file:///open/0")
        assert await alice.drain() == []
        assert len(await bob.drain()) >= 1


async def test_updates_denied_while_they_wait_are_not_sent(autojump_clock):
    servers = {"docs": Store(MODERN, count=2), "vault": Store(MODERN)}
    async with open_world(servers, access=RULES) as world:
        hub = world.mux.hub
        outbox = hub.join(ClientOutbox(frozenset(), ALICE))
        for number in (0, 1):
            hub.subscribe(outbox, "docs", f"file:///open/{number}", said_raw=False)
        hub.tell_update("docs", "file:///open/1")
        await trio.testing.wait_all_tasks_blocked()  # it has been put into the mailbox
        world.mux.router.adopt(policy_of(LESS), ALL_SHOWN)
        outbox.close()
        uris = []
        while (event := await outbox.take()) is not None:
            uris.append(bytes(event.params["uri"]))
        assert uris == [b'"docs+file:///open/0"']  # it may have been that one
        hub.leave(outbox)


async def test_a_reloaded_configuration_brings_its_rules(autojump_clock):
    servers = stores()
    async with open_world(servers) as world:
        alice = world.client(principal=ALICE)
        await alice.request("resources/read", {"uri": "vault+file:///open/0"})
        plan = world.mux.apply(attrs.evolve(world.mux.config, access=RULES))
        assert plan.settings == ("access",)
        await alice.refusal("resources/read", {"uri": "vault+file:///open/0"})
        world.mux.apply(attrs.evolve(world.mux.config, access=()))
        assert world.mux.router.access.policy is None
        await alice.request("resources/read", {"uri": "vault+file:///open/0"})


# Tasks


async def test_a_task_of_a_tool_denied_since_is_unknown(autojump_clock):
    server = TaskServer(LEGACY)
    only_may = AccessRule(effect="allow", principals=("alice",), targets=("may",))
    async with open_world({"x": server, "y": Store(MODERN)}, access=(AccessRule(effect="allow"),)) as world:
        alice = world.client(principal=ALICE)
        await alice.initialize(LEGACY)
        await alice.drain()
        made = {}
        for tool in ("must", "may"):
            result = await alice.request("tools/call", {"name": f"x__{tool}", "task": {}})
            made[tool] = result["task"]["taskId"]
        world.mux.router.adopt(policy_of((only_may,)), ALL_SHOWN)
        await alice.drain()
        seen = len(server.seen)
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            error = await alice.refusal(method, {"taskId": made["must"]})
            assert error == {"code": -32602, "message": "Task not found"}
        assert len(server.seen) == seen
        await server.tell("t1")
        await server.tell("t2")
        assert [message["params"]["taskId"] for message in await alice.drain()] == [made["may"]]
        assert (await alice.request("tasks/get", {"taskId": made["may"]}))["taskId"] == made["may"]
        listed = await alice.request("tasks/list")
        assert [task["taskId"] for task in listed["tasks"]] == [made["may"]]


async def test_a_task_of_an_unknown_tool_needs_a_rule_about_all_tools(autojump_clock):
    server = TaskServer(MODERN)
    rule = AccessRule(effect="allow", principals=("alice",), targets=("may",))
    async with open_world({"x": server, "y": Store(MODERN)}, access=(rule,)) as world:
        alice = world.client(principal=ALICE)
        alice.capabilities = {"extensions": {EXTENSION: {}}}
        error = await alice.refusal("tasks/get", {"taskId": "x+t9"})
        assert error["message"] == "Task not found"
        assert not server.calls_of("tasks/get")


SECRETS: dict[str, Json] = {
    "tools/call": {"name": "docs__secret-tool"},
    "prompts/get": {"name": "docs__secret-prompt"},
    "resources/read": {"uri": "docs+file:///secret/0"},
    "resources/subscribe": {"uri": "docs+file:///secret/0"},
    "completion/complete": {
        "ref": {"type": "ref/resource", "uri": "docs+file:///secret/{name}"},
        "argument": {"name": "name", "value": ""},
    },
}
SPELLINGS = {
    "shown": ["docs__secret-tool", "docs__secret-prompt", "docs+file:///secret/0"],
    "own": ["secret-tool", "secret-prompt", "file:///secret/0"],
    "shown globs": ["docs__secret-*", "docs+file:///secret/*"],
    "globs with a star for the prefix": ["*__secret-*", "d*+file:///secret/*"],
}


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", [LEGACY, MODERN])
@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_deny_in_either_spelling_denies_every_use(spelling, down, up, autojump_clock):
    targets = tuple(SPELLINGS[spelling])
    rules = (AccessRule(effect="allow"), AccessRule(effect="deny", targets=targets))
    servers = {"docs": Store(up), "web": Store(up)}
    async with open_world(servers, access=rules) as world:
        client = await client_of(world, ALICE, down)
        for method, params in SECRETS.items():
            if method == "resources/subscribe" and down == MODERN:
                continue  # a listen asks for it
            servers["docs"].seen.clear()
            await client.refusal(method, params)
            assert not servers["docs"].asked(method), method
        for method, key, name in LISTS[::2]:  # templates and prompts are alike
            listed = [item[name] for item in (await client.request(method))[key]]
            secret = [uri for uri in listed if "secret" in uri and uri.startswith("docs")]
            assert secret == [] and any(uri.startswith("docs") for uri in listed)
        if spelling.startswith("shown"):  # what another server has is not meant
            assert await client.request("tools/call", {"name": "web__secret-tool"})
            assert await client.request("resources/read", {"uri": "web+file:///secret/0"})


@pytest.mark.parametrize("down", [LEGACY, MODERN])
async def test_an_allow_with_a_prefix_allows_nothing_of_another_server(down, autojump_clock):
    servers = {"docs": Store(MODERN), "evil": Store(MODERN)}
    servers["evil"].lists["tools/list"] = (
        "tools",
        [{"name": name, "inputSchema": {"type": "object"}} for name in ("docs__open-tool", "open-tool")],
    )
    rules = (AccessRule(effect="allow", targets=("docs__open-tool", "docs+file:///open/*")),)
    async with open_world(servers, access=rules) as world:
        client = await client_of(world, ALICE, down)
        tools = [tool["name"] for tool in (await client.request("tools/list"))["tools"]]
        assert tools == ["docs__open-tool"]
        assert await client.request("tools/call", {"name": "docs__open-tool"})
        for name in ("evil__docs__open-tool", "evil__open-tool", "docs__secret-tool"):
            error = await client.refusal("tools/call", {"name": name})
            assert error["message"].startswith(f"Unknown tool: {name}")
        await client.refusal("resources/read", {"uri": "evil+file:///open/0"})
        assert await client.request("resources/read", {"uri": "docs+file:///open/0"})
        assert not servers["evil"].asked("tools/call", "resources/read", "tools/list")


@pytest.mark.parametrize("down", [LEGACY, MODERN])
async def test_a_misspelt_name_gets_the_nearest_that_its_client_may_use(down, autojump_clock):
    async with open_world(stores(), access=RULES) as world:
        alice, bob = await client_of(world, ALICE, down), await client_of(world, BOB, down)
        for client, name, near in (
            (bob, "vault_secret-toll", "`vault__secret-tool`?"),
            (bob, "secret-toll", "`docs__secret-tool`?"),
            (alice, "vault_secret-toll", ""),
            (alice, "vault__secret-toll", ""),
            (alice, "docs__secret-tool", "`docs__open-tool`?"),  # it is there, and not hers
            (alice, "docs_opne-tool", "`docs__open-tool`?"),
        ):
            error = await client.refusal("tools/call", {"name": name})
            assert error["message"].partition("; did you mean ")[2] == near, error
        error = await alice.refusal("resources/read", {"uri": "docs+file:///secret/1"})
        knows_nothing(error["message"].replace("docs+file:///secret/1", ""))


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", [LEGACY, MODERN])
async def test_an_error_of_a_server_names_what_the_client_asked_for(down, up, autojump_clock):
    class Lacking(Store):
        async def handle(self, method: str, params: Json, message: Json) -> Json:
            if method in ("tools/call", "prompts/get", "resources/read"):
                raise RpcFailure(-32602, f"Not found: {params.get('name') or params['uri']}")
            return await super().handle(method, params, message)

    async with open_world({"docs": Lacking(up), "web": Store(up)}) as world:
        client = await client_of(world, ALICE, down)
        error = await client.refusal("tools/call", {"name": "docs__open-toll"})
        assert error["message"] == "Not found: docs__open-toll; did you mean `docs__open-tool`?"
        error = await client.refusal("prompts/get", {"name": "docs__open-promt"})
        assert error["message"] == "Not found: docs__open-promt; did you mean `docs__open-prompt`?"
        error = await client.refusal("resources/read", {"uri": "docs+file:///open/O"})
        assert error["message"].startswith("Not found: docs+file:///open/O; did you mean `docs+file:///open/")


async def test_a_rule_follows_the_prefix_that_a_reload_gives(autojump_clock):
    rules = (AccessRule(effect="allow"), AccessRule(effect="deny", targets=("d__secret-tool",)))
    async with open_world({"docs": Store(MODERN), "web": Store(MODERN)}, access=rules) as world:
        client = await client_of(world, ALICE, MODERN)
        assert await client.request("tools/call", {"name": "docs__secret-tool"})
        docs, web = world.mux.config.upstreams
        upstreams = (attrs.evolve(docs, prefix="d"), web)
        world.mux.apply(attrs.evolve(world.mux.config, upstreams=upstreams))
        await client.refusal("tools/call", {"name": "d__secret-tool"})
        assert await client.request("tools/call", {"name": "d__open-tool"})
        assert await client.request("tools/call", {"name": "web__secret-tool"})
