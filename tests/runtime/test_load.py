"""More is asked of an upstream than it is given at a time: who waits, who is refused, who is not held up."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from mcpmux.clients.http_answer import respond
from mcpmux.clients.stream_clients import FIRST_SECONDS, JsonStream
from mcpmux.config import Http, Limits, Stdio, Unix
from mcpmux.errors import TransportClosed
from mcpmux.protocol.codes import BUSY, Busy
from mcpmux.protocol.envelope import Request
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.message_stream import MessageStream
from tests.bare_reply import reply_on
from tests.peers.revision import MODERN
from tests.peers.server import ScriptedServer
from tests.runtime.world import World, open_world

SLOW = "vendor/slow"
SECONDS = 1.0  # that the server works on one request
SHARED = Http(url="http://slow.example/mcp")  # by all replicas


class SlowServer(ScriptedServer):
    """Counts what it works on at the same time."""

    def __init__(self) -> None:
        super().__init__(MODERN, tools=[], handlers={SLOW: self._work})
        self.now = 0
        self.most = 0
        self.began = 0

    async def _work(self, _server, _params, _message):
        self.began += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await trio.sleep(SECONDS)
        finally:
            self.now -= 1
        return {"resultType": "complete"}


class Asker:
    """A client that keeps many requests in flight and counts what comes of them."""

    def __init__(self, client) -> None:
        self.client = client
        self.done = 0
        self.refusals: list[Any] = []
        self.finished_at = 0.0

    async def flood(self, count):
        """Send `count` requests at once, take all answers."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._take, count)
            for _ in range(count):
                await self.client.start(SLOW)

    async def _take(self, count):
        for _ in range(count):
            message = await self.client.receive_raw()
            if "error" in message:
                self.refusals.append(message["error"])
            else:
                self.done += 1
        self.finished_at = trio.current_time()


@asynccontextmanager
async def one_upstream(server, **settings):
    """Open mcpmux in front of a single upstream, which is passed through."""
    settings = {"prefix": "", "request_timeout": 100_000.0, **settings}
    async with open_world({"slow": server}, settings={"slow": settings}) as world:
        yield world


def limiter_of(world: World):
    return world.mux.upstreams["slow"].limiter


async def test_flood_of_one_client_does_not_starve_another(autojump_clock):
    server = SlowServer()
    async with one_upstream(server, max_in_flight=4) as world:
        greedy, modest = Asker(world.client()), Asker(world.client())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(greedy.flood, 10_000)
            await trio.testing.wait_all_tasks_blocked()
            began = trio.current_time()
            nursery.start_soon(modest.flood, 10)
        # Half of four slots is its share: ten requests take five rounds, and one is under way already.
        assert modest.done == 10
        assert modest.finished_at - began <= 6 * SECONDS
        assert greedy.finished_at - began > 100 * SECONDS
        assert greedy.done + len(greedy.refusals) == 10_000
        assert server.began == greedy.done + modest.done
        assert server.most == 4
        assert (limiter_of(world).running, limiter_of(world).waiting) == (0, 0)


async def test_full_queue_refuses_with_a_hint_when_to_come_back(autojump_clock):
    server = SlowServer()
    async with one_upstream(server, max_in_flight=2, max_waiting=3) as world:
        asker = Asker(world.client())
        await asker.flood(8)
        assert asker.done == 5
        assert len(asker.refusals) == 3
        assert asker.refusals[0] == {
            "code": BUSY,
            "message": "Busy: upstream 'slow' works on 2 exchanges and 3 wait; try again later",
            "data": {"retryAfterSeconds": 1, "limit": "upstreams.slow.max_waiting", "upstream": "slow"},
        }


async def test_more_members_leave_less_for_each_and_cut_off_nothing(autojump_clock):
    server = SlowServer()
    async with one_upstream(server, max_in_flight=4, target=SHARED) as world:
        asker = Asker(world.client())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asker.flood, 12)
            await trio.testing.wait_all_tasks_blocked()
            assert (server.now, limiter_of(world).waiting) == (4, 8)
            world.mux.share(3)
            await trio.testing.wait_all_tasks_blocked()
            assert (server.now, limiter_of(world).waiting) == (4, 8)
            await trio.sleep(SECONDS * 1.5)
            assert (server.now, limiter_of(world).waiting) == (2, 6)
            world.mux.share(1)
            await trio.testing.wait_all_tasks_blocked()
            assert (server.now, limiter_of(world).waiting) == (4, 4)
        assert (asker.done, asker.refusals) == (12, [])
        world.mux.share(2)
        world.mux.restart("slow")  # and so it is for a session that comes later
        assert limiter_of(world).slots == 2


