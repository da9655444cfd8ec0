"""Exchanges over a channel, run inline: none has a task until there is more to wait for than its answer."""

from __future__ import annotations

from collections.abc import Awaitable
from contextvars import copy_context
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mcpmux.channels.duplex_channel import LAST_WORDS_SECONDS, DuplexChannel
from mcpmux.channels.opener import open_duplex_channel
from mcpmux.errors import Overdue, RemoteProtocolError, RpcError, TransportClosed
from mcpmux.protocol.call import PROGRESS_TOKEN, Call, Event
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.raw_json import Fields
from mcpmux.transports.inline import Inline
from mcpmux.transports.send_queue import QUEUE_BYTES
from mcpmux.transports.waiting import SWEEP_SECONDS, Deadline
from tests.channels.test_link_deadlines import LIMIT, Peer, open_world, unheard
from tests.inline import run_inline
from tests.peers.pipe import CAPACITY, PromptMemoryPipe, open_memory_pipes

CALL = Call("tools/call", {"name": raw("slow")}, {PROGRESS_TOKEN: raw("mine")})
RESULT = {"content": raw([])}


async def quiet() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def say_progress(peer: Peer, request_id: int) -> None:
    await peer.say(method="notifications/progress", params={"progressToken": request_id, "progress": 1})


def nothing_is_left(link: DuplexChannel) -> bool:
    return len(link.pending_requests) == 0 and not link.deadlines.watched


class Begun:
    """An exchange that was begun without a task. `changed`: it was woken, and is over or wants a task."""

    def __init__(self, work: Awaitable[Fields]) -> None:
        self._work = work
        self._results: list[Fields] = []
        self.changed = trio.Event()
        self.inline = Inline(self._keep(), copy_context(), self.changed.set)
        self.is_asleep = self.inline.start()

    async def _keep(self) -> None:
        self._results.append(await self._work)

    @property
    def is_over(self) -> bool:
        return self.inline.is_over

    async def result(self) -> Fields:
        await self.inline
        return self._results[0]


async def test_a_result_is_taken_once_without_a_task(autojump_clock):
    async with open_world("lines") as (link, peer):
        exchange = Begun(link.exchange(CALL, unheard, Deadline(10, 0, 60)))
        assert exchange.is_asleep
        request = await peer.next()
        assert request["params"]["_meta"] == {PROGRESS_TOKEN: request["id"]}
        assert len(link.deadlines.watched) == 1
        await peer.say(id=request["id"], result={"content": []})
        await quiet()
        assert exchange.is_over
        assert await exchange.result() == RESULT
        assert nothing_is_left(link)
        await peer.say(id=request["id"], result={"content": [1]})  # once more, and for no exchange
        with trio.move_on_after(30):
            pytest.fail(f"the peer hears {await peer.next()}")


async def test_many_exchanges_wait_without_a_task_and_each_gets_its_own_answer(autojump_clock):
    async with open_world("lines") as (link, peer):
        count = trio.lowlevel.current_statistics().tasks_living
        exchanges = [Begun(link.exchange(CALL, unheard, Deadline(10, 0, 60))) for _ in range(50)]
        ids = [(await peer.next())["id"] for _ in exchanges]
        for request_id in reversed(ids):
            await peer.say(id=request_id, result={"content": [request_id]})
        await quiet()
        assert trio.lowlevel.current_statistics().tasks_living == count
        assert all(exchange.is_over for exchange in exchanges)
        assert [await exchange.result() for exchange in exchanges] == [{"content": raw([i])} for i in ids]
        assert nothing_is_left(link)


async def test_what_came_before_the_answer_is_told_before_it(autojump_clock):
    notes: list[Any] = []

    async def hear(event: Event) -> None:
        notes.append(event.params[PROGRESS_TOKEN])

    async with open_world("lines") as (link, peer):
        exchange = Begun(link.exchange(CALL, hear))
        request_id = (await peer.next())["id"]
        await say_progress(peer, request_id)
        await peer.say(id=request_id, result={"content": []})
        await quiet()
        assert (exchange.changed.is_set(), exchange.is_over) == (True, False)  # a client may not read
        assert await exchange.result() == RESULT
        assert notes == [raw("mine")]
        assert nothing_is_left(link)


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
        exchange = Begun(link.exchange(CALL, unheard))
        await peer.say(id=(await peer.next())["id"], **answer)
        await quiet()
        assert exchange.is_over
        with pytest.raises(RpcError):
            await exchange.result()
        assert nothing_is_left(link)


