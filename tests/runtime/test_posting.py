"""Requests that are posted: no task waits for their answers until there is more to them than a result."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from mcpmux.runtime.posting import LAST_WORDS_SECONDS

from mcpmux.errors import RpcError, TransportClosed
from mcpmux.protocol.call import Call, Event
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.meta import PROGRESS_TOKEN
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.link import Link
from mcpmux.runtime.linking import open_link
from tests.memory_pipe import open_memory_pipes
from tests.runtime.test_link_deadlines import Peer, open_world, refuse

CALL = Call("tools/call", {"name": raw("slow")}, {PROGRESS_TOKEN: raw("mine")})
RESULT = {"content": raw([])}


async def quiet() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def say_progress(peer: Peer, ticket_id: int) -> None:
    await peer.say(method="notifications/progress", params={"progressToken": ticket_id, "progress": 1})


async def test_a_result_is_taken_once_and_the_peer_hears_nothing_more(autojump_clock):
    async with open_world("lines") as (link, peer):
        ticket = link.post(CALL)
        asked = await peer.next()
        assert (asked["id"], asked["params"]["_meta"]) == (ticket.id, {PROGRESS_TOKEN: ticket.id})
        assert link.take(ticket) is None
        woken: list[str] = []
        ticket.wake = lambda: woken.append("woken")
        await peer.say(id=ticket.id, result={"content": []})
        await quiet()
        assert woken == ["woken"]
        assert link.take(ticket) == RESULT
        assert len(link.calls.outgoing) == 0
        assert not link.punctuality.watched


async def test_what_came_before_the_answer_is_told_before_it(autojump_clock):
    heard: list[Any] = []

    async def hear(event: Event) -> None:
        heard.append(event.params[PROGRESS_TOKEN])

    async with open_world("lines") as (link, peer):
        ticket = link.post(CALL)
        await say_progress(peer, ticket.id)
        await peer.say(id=ticket.id, result={"content": []})
        await quiet()
        assert link.take(ticket) is None
        assert await link.go_on(ticket, hear) == RESULT
        assert heard == [raw("mine")]
        assert len(link.calls.outgoing) == 0


@pytest.mark.parametrize(
    "answer",
    [
        {"error": {"code": -32602, "message": "no"}},
        {"result": [1]},
    ],
    ids=["an error", "no object"],
)
async def test_what_is_no_result_is_raised(autojump_clock, answer):
    async with open_world("lines") as (link, peer):
        ticket = link.post(CALL)
        await peer.say(id=ticket.id, **answer)
        await quiet()
        assert link.take(ticket) is None
        with pytest.raises(RpcError):
            await link.go_on(ticket, _unheard)
        assert len(link.calls.outgoing) == 0


async def test_a_result_that_wants_to_know_something_is_waited_for(autojump_clock):
    async with open_world("lines") as (link, peer):
        ticket = link.post(CALL)
        await peer.say(id=ticket.id, result={"inputRequests": {"a": {"method": "roots/list"}}})
        await quiet()
        assert link.take(ticket) is None
        assert list(await link.go_on(ticket, _unheard)) == ["inputRequests"]


async def test_the_end_of_the_stream_is_raised(autojump_clock):
    async with open_world("lines") as (link, _):
        ticket = link.post(CALL)
        link.give_up(TransportClosed("gone"))
        await quiet()
        assert link.take(ticket) is None
        with pytest.raises(TransportClosed, match="gone"):
            await link.go_on(ticket, _unheard)
        assert link.post(CALL) is None
        with pytest.raises(TransportClosed, match="gone"):
            await link.exchange(CALL, _unheard)
        assert len(link.calls.outgoing) == 0


async def test_nothing_is_posted_where_sending_has_to_wait(autojump_clock):
    async with open_world("memory") as (link, peer):
        assert link.post(CALL) is None
        assert len(link.calls.outgoing) == 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.exchange, CALL, _unheard)
            await peer.say(id=(await peer.next())["id"], result={"content": []})


async def test_a_peer_that_takes_nothing_more_has_a_moment_for_last_words(autojump_clock):
    ours, theirs = open_memory_pipes()
    results: list[Fields] = []

    async def ask(link: Link) -> None:
        results.append(await link.exchange(CALL, _unheard))

    async with open_link(ours, refuse, lambda _: None, objects=False) as link, trio.open_nursery() as nursery:
        peer = Peer(theirs)
        nursery.start_soon(ask, link)
        asked = await peer.next()
        theirs.stop_reading()
        began = trio.current_time()
        nursery.start_soon(failing_exchange, link)
        await quiet()
        assert not link.closed.is_set()
        await peer.say(id=asked["id"], result={"content": []})
        await quiet()
        assert results == [RESULT]
        await link.closed.wait()
        assert trio.current_time() - began == pytest.approx(LAST_WORDS_SECONDS)


async def failing_exchange(link: Link) -> None:
    """After it no other exchange is tried on the link: who repeats it looks for a new one."""
    with pytest.raises(TransportClosed, match="the pipe is closed"):
        await link.exchange(CALL, _unheard)
    assert link.closed.is_set()


async def test_a_call_that_meets_a_closed_stream_before_its_reader_does_ends_the_link(autojump_clock):
    ours, theirs = open_memory_pipes()
    async with open_link(ours, refuse, lambda _: None, objects=False) as link:
        await quiet()
        await theirs.aclose()
        assert not link.closed.is_set()
        began = trio.current_time()
        await failing_exchange(link)
        assert trio.current_time() == began


async def _unheard(_event: Event) -> None:
    pass
