"""A legacy server over HTTP forgets its session while several calls of it are on their way."""

from __future__ import annotations

import json
from typing import Any

import trio

from tests.peers import http_server
from tests.peers.revision import LEGACY
from tests.peers.server import ScriptedServer
from tests.runtime import http_world
from tests.runtime.http_front import open_endpoint
from tests.runtime.http_world import HttpWorld
from tests.runtime.test_exchanges import TOOL
from tests.runtime.test_http_exchanges import HTTP, Placed

COUNT = 4


class Forgetful(http_server.HttpFace):
    """Tells the tool calls of the session `forgotten` that there is none, each some time after the other."""

    forgotten: str | None = None
    attempts = 0

    @property
    def session(self) -> str | None:
        return self._session

    async def _handle(self, request: Any, reply: Any) -> None:
        message = json.loads(request.body) if request.body else {}
        session = request.headers.get("mcp-session-id")
        if message.get("method") == "tools/call" and session is not None and session == self.forgotten:
            self.attempts += 1
            await trio.sleep(0.03 * self.attempts)
            await reply.send(404, (), b"")
            return
        await super()._handle(request, reply)


async def test_calls_on_their_way_are_all_repeated_in_the_next_session(monkeypatch):
    server = Placed(LEGACY, HTTP)
    server.gate.set()
    faces: list[Forgetful] = []

    class Face(Forgetful):
        def __init__(self, of: Any) -> None:
            super().__init__(of)
            if of is server:
                faces.append(self)

    opened = http_server.open_http_face
    monkeypatch.setattr(http_world, "open_http_face", lambda of: opened(of, Face))
    answers: list[Any] = []
    async with open_endpoint({"x": server, "y": ScriptedServer()}, world_class=HttpWorld) as client:

        async def ask() -> None:
            answers.append((await client.modern(*TOOL)).last)

        for _ in range(2):  # the first time so that there are as many connections to post on
            answers.clear()
            async with trio.open_nursery() as nursery:
                for _ in range(COUNT):
                    nursery.start_soon(ask)
            faces[0].forgotten = faces[0].session
    assert faces[0].attempts == COUNT
    assert ["result" in answer for answer in answers] == [True] * COUNT