HOPELESS = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"text":"'


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (HOPELESS, "input data was truncated"),
        (b'{"result":{"content":[01]},"jsonrpc":"2.0","id":"%d"}', "malformed"),
        (b'{"result":{"content":[01]},"jsonrpc":"2.0","id":%%d}', "malformed"),
        (b'{"result":{"content":[]},"id":%d}', '"jsonrpc" must be "2.0"'),
        (HOPELESS + b"x" * LIMIT + b'"}]}}', r"is over the limit of .*`limits\.max_message_bytes`"),
        (b'{"result":"' + b"x" * LIMIT + b'","jsonrpc":"2.0","id":%d}', "is over the limit of"),
        (
            b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"cannot parse that"}}',
            "cannot parse",
        ),
    ],
)
async def test_an_answer_that_cannot_be_read_fails_its_call_at_once(autojump_clock, data, reason):
    async with open_world("lines") as (link, peer):
        exchange = Begun(link.exchange(CALL, unheard))
        request_id = (await peer.next())["id"]
        await peer.say_raw(b"DEBUG got tools/call")
        await peer.say_raw(b'{"level":30,"id":%d,"msg":"called"}' % request_id)
        await peer.say(id=None, error={"code": -32601, "message": "initialized is not known"})
        await quiet()
        assert exchange.is_asleep
        assert not exchange.is_over  # the lines so far contain no answer
        await peer.say_raw(data.replace(b"%d", b"%d" % request_id).replace(b"%%", b"%"))
        await quiet()
        assert exchange.is_over
        with pytest.raises((RemoteProtocolError, RpcError), match=reason):
            await exchange.result()
        assert nothing_is_left(link)


@pytest.mark.parametrize("written", [str, float])
async def test_an_id_may_return_as_text_or_with_a_zero_fraction(autojump_clock, written):
    async with open_world("lines") as (link, peer):
        exchange = Begun(link.exchange(CALL, unheard))
        request_id = (await peer.next())["id"]
        await peer.say(id=written(request_id), result={"content": []})
        await quiet()
        assert await exchange.result() == RESULT


async def test_an_answer_that_matches_nothing_is_logged_with_its_id(autojump_clock):
    with capture_logs() as entries:
        async with open_world("lines") as (link, peer):
            link.source = "standard output"
            exchange = Begun(link.exchange(CALL, unheard, Deadline(1, 0, 60)))
            request_id = (await peer.next())["id"]
            with pytest.raises(Overdue):
                await exchange.result()
            await peer.say(id=request_id, result={})  # late
            await peer.say(id="other", result={})
            await peer.say_raw(b"Listening on \x1b[32mstdio\x1b[0m")
            await quiet()
    unmatched, refused = (entry for entry in entries if entry["log_level"] == "warning")
    assert (unmatched["id"], unmatched["source"]) == ("other", "standard output")
    assert refused["begins"] == r"Listening on \x1b[32mstdio\x1b[0m"
    assert refused["source"] == "standard output"


async def test_a_result_that_wants_to_know_something_is_a_result(autojump_clock):
    async with open_world("lines") as (link, peer):
        exchange = Begun(link.exchange(CALL, unheard))
        await peer.say(
            id=(await peer.next())["id"], result={"inputRequests": {"a": {"method": "roots/list"}}}
        )
        assert list(await exchange.result()) == ["inputRequests"]


async def test_a_cancelled_exchange_ends_at_once_with_one_notification(autojump_clock):
    async with open_world("lines") as (link, peer):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_inline, link.exchange(CALL, unheard, Deadline(10, 0, 60)))
            request = await peer.next()
            nursery.cancel_scope.cancel()
        assert nothing_is_left(link)
        cancellation = await peer.next()
        assert (cancellation["method"], cancellation["params"]["requestId"]) == (
            "notifications/cancelled",
            request["id"],
        )
        await say_progress(peer, request["id"])
        await peer.say(id=request["id"], result={"content": []})  # too late, and for no exchange
        with trio.move_on_after(30):
            pytest.fail(f"the peer hears {await peer.next()}")


async def test_an_overdue_exchange_ends_without_a_task_with_one_notification(autojump_clock):
    async with open_world("lines") as (link, peer):
        exchange = Begun(link.exchange(CALL, unheard, Deadline(10, 4, 60)))
        began = trio.current_time()
        await exchange.changed.wait()
        assert 6 <= trio.current_time() - began <= 6 + 2 * SWEEP_SECONDS
        assert exchange.is_over
        with pytest.raises(Overdue):
            await exchange.result()
        request, cancellation = await peer.next(), await peer.next()
        assert (cancellation["method"], cancellation["params"]["requestId"]) == (
            "notifications/cancelled",
            request["id"],
        )
        assert nothing_is_left(link)


