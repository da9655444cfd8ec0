"""Answers in event streams, as most servers give them: taken where they are received, if they are alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Any

import pytest
import trio
import trio.testing

from mcpmux.channels.http_peer import STREAM_BYTES
from mcpmux.config.model import Limits
from mcpmux.errors import RpcError
from mcpmux.protocol.call import Call, Event
from mcpmux.protocol.envelope import decode_any, raw
from mcpmux.protocol.raw_json import Fields
from mcpmux.transports.inline import Inline
from tests.peers.revision import Json
from tests.peers.web import SSE, Web, event, initialize
from tests.runtime.web_world import open_web

DONE: Json = {"content": [{"type": "text", "text": "done"}]}
OF_OTHERS: Json = {"id": 4711, "result": {"content": []}}
CUT = "cut"  # the server breaks off there


def progress(request_id: Any) -> Json:
    return {"method": "notifications/progress", "params": {"progressToken": request_id, "progress": 1}}


def told(request_id: Any) -> bytes:
    return event(progress(request_id))


class Server:
    """Answers reads with JSON and tools with an event stream of `parts`, each received separately.

    Each part is made of the request's id. `stays`: the stream does not end after them. `left` is set when the
    client has closed the stream, `taken_back` when a call was cancelled. `resumed` has the ids of the events
    after which clients resumed, where `rest` follows.
    """

    def __init__(self, *parts: Any, rest: Any = None, stays: bool = False) -> None:
        self.parts = parts
        self.rest = rest
        self.stays = stays
        self.left = trio.Event()
        self.taken_back = trio.Event()
        self.resumed: list[str] = []
        self._id: Any = None

    async def __call__(self, web: Web, request: Any, message: Json, reply: Any) -> None:
        if message["method"] == "notifications/cancelled":
            self.taken_back.set()
        if await initialize(web, request, message, reply):
            return
        if message["method"] == "resources/read":
            await web.answer(reply, message, {"contents": []})
        elif message["method"] == "tools/call":
            self._id = message["id"]
            await self._stream(reply)
        elif "last-event-id" in request.headers:
            self.resumed.append(request.headers["last-event-id"])
            await reply.open(200, SSE, self.rest(self._id))

    async def _stream(self, reply: Any) -> None:
        await reply.open(200, SSE)
        for part in self.parts:
            await trio.testing.wait_all_tasks_blocked(0.005)
            if part == CUT:
                raise ConnectionError
            await reply.write(part(self._id))
        await trio.testing.wait_all_tasks_blocked(0.005)
        if self.stays:
            try:
                await trio.sleep_forever()
            finally:
                self.left.set()


class Watching:
    """A nursery of which the tasks that are started from now on are counted."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.started = 0

    def start_soon(self, *args: Any, **kwargs: Any) -> None:
        self.started += 1
        self.nursery.start_soon(*args, **kwargs)


class Client:
    """`taken`: whether each call was answered without a task; `events`: the notifications before answers."""

    def __init__(self, web: Web, mux: Any) -> None:
        self.web = web
        self.taken: list[bool] = []
        self.events: list[Event] = []
        self._mux = mux

    @property
    def connections(self) -> int:
        return len({request.peer for request, message in self.web.seen if message["method"] == "tools/call"})

    async def know(self) -> None:
        """Have the server answer something, so that calls are sent on at once."""
        await self._mux.router.exchange(Call("resources/read", {"uri": raw("a:1")}, {}), self._hear)

    async def call(self) -> Json:
        await trio.testing.wait_all_tasks_blocked(0.02)  # until the stream before has ended
        call = Call("tools/call", {"name": raw("t")}, {"progressToken": raw("t")})
        results: list[Fields] = []

        async def keep() -> None:
            results.append(await self._mux.router.exchange(call, self._hear))

        channel = self._mux.upstreams["web"].status.connection.channel
        channel._nursery = nursery = Watching(channel._nursery)
        changed = trio.Event()
        exchange = Inline(keep(), copy_context(), changed.set)
        try:
            assert exchange.start(), "it was sent at once, and waits for its answer"
            await changed.wait()
            alone = exchange.is_over and not nursery.started
            await exchange
        finally:
            channel._nursery = nursery.nursery
        self.taken.append(alone)
        return {key: decode_any(value) for key, value in results[0].items() if key != "resultType"}

    async def _hear(self, happened: Event) -> None:
        self.events.append(happened)


@asynccontextmanager
async def asking(server: Server, **settings: Any) -> AsyncIterator[Client]:
    """Open a client that knows its server."""
    async with open_web(server, **settings) as (web, mux):
        client = Client(web, mux)
        await client.know()
        yield client


def answer(request_id: Any, event_id: str | None = None) -> bytes:
    return event({"id": request_id, "result": DONE}, event_id)


def beginning(request_id: Any) -> bytes:
    return answer(request_id)[:20]


def ending(request_id: Any) -> bytes:
    return answer(request_id)[20:]


