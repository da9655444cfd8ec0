"""Servers that answer nonsense, or no HTTP at all, beside one that works: it works on, and they are named."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

from mcpmux import app
from mcpmux.config import Config, Http, Upstream
from tests.peers.http_server import start_http
from tests.peers.web import JSON
from tests.runtime.bad_answers import DENIED, NO_ANSWER, patience
from tests.runtime.web_world import exchange

COMPLETE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
FACTS = {"supportedVersions": ["2026-07-28"], "capabilities": {"resources": {}}} | COMPLETE
BAD = {**NO_ANSWER, **DENIED}
NO_HTTP = {
    "a greeting": (b"SSH-2.0-OpenSSH_9.6\r\n", "malformed HTTP response"),
    "bytes": (bytes(range(256)), "malformed HTTP response"),
    "a hang-up": (b"", "closed the connection without an answer"),
    "half a head": (b"HTTP/1.1 200 OK\r\nContent-", "closed the connection"),
    "half a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", "in the middle of its answer"),
}


async def answer(request: Any, reply: Any) -> None:
    """Answer as the good server at `/good`, and as a bad one at the number of its name."""
    message = json.loads(request.body) if request.body else {"method": request.method}
    place = request.path.removeprefix("/")
    if place != "good":
        await list(BAD.values())[int(place)][0](message, reply)
        return
    result = FACTS if message["method"] == "server/discover" else {"resources": [], "contents": []} | COMPLETE
    body = {"jsonrpc": "2.0", "id": message["id"], "result": result}
    await reply.send(200, JSON, json.dumps(body).encode())


async def greet(data: bytes, stream: trio.SocketStream) -> None:
    """Answer with something that is no HTTP, and hang up."""
    async with stream:
        await stream.receive_some()
        await stream.send_all(data)


@asynccontextmanager
async def open_servers() -> AsyncIterator[dict[str, tuple[str, str]]]:
    """Yield (URL, pattern of the reason) of each server by name; the good one's pattern is not used."""
    async with trio.open_nursery() as nursery:
        web = f"http://127.0.0.1:{await start_http(nursery, answer)}/"
        servers = {"good": (f"{web}good", "")}
        servers |= {f"bad-{n}": (f"{web}{n}", words) for n, (_, words) in enumerate(BAD.values())}
        for n, (data, words) in enumerate(NO_HTTP.values()):
            listeners = await nursery.start(
                partial(trio.serve_tcp, partial(greet, data), 0, host="127.0.0.1")
            )
            url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/mcp"
            servers[f"no-http-{n}"] = (url, words)
        yield servers
        nursery.cancel_scope.cancel()


async def test_every_bad_server_is_named_and_the_good_one_answers():
    async with open_servers() as servers:
        upstreams = [
            Upstream(name=name, target=Http(url), **patience(words)) for name, (url, words) in servers.items()
        ]
        with trio.fail_after(60):
            async with app.open_mux(Config(upstreams=tuple(upstreams))) as mux:
                for name in servers:
                    await mux.upstreams[name].supervision.settled()
                assert (await exchange(mux, "resources/read", {"uri": "good+a:1"}))["contents"] == []
                troubles = {
                    name: mux.upstreams[name].status.trouble_in_full for name in servers if name != "good"
                }
                listed = await exchange(mux, "resources/list", {})
                assert (await exchange(mux, "resources/read", {"uri": "good+a:1"}))["contents"] == []
    wrong = {name: trouble for name, trouble in troubles.items() if not re.search(servers[name][1], trouble)}
    assert wrong == {}
    assert listed["resources"] == []
    assert set(listed["_meta"]["dev.mcpmux/upstreams"]) == set(servers) - {"good"}
