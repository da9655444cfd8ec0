"""A server that sends callers elsewhere."""

from __future__ import annotations

import re
from typing import Any

import pytest
from structlog.testing import capture_logs

from mcpmux.config import Http, Secret
from mcpmux.errors import RpcError
from tests.peers.revision import Json
from tests.peers.web import SSE, Web, event, initialize
from tests.runtime.web_world import exchange, open_web


def with_token(url: str) -> Http:
    return Http(url, {"Authorization": Secret("Bearer PLANTED")})


async def answer(web: Web, request: Any, message: Json, reply: Any) -> None:
    """Answer as a legacy server does, in a stream."""
    if not await initialize(web, request, message, reply) and message.get("method") == "resources/read":
        await reply.open(200, SSE, event({"id": message["id"], "result": {"contents": []}}))


async def read(mux: Any) -> Any:
    return (await exchange(mux, "resources/read", {"uri": "a:1"}))["contents"]


async def trouble_of(mux: Any) -> str:
    with pytest.raises(RpcError) as caught:
        await read(mux)
    assert "redirects" not in caught.value.message  # where to is the server's word
    return caught.value.in_full


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize("whole", [False, True])
async def test_another_path_of_the_same_origin_is_followed_once_and_remembered(status: int, whole: bool):
    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        if request.path == "/mcp":
            start = f"http://{request.headers['host']}" if whole else ""
            await reply.send(status, (("Location", f"{start}/mcp/?v=1#top"),))
        else:
            await answer(web, request, message, reply)

    async with open_web(script, make_target=with_token) as (web, mux):
        assert await read(mux) == []
        paths = [(request.path, request.query) for request, _ in web.seen]
        assert paths.count(("/mcp", "")) == 1
        assert set(paths[1:]) == {("/mcp/", "v=1")}
        assert {request.headers["authorization"] for request, _ in web.seen} == {"Bearer PLANTED"}
        assert web.seen[0][1] == web.seen[1][1], "method and body are kept"


@pytest.mark.parametrize(
    ("status", "location", "shown"),
    [
        (301, "/mcp/", r"it redirects to 'http://127.0.0.1:\d+/mcp/': give that URL"),
        (302, "https://login.example/?next=PLANTED", r"'https://login.example/\?\*\*\*': give that URL"),
        (303, "/mcp/", r"it redirects to 'http://127.0.0.1:\d+/mcp/': give that URL"),
        (307, "https://127.0.0.1/mcp", r"it redirects to 'https://127.0.0.1/mcp': give that URL"),
        (308, "http://other.example/mcp", r"it redirects to 'http://other.example/mcp': give that URL"),
        (308, "http://me:PLANTED@127.0.0.1:1/", r"'http://\*\*\*@127.0.0.1:1/': give that URL"),
        (308, "ftp://x/y", "it redirects to 'ftp://x/y': give that URL"),
        (308, "http://[x", "it redirects, and does not say where to"),
        (308, "/a b", r"it redirects to 'http://127.0.0.1:\d+/a b': give that URL"),
        (308, None, "it redirects, and does not say where to"),
    ],
)
async def test_other_redirects_are_told_and_not_followed(status: int, location: str | None, shown: str):
    async def script(_web: Web, _request: Any, _message: Json, reply: Any) -> None:
        await reply.send(status, () if location is None else (("Location", location),))

    with capture_logs() as logs:
        async with open_web(script, make_target=with_token) as (web, mux):
            message = await trouble_of(mux)
    assert re.search(rf"HTTP status {status} .*: .*{shown}", message), message
    assert "PLANTED" not in message + repr(logs)
    assert {request.path for request, _ in web.seen} == {"/mcp"}


async def test_credentials_never_follow_to_another_origin():
    async def refuse_all(_web: Web, _request: Any, _message: Json, reply: Any) -> None:
        await reply.send(500, ())

    with capture_logs():
        async with open_web(refuse_all) as (elsewhere, mux):
            await trouble_of(mux)
            there = elsewhere.seen[0][0].headers["host"]
            count = len(elsewhere.seen)

            async def script(_web: Web, _request: Any, _message: Json, reply: Any) -> None:
                await reply.send(307, (("Location", f"http://{there}/taken"),))

            async with open_web(script, make_target=with_token) as (_, sent):
                assert f"it redirects to 'http://{there}/taken'" in await trouble_of(sent)
    assert {request.path for request, _ in elsewhere.seen[count:]} <= {"/mcp"}


@pytest.mark.parametrize("places", [["/mcp"], ["/a", "/mcp"], ["/a", "/b", "/c", "/d", "/e", "/mcp"]])
async def test_circle_of_redirects_is_left(places: list[str]):
    async def script(web: Web, _request: Any, _message: Json, reply: Any) -> None:
        await reply.send(307, (("Location", places[(len(web.seen) - 1) % len(places)]),))

    with capture_logs():
        async with open_web(script) as (_, mux):
            assert "HTTP status 307 (Temporary Redirect): it redirects to " in await trouble_of(mux)


async def test_notification_that_is_redirected_arrives():
    arrived = []

    async def script(web: Web, request: Any, message: Json, reply: Any) -> None:
        if message.get("method") == "notifications/initialized" and request.path == "/mcp":
            await reply.send(307, (("Location", "/other"),))
            return
        if request.path == "/other":
            arrived.append(message.get("method"))
        await answer(web, request, message, reply)

    async with open_web(script) as (_, mux):
        assert await read(mux) == []
    assert "notifications/initialized" in arrived
