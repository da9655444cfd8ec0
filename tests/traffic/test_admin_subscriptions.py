"""Subscriptions and their clients, over the admin listener."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from mcpmux.runtime import notification_hub
from mcpmux.traffic.admin import upstreams as admin_upstreams
from mcpmux.traffic.admin.upstreams import ListeningClient, Subscription, merge_subscriptions
from tests.peers.server import ScriptedServer
from tests.peers.subscribable import Subscribable
from tests.traffic.admin_world import Listening, get, listening

WAIT_SECONDS = 60
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
UPDATED = "notifications/resources/updated"
TOOLS_CHANGED = "notifications/tools/list_changed"


async def subscriptions_of(here: Listening) -> dict[str, Any]:
    table = (await get(here, "/api/subscriptions"))["subscriptions"]
    return {row["uri"] or row["list"]: row for row in table}


async def listen(here: Listening, *uris: str, **lists: bool) -> Any:
    """Return a modern client that listens."""
    client = here.world.client()
    await client.start("subscriptions/listen", {"notifications": {"resourceSubscriptions": uris, **lists}})
    await client.receive_method(ACKNOWLEDGED)
    return client


async def test_clients_of_both_eras_are_told_with_what_they_listen_to():
    docs = Subscribable("2025-11-25")
    async with listening(servers={"docs": docs, "search": None}, tap=True) as here:
        assert await subscriptions_of(here) == {}
        modern = await listen(here, "docs+memo:1", toolsListChanged=True)
        legacy = here.world.client()
        await legacy.initialize("2025-11-25")
        for uri in ("docs+memo:1", "docs+memo:2"):
            await legacy.request("resources/subscribe", {"uri": uri})
        table = await subscriptions_of(here)
        assert list(table) == ["tools", "prompts", "resources", "docs+memo:1", "docs+memo:2"]
        both = table["docs+memo:1"]
        assert (both["upstream"], both["sessions"], both["agreed"]) == ("docs", ["docs"], True)
        assert (both["changed"], both["told"]) == (None, 0)
        clients = {client["era"]: client for client in both["clients"]}
        assert clients.keys() == {"modern", "legacy"}
        assert (clients["modern"]["revision"], clients["modern"]["name"]) == ("2026-07-28", "scripted")
        assert clients["legacy"]["revision"] == "2025-11-25"
        rows = (await get(here, f"/api/exchanges?filter=peer%3D{clients['modern']['peer']}"))["rows"]
        assert [row["method"] for row in rows] == ["subscriptions/listen"]
        assert [client["era"] for client in table["docs+memo:2"]["clients"]] == ["legacy"]
        assert len(table["tools"]["clients"]) == 2
        assert len(table["prompts"]["clients"]) == 1

        with trio.fail_after(WAIT_SECONDS):
            await docs.update("memo:1")
            for client in (modern, legacy):
                await client.receive_method(UPDATED)
            await docs.notify(TOOLS_CHANGED)
            for client in (modern, legacy):
                await client.receive_method(TOOLS_CHANGED)
        table = await subscriptions_of(here)
        for row in (table["docs+memo:1"], table["tools"]):
            assert row["told"] == 2
            assert row["changed"].endswith("Z")
        assert table["docs+memo:2"]["changed"] is None
        await modern.vanish()
        with trio.fail_after(WAIT_SECONDS):
            while len((await subscriptions_of(here))["docs+memo:1"]["clients"]) > 1:
                pass
        await legacy.vanish()
        with trio.fail_after(WAIT_SECONDS):
            while await subscriptions_of(here):
                pass


async def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(admin_upstreams, "RESOURCES", 2)
    monkeypatch.setattr(admin_upstreams, "CLIENTS", 1)
    docs = Subscribable("2025-11-25")
    async with listening(servers={"docs": docs}, tap=True) as here:
        client = await listen(here, "docs+memo:1", "docs+memo:2", "docs+memo:3")
        await listen(here, "docs+memo:3")
        assert list(await subscriptions_of(here)) == ["docs+memo:1", "docs+memo:2"]
        with trio.fail_after(WAIT_SECONDS):
            await docs.update("memo:3")
            await client.receive_method(UPDATED)
        table = await subscriptions_of(here)
        assert list(table) == ["docs+memo:3", "docs+memo:1"]  # the newest change first
        assert (len(table["docs+memo:3"]["clients"]), table["docs+memo:3"]["more_clients"]) == (1, 1)


async def test_no_more_than_so_many_changes_are_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(notification_hub, "TOLD_LIMIT", 2)
    docs = Subscribable("2025-11-25")
    async with listening(servers={"docs": docs}) as here:
        client = await listen(here, "docs+memo:1", "docs+memo:2", "docs+memo:3")
        with trio.fail_after(WAIT_SECONDS):
            for number in (1, 2, 1, 3):
                await docs.update(f"memo:{number}")
                await client.receive_method(UPDATED)
        assert list(here.world.mux.hub.told) == [("docs", "memo:1"), ("docs", "memo:3")]


async def test_secrets_are_not_told():
    secret = "sk-live-4242424242424242abcdef"
    docs = Subscribable("2025-11-25", uris=[f"memo:?token={secret}"])
    async with listening(servers={"docs": docs, "other": ScriptedServer(tools=[])}, tap=True) as here:
        await listen(here, f"docs+memo:?token={secret}")
        (uri,) = await subscriptions_of(here)
        assert uri.startswith("docs+memo:?token=[redacted: ")


def of_worker(peer: str | None, **more: Any) -> Subscription:
    client = ListeningClient(era="modern", principal=None, view=None, peer=peer)
    facts = {"upstream": "docs", "uri": "docs+a:1", "sessions": ["docs"], "changed": None, "told": 0}
    return Subscription(**{"clients": [client], "more_clients": 0, **facts, **more})


def test_what_workers_say_is_one():
    early, late = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"
    lists: dict[str, Any] = {"upstream": None, "uri": None, "sessions": []}
    workers = {
        1: [of_worker("c1", told=1, changed=late), of_worker("c2", **lists, list="tools")],
        2: [
            of_worker("c1", told=2, changed=early, agreed=False, more_clients=3),
            of_worker(None, uri="docs+b:2"),
        ],
    }
    tools, first, second = merge_subscriptions(workers)
    assert msgspec.structs.replace(first, clients=[]) == of_worker(
        "", sessions=["1/docs", "2/docs"], changed=late, told=3, agreed=False, more_clients=3, clients=[]
    )
    assert [client.peer for client in first.clients] == ["1/c1", "2/c1"]
    assert (tools.list, tools.sessions) == ("tools", [])
    assert (second.uri, second.clients[0].peer) == ("docs+b:2", None)