async def test_the_end_of_the_stream_is_raised(autojump_clock):
    async with open_world("lines") as (link, _):
        exchange = Begun(link.exchange(CALL, unheard))
        link.give_up(TransportClosed("gone"))
        await quiet()
        assert exchange.is_over
        with pytest.raises(TransportClosed, match="gone"):
            await exchange.result()
        late = Begun(link.exchange(CALL, unheard))
        assert late.is_over
        with pytest.raises(TransportClosed, match="gone"):
            await late.result()
        assert nothing_is_left(link)


async def test_where_sending_may_have_to_wait_an_exchange_wants_a_task(autojump_clock):
    async with open_world("memory") as (link, peer):
        exchange = Begun(link.exchange(CALL, unheard))
        assert (exchange.is_asleep, exchange.is_over) == (False, False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.result)
            await peer.say(id=(await peer.next())["id"], result={"content": []})
        assert nothing_is_left(link)


async def test_a_message_without_room_in_the_pipe_is_sent_in_a_task(autojump_clock):
    ours, theirs = open_memory_pipes(kind=PromptMemoryPipe)
    async with (
        open_duplex_channel(ours, lambda _: None) as link,
        trio.open_nursery() as nursery,
    ):
        peer = Peer(theirs)
        exchanges = [Begun(link.exchange(CALL, unheard)) for _ in range(CAPACITY + 3)]
        assert [exchange.is_asleep for exchange in exchanges] == [True] * CAPACITY + [False] * 3
        for exchange in exchanges:
            nursery.start_soon(exchange.result)
        ids = [(await peer.next())["id"] for _ in exchanges]
        assert len(set(ids)) == len(exchanges)
        for request_id in ids:
            await peer.say(id=request_id, result={"content": []})
        await quiet()
        assert all(exchange.is_over for exchange in exchanges)
        assert nothing_is_left(link)


async def test_an_exchange_that_cannot_be_sent_in_time_is_overdue(autojump_clock):
    ours, _theirs = open_memory_pipes(kind=PromptMemoryPipe)  # without a reader
    async with open_duplex_channel(ours, lambda _: None) as link:
        exchanges = [Begun(link.exchange(CALL, unheard, Deadline(5, 0, 60))) for _ in range(CAPACITY + 1)]
        began = trio.current_time()
        for exchange in reversed(exchanges):
            with pytest.raises(Overdue):
                await exchange.result()
        assert trio.current_time() - began <= 5 + 2 * SWEEP_SECONDS
        assert nothing_is_left(link)


async def test_a_large_request_that_fits_the_queue_needs_no_task(autojump_clock):
    async with open_world("lines") as (link, peer):
        large = Call("tools/call", {"text": raw("x" * (QUEUE_BYTES // 2))}, {})
        exchange = Begun(link.exchange(large, unheard))
        await peer.say(id=(await peer.next())["id"], result={"content": []})
        assert await exchange.result() == RESULT


async def test_a_peer_that_takes_nothing_more_has_a_moment_for_last_words(autojump_clock):
    ours, theirs = open_memory_pipes()
    results: list[Fields] = []

    async def ask(link: DuplexChannel) -> None:
        results.append(await run_inline(link.exchange(CALL, unheard)))

    async with (
        open_duplex_channel(ours, lambda _: None) as link,
        trio.open_nursery() as nursery,
    ):
        peer = Peer(theirs)
        nursery.start_soon(ask, link)
        request = await peer.next()
        theirs.stop_reading()
        began = trio.current_time()
        nursery.start_soon(failing_exchange, link)
        await quiet()
        assert not link.closed.is_set()
        await peer.say(id=request["id"], result={"content": []})
        await quiet()
        assert results == [RESULT]
        await link.closed.wait()
        assert trio.current_time() - began == pytest.approx(LAST_WORDS_SECONDS)


async def failing_exchange(link: DuplexChannel) -> None:
    """Check that an exchange fails and closes the link, so that a caller that repeats it gets a new one."""
    with pytest.raises(TransportClosed, match="the pipe is closed"):
        await run_inline(link.exchange(CALL, unheard))
    assert link.closed.is_set()


@pytest.mark.parametrize("kind", [PromptMemoryPipe, None], ids=["prompt", "waiting"])
async def test_a_call_on_a_closed_stream_ends_the_link(autojump_clock, kind):
    ours, theirs = open_memory_pipes(**({} if kind is None else {"kind": kind}))
    async with open_duplex_channel(ours, lambda _: None) as link:
        await quiet()
        await theirs.aclose()
        assert not link.closed.is_set()
        began = trio.current_time()
        await failing_exchange(link)
        assert trio.current_time() == began