def primed(_id: Any) -> bytes:
    return event("", "e1")


def in_other_words(request_id: Any) -> bytes:
    return b"event: message\r\n" + answer(request_id).replace(b"\n", b"\r\n")


ALONE = {
    "at once": [answer],
    "in other words": [in_other_words],
    "in pieces": [beginning, ending],
    "primed": [primed, lambda request_id: answer(request_id, "e2")],
    "primed in the same piece": [lambda request_id: primed(0) + answer(request_id, "e2")],
    "behind a comment": [lambda _id: b": soon\n\n", answer],
}


@pytest.mark.parametrize("parts", ALONE.values(), ids=ALONE)
async def test_answer_that_comes_alone_is_taken_and_its_connection_goes_on(parts):
    async with asking(Server(*parts)) as client:
        for _ in range(4):
            assert await client.call() == DONE
        assert client.taken == [True] * 4
        assert client.connections == 1


NOT_ALONE = {
    "behind progress": [lambda i: event(progress(i)), answer],
    "with progress": [lambda i: event(progress(i)) + answer(i)],
    "behind progress that begins": [
        lambda i: event(progress(i))[:9],
        lambda i: event(progress(i))[9:] + answer(i),
    ],
}


@pytest.mark.parametrize("parts", NOT_ALONE.values(), ids=NOT_ALONE)
async def test_what_is_said_before_the_answer_is_heard_first(parts):
    async with asking(Server(*parts)) as client:
        for number in range(3):
            assert await client.call() == DONE
            assert [decode_any(event.params["progressToken"]) for event in client.events] == ["t"] * (
                number + 1
            )
        assert client.taken == [False] * 3
        assert client.connections == 1


async def test_answer_to_something_else_is_passed_over():
    async with asking(Server(lambda i: event(OF_OTHERS) + answer(i))) as client:
        assert await client.call() == DONE
    async with asking(Server(lambda _id: event(OF_OTHERS), answer)) as client:
        assert await client.call() == DONE


async def test_what_is_said_behind_the_answer_is_nobodys():
    async with asking(Server(lambda i: answer(i) + event(progress(i)))) as client:
        assert await client.call() == DONE
        assert client.events == []


async def test_error_in_a_stream_is_raised():
    error = {"code": -32603, "message": "no such thing"}
    async with asking(Server(lambda i: event({"id": i, "error": error}))) as client:
        for _ in range(2):
            with pytest.raises(RpcError, match="no such thing"):
                await client.call()
        assert client.connections == 1


@pytest.mark.parametrize("size", [STREAM_BYTES // 2, STREAM_BYTES * 3])
async def test_large_answer_is_whole(size):
    result = {"content": [{"type": "text", "text": "x" * size}]}

    def large(request_id: Any) -> bytes:
        return event({"id": request_id, "result": result})

    async with asking(Server(lambda i: large(i)[: size // 2], lambda i: large(i)[size // 2 :])) as client:
        for _ in range(2):
            assert await client.call() == result
        assert client.taken == [size < STREAM_BYTES] * 2


def too_large(request_id: Any) -> bytes:
    return event({"id": request_id, "result": {"content": [], "x": "x" * 5000}})


@pytest.mark.parametrize(
    "parts",
    [[too_large], [lambda i: too_large(i)[:3000], lambda i: too_large(i)[3000:]]],
    ids=["at once", "in pieces"],
)
async def test_answer_above_the_limit_is_refused_and_the_next_one_is_not(parts):
    server = Server(*parts)
    async with asking(server, limits=Limits(max_message_bytes=4096)) as client:
        with pytest.raises(RpcError, match="larger than 4096 bytes"):
            await client.call()
        server.parts = (answer,)
        await client.know()
        assert await client.call() == DONE


@pytest.mark.parametrize("before", [[], [lambda i: event(progress(i), "e1")]], ids=["primed", "told"])
async def test_stream_that_breaks_off_is_gone_on_with(before):
    server = Server(primed, *before, CUT, rest=lambda i: answer(i, "e3"))
    async with asking(server) as client:
        assert await client.call() == DONE
        assert server.resumed == ["e1"]
        assert len(client.events) == len(before)


async def test_stream_that_ends_without_an_answer_is_an_error():
    async with asking(Server(lambda _id: b": nothing\n\n")) as client:
        with pytest.raises(RpcError, match="without an answer"):
            await client.call()


async def test_nobody_waits_for_a_stream_that_stays_open():
    server = Server(answer, stays=True)
    async with asking(server) as client:
        assert await client.call() == DONE
        assert client.taken == [True]
        await server.left.wait()


async def test_stream_that_says_nothing_is_overdue():
    server = Server(primed, stays=True)
    async with asking(server, timeouts={"tools/call": 1.0}) as client:
        with pytest.raises(RpcError, match=r"within 1 s"):
            await client.call()
        await server.left.wait()
        await server.taken_back.wait()
