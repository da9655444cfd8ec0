"""What one worker hears of changes, and what another forgets then. Virtual time."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from mcpmux.app.workers.changes import SPREAD_SECONDS, WAITING_LIMIT, Changes, Rounds, forget_changed
from tests.runtime.scripted import MODERN
from tests.runtime.subscribable import Subscribable
from tests.runtime.test_caching import READ, URI, Library, read, ready
from tests.runtime.world import open_world


async def test_who_takes_waits_for_changes_and_gets_each_once():
    changes, taken = Changes(), []

    async def take() -> None:
        taken.append((await changes.take())[0])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        assert not taken
        changes.add([("docs", "memo:1"), ("docs", "memo:2")])
        changes.add([("docs", "memo:1")])
    assert taken == [(("docs", "memo:1"), ("docs", "memo:2"))]


async def test_a_flood_of_changes_is_a_change_of_everything():
    changes = Changes()
    changes.add(("docs", f"memo:{number}") for number in range(WAITING_LIMIT))
    changes.add([("notes", "memo:1")])
    assert await changes.take() == ((("docs", None), ("notes", None)), [])


@pytest.mark.parametrize(
    ("changed", "asked"),
    [(("docs", URI), 2), (("docs", None), 2), (("docs", "memo:1"), 1), (("notes", URI), 1)],
)
async def test_only_what_has_changed_is_forgotten(autojump_clock, changed, asked):
    docs = Library()
    async with open_world({"docs": docs, "other": Library()}) as world:
        client = await ready(world)
        await read(client)
        forget_changed(world.mux.upstreams, [changed])
        await read(client)
        assert docs.reads == asked


async def test_what_is_asked_while_it_changes_is_not_kept(autojump_clock):
    docs = Library()
    docs.held = trio.Event()
    async with open_world({"docs": docs, "other": Library()}) as world:
        client = await ready(world)
        await client.start("resources/read", READ)
        await wait_all_tasks_blocked()
        forget_changed(world.mux.upstreams, [("docs", URI)])
        docs.held.set()
        await wait_all_tasks_blocked()
        assert await read(await ready(world)) == "2"


async def test_others_hear_of_an_update_before_clients_do(autojump_clock: trio.testing.MockClock):
    docs = Subscribable(MODERN)
    async with open_world({"docs": docs, "other": Subscribable(MODERN)}) as world:
        heard: list[tuple[str, str]] = []
        world.mux.relay.pause = 1.0
        world.mux.relay.on_update = lambda upstream, uri: heard.append((upstream, uri))
        client = await ready(world)
        wish = {"resourceSubscriptions": ["docs+memo:1"]}
        await client.start("subscriptions/listen", {"notifications": wish})
        await client.receive_method("notifications/subscriptions/acknowledged")
        began = trio.current_time()
        await docs.update("memo:1")
        await docs.update("memo:1")
        await wait_all_tasks_blocked()
        assert heard == [("docs", "memo:1")] * 2
        assert trio.current_time() == began
        await client.receive_method("notifications/resources/updated")
        assert trio.current_time() == began + 1
        assert await client.drain() == []

        began = trio.current_time()
        await docs.update("memo:1")
        await trio.sleep(0.25)  # of the virtual clock: the second update is later
        await docs.update("memo:1")
        await wait_all_tasks_blocked()
        world.mux.relay.know(began)
        await client.receive_method("notifications/resources/updated")
        assert trio.current_time() == began + 0.25
        await client.receive_method("notifications/resources/updated")  # others may have read in between
        assert trio.current_time() == began + 1.25
        assert await client.drain() == []


def test_what_was_said_is_known_when_all_before_it_is():
    rounds = Rounds()
    first, second, third = (rounds.begin(now) for now in (1.0, 1.1, 1.2))
    assert rounds.known(second, 1.3) is None
    assert rounds.known(first, 1.3) == 1.1
    assert rounds.known(first, 1.3) is None
    assert rounds.known(third, 1.3) == 1.2


def test_what_nobody_answers_is_not_waited_for():
    rounds = Rounds()
    rounds.begin(1.0)
    second = rounds.begin(1.1)
    assert rounds.known(second, 1.2) is None
    third = rounds.begin(1.0 + SPREAD_SECONDS)
    assert rounds.known(third, 1.0 + SPREAD_SECONDS) == 1.0 + SPREAD_SECONDS