@pytest.mark.parametrize("target", [Stdio("unused"), Unix("/unused")])
async def test_what_is_this_replicas_alone_keeps_its_whole_limit(target):
    async with one_upstream(SlowServer(), max_in_flight=4, target=target) as world:
        world.mux.share(3)
        assert limiter_of(world).slots == 4


async def test_who_waits_longer_than_the_deadline_hears_busy(autojump_clock):
    async with one_upstream(SlowServer(), max_in_flight=1, request_timeout=2.5) as world:
        asker = Asker(world.client())
        await asker.flood(4)
        assert asker.done == 2
        assert [error["code"] for error in asker.refusals] == [BUSY, -31002]


async def test_request_of_a_client_past_its_own_limit_is_refused(autojump_clock):
    async with one_upstream(SlowServer()) as world:
        asker = Asker(world.client(limits=Limits(max_in_flight=2)))
        await asker.flood(3)
        assert asker.done == 2
        assert asker.refusals[0]["code"] == BUSY
        assert asker.refusals[0]["data"] == {"retryAfterSeconds": 1, "limit": "limits.max_in_flight"}


def numbered(count):
    return [{"name": f"t{number}", "inputSchema": {"type": "object"}} for number in range(count)]


async def test_list_past_its_limit_is_cut_and_told(autojump_clock):
    servers = {
        "long": ScriptedServer(tools=numbered(10), page_size=4),
        "short": ScriptedServer(tools=numbered(6)),
    }
    limits = {"long": {"max_list_items": 6}, "short": {"max_list_items": 6}}
    async with open_world(servers, settings=limits) as world:
        result = await world.client().request("tools/list")
        assert [tool["name"] for tool in result["tools"] if tool["name"].startswith("long")] == [
            f"long__t{number}" for number in range(6)
        ]
        assert sum(tool["name"].startswith("short") for tool in result["tools"]) == 6
        assert result["_meta"]["dev.mcpmux/upstreams"] == {
            "long": {"state": "ready", "reason": "its list is cut after 6 items: see max_list_items"}
        }
        assert ("tools/list", "8") not in servers["long"].pages


class Silent(MessageStream):
    """A pipe of a silent client, which reads."""

    def __init__(self) -> None:
        self.told: list[bytes] = []

    async def send(self, message):
        self.told.append(message)

    async def receive(self):
        await trio.sleep_forever()

    async def aclose(self):
        await trio.lowlevel.checkpoint()


async def test_stream_that_never_says_anything_is_closed(autojump_clock):
    silent = Silent()
    with pytest.raises(TransportClosed):
        await JsonStream(silent).receive()
    assert trio.current_time() < 2 * FIRST_SECONDS
    assert json.loads(silent.told[0])["error"]["message"].startswith("Invalid request: no message within")


@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("busy", "status"), [(Busy("x", "limits.max_in_flight", own=True), 429), (Busy("x", "limits.y"), 503)]
)
async def test_busy_goes_over_http_with_its_status_and_retry_after(busy: Busy, status: int):
    sent = []

    async def send(data: bytes) -> None:
        head, _, body = data.partition(b"\r\n\r\n")
        error = json.loads(body)["error"]
        sent.append((int(head.split()[1]), b"Retry-After: 1" in head.splitlines(), error["data"]))

    def reply() -> HttpReply:
        posted = HttpRequest("POST", "/mcp", "", {}, b"", "peer", False, True)
        return reply_on(SimpleNamespace(send=send), posted)

    async def work():
        raise busy

    request = Request(1, "tools/list")
    await respond(request, reply(), work(), streams=True)
    await respond(request, reply(), work(), streams=True, legacy=True)
    assert sent == [(status, True, busy.data), (200, False, busy.data)]
