"""Subscriptions at upstreams over HTTP, where streams break off and sessions are forgotten."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from mcpmux import app
from mcpmux.channels import http_peer
from mcpmux.channels.channel import ignore_event
from mcpmux.config import Caching, Config, Http, Upstream
from mcpmux.mux import wanted
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import raw, text_of
from mcpmux.runtime.client_outbox import ClientOutbox
from tests.peers.http_server import HttpFace, open_http_face
from tests.peers.revision import ERAS, LEGACY, MODERN
from tests.peers.subscribable import Subscribable

PATIENCE = 60.0  # seconds
SUBSCRIBE = Call("resources/subscribe", {}, {})


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits in real time that are not under test."""
    monkeypatch.setattr(wanted, "BROKEN_SECONDS", 0.05)
    monkeypatch.setattr(http_peer, "RETRY_SECONDS", 0.05)


class Stage:
    """A server over HTTP, and mcpmux in front of it with one listener to `memo:1` and `memo:2`."""

    def __init__(self, server: Subscribable, face: HttpFace, mux: app.Mux) -> None:
        self.server = server
        self.face = face
        self.mux = mux
        self.outbox: ClientOutbox = mux.hub.join(ClientOutbox(frozenset()))

    async def subscribe(self) -> None:
        for uri in ("x+memo:1", "x+memo:2"):
            await self.mux.router.subscribe(self.outbox, uri, SUBSCRIBE)
        await self.expect_subscribed()

    async def expect_subscribed(self) -> None:
        with trio.fail_after(PATIENCE):
            while self.server.subscribed != {"memo:1", "memo:2"}:
                await trio.lowlevel.checkpoint()

    async def hear(self, count: int) -> list[str]:
        """Wait for the next updates, and return their URIs."""
        with trio.fail_after(PATIENCE):
            events = [await self.outbox.take() for _ in range(count)]
        return sorted(text_of(event.params["uri"]) or "" for event in events if event is not None)

    def count(self, method: str) -> int:
        """Return how often mcpmux has sent a request."""
        return sum(message["method"] == method for message in self.server.seen)


@asynccontextmanager
async def open_stage(revision: str, caching: Caching | None = None) -> AsyncIterator[Stage]:
    server = Subscribable(revision)
    async with open_http_face(server) as face:
        upstreams = (Upstream(name="x", target=Http(face.url)),)
        config = Config(upstreams=upstreams, caching=caching or Caching())
        async with app.open_mux(config) as mux:
            stage = Stage(server, face, mux)
            with trio.fail_after(PATIENCE):
                await mux.upstreams["x"].supervision.settled()
                await stage.subscribe()
            yield stage


@pytest.mark.parametrize("revision", ERAS)
async def test_an_update_is_heard(revision: str):
    async with open_stage(revision) as stage:
        await stage.server.update("memo:2")
        assert await stage.hear(1) == ["x+memo:2"]


@pytest.mark.parametrize("revision", ERAS)
async def test_a_stream_that_breaks_off_is_opened_again_and_caught_up(revision: str):
    async with open_stage(revision) as stage:
        opened = stage.face.own_streams
        stage.face.break_off()
        assert await stage.hear(2) == ["x+memo:1", "x+memo:2"]
        await stage.expect_subscribed()
        await stage.server.update("memo:1")
        assert await stage.hear(1) == ["x+memo:1"]
        assert stage.face.own_streams == opened + (revision == LEGACY)
        assert stage.count("server/discover" if revision == MODERN else "initialize") == 1


@pytest.mark.parametrize("status", [404, 401, 410])
async def test_a_forgotten_session_is_opened_anew_without_a_request_to_notice_it(status: int):
    async with open_stage(LEGACY) as stage:
        stage.face.refusal = status
        stage.server._legacy.clear()
        stage.face.forget()
        assert await stage.hear(2) == ["x+memo:1", "x+memo:2"]
        await stage.expect_subscribed()
        assert stage.count("initialize") == 2
        assert stage.count("resources/subscribe") == 4
        await stage.server.update("memo:1")
        assert await stage.hear(1) == ["x+memo:1"]


async def test_an_upstream_goes_on_answering_while_its_listen_is_broken():
    async with open_stage(MODERN) as stage:
        stage.face.break_off()
        listed = await stage.mux.router.exchange(Call("resources/list", {}, {}), _unheard)
        assert listed["resources"] != raw([])


async def _unheard(_event: object) -> None:
    """Ignore the notification."""


@pytest.mark.parametrize("revision", ERAS)
async def test_lists_are_remembered_while_their_changes_can_be_heard(revision: str):
    async with open_stage(revision, Caching(trust_announcements=True)) as stage:
        listing = Call("resources/list", {}, {})

        async def asked() -> int:
            count = stage.count("resources/list")
            await stage.mux.router.exchange(listing, ignore_event)
            return stage.count("resources/list") - count

        with trio.fail_after(PATIENCE):
            while await asked():  # until the server's stream is open
                await trio.lowlevel.checkpoint()
        assert [await asked() for _ in range(3)] == [0, 0, 0]
        stage.face.break_off()
        assert await stage.hear(2) == ["x+memo:1", "x+memo:2"]
        assert await asked() == 1
        with trio.fail_after(PATIENCE):
            while await asked():
                await trio.lowlevel.checkpoint()
        await stage.server.notify("notifications/resources/list_changed")
        with trio.fail_after(PATIENCE):
            while not await asked():
                await trio.lowlevel.checkpoint()
