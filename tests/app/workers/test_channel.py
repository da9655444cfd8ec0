"""The messages between supervisor and workers, and the generations of workers in shared memory."""

from __future__ import annotations

import os
import socket

import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from mcpmux.app.workers import channel
from mcpmux.app.workers.channel import ControlChannel, Handlers, map_counters, open_counters
from tests.runtime.world import open_world
from tests.upstreams.test_caching import Library, read, ready

TOOLS_CHANGED = "notifications/tools/list_changed"


async def test_what_is_posted_is_sent_in_order():
    sender, other = map(ControlChannel, socket.socketpair())
    received: list[str] = []
    async with trio.open_nursery() as nursery:
        for name in ("docs", "web", "docs"):
            sender.post("act", "drain", name)
            sender.post("changed", name)
        nursery.start_soon(sender.run, {})
        handlers: Handlers = {"act": lambda _action, name: received.append(name), "changed": received.append}
        nursery.start_soon(other.run, handlers)
        await wait_all_tasks_blocked()
        assert received == ["docs", "docs", "web", "web", "docs", "docs"]
        nursery.cancel_scope.cancel()
    sender.close()
    other.close()


async def test_a_question_is_answered_after_what_was_posted_before_it():
    sender, other = map(ControlChannel, socket.socketpair())
    done: list[str] = []

    async def renew() -> None:
        await trio.lowlevel.checkpoint()
        done.append("renewed")

    async def states() -> list[str]:
        return done.copy()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.run, {})
        nursery.start_soon(other.run, {"renew": renew, "states": states})
        sender.post("renew")
        assert await sender.ask("states") == ["renewed"]
        assert await sender.ask("nothing of that name") is None
        nursery.cancel_scope.cancel()
    sender.close()
    other.close()


async def test_what_is_posted_after_a_pause_waits_for_its_event():
    sender, other = map(ControlChannel, socket.socketpair())
    done: list[str] = []
    event = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.run, {})
        nursery.start_soon(other.run, {"act": done.append})
        sender.post("act", "before")
        assert await sender.ask("nothing of that name") is None
        sender.pause(event)
        sender.post("act", "after")
        await trio.testing.wait_all_tasks_blocked()
        assert done == ["before"]
        event.set()
        assert await sender.ask("nothing of that name") is None
        assert done == ["before", "after"]
        nursery.cancel_scope.cancel()
    sender.close()
    other.close()


async def test_a_process_that_takes_no_messages_counts_as_gone(monkeypatch):
    monkeypatch.setattr(channel, "POSTED", 3)
    sender, other = map(ControlChannel, socket.socketpair())
    for _ in range(3):
        sender.post("act", "drain", "docs")
        assert not sender.gone
    sender.post("act", "drain", "docs")
    assert sender.gone
    other.close()


def test_workers_see_what_the_others_count():
    descriptor = open_counters(2)
    try:
        first, second = (map_counters(os.dup(descriptor), number, 2) for number in (1, 2))
        first.act("docs")
        second.hear("docs")
        assert (first.of("docs"), second.of("docs")) == (2, 1)
    finally:
        os.close(descriptor)


async def test_what_one_worker_hears_the_others_forget_at_once(autojump_clock):
    descriptor = open_counters(2)
    first, second = (map_counters(os.dup(descriptor), number, 2) for number in (1, 2))
    os.close(descriptor)
    docs, other = Library(), Library()
    async with (
        open_world({"docs": docs}, generations=first) as here,
        open_world({"docs": other}, generations=second) as there,
    ):
        client, reader = await ready(here), await ready(there)
        for _ in range(2):
            await read(reader)
        assert other.reads == 1
        await client.start(
            "subscriptions/listen", {"notifications": {"resourceSubscriptions": ["docs+file:///a"]}}
        )
        await client.receive_method("notifications/subscriptions/acknowledged")
        await docs.update("file:///a")
        await client.receive_method("notifications/resources/updated")
        assert await read(reader) == "2"


async def test_a_list_change_is_told_to_whoever_tells_the_other_workers(autojump_clock):
    docs = Library()
    async with open_world({"docs": docs}) as world:
        await ready(world)
        changes: list[tuple[str, str]] = []
        world.mux.hub.on_list_change = lambda upstream, method: changes.append((upstream, method))
        await docs.notify(TOOLS_CHANGED)
        await wait_all_tasks_blocked()
        world.mux.hub.tell_list_change(TOOLS_CHANGED, "docs")  # heard from another worker: not again
        assert changes == [("docs", TOOLS_CHANGED)]
