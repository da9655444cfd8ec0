"""One server over HTTP: how long mcpmux waits for its event streams, and what ends a session with it."""

from __future__ import annotations

import pytest
import trio

from mcpmux.auth.bearer import Challenge
from mcpmux.auth.credential import Credential
from mcpmux.errors import ConnectFailed, TransportError
from mcpmux.protocol.call import Call
from mcpmux.runtime.upstreams.channels import answer_server
from mcpmux.runtime.upstreams.http_peer import (
    LEAST_RETRY_SECONDS,
    RETRY_SECONDS,
    HttpPeer,
    HttpPlace,
    retry_seconds,
)
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin
from mcpmux.transports.sse import SseDecoder


def place_of(pool: HttpPool) -> HttpPlace:
    return HttpPlace(pool, "http://127.0.0.1:1/mcp", (), 1000, answer_server, lambda _: None, 1.0)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (b"", RETRY_SECONDS),
        (b"retry: 500\n\n", 0.5),
        (b"retry: 3000\n\nretry: 250\n\n", 0.25),
        (b"retry: soon\n\n", RETRY_SECONDS),
        (b"retry: 0\n\n", LEAST_RETRY_SECONDS),
    ],
)
def test_a_broken_stream_is_opened_again_after_the_time_that_the_server_said(said: bytes, seconds: float):
    """2025-11-25, "Transports": the client MUST respect the `retry` field."""
    decoder = SseDecoder(1000)
    decoder.feed(said)
    assert retry_seconds(decoder) == seconds
    assert retry_seconds(decoder.continued()) == seconds


def test_a_connection_goes_on_behind_the_last_event_of_the_one_before():
    decoder = SseDecoder(1000)
    decoder.feed(b"id: 7\ndata: x\n\ndata: half of the next")
    fresh = decoder.continued()
    assert fresh.last_event_id == "7"
    assert [event.data for event in fresh.feed(b"data: y\n\n")] == [b"y"]


class NoServer(Credential):
    """Its authorization server is not there."""

    async def _renew(self, challenge: Challenge | None = None) -> None:
        raise ConnectFailed("nobody makes tokens")

    async def _step_up(self, challenge: Challenge) -> bool:
        raise ConnectFailed("nobody makes tokens")


@pytest.mark.parametrize(
    "say",
    [
        lambda peer: peer.tell(b"{}"),
        lambda peer: peer.open_stream(None),
        lambda peer: peer.ask(Call("tools/call", {}, {}), b"{}", None),
    ],
    ids=["a notification", "the own stream", "a call"],
)
async def test_a_token_that_cannot_be_had_does_not_end_the_session(say):
    with trio.fail_after(30), HttpPool(HttpOrigin(False, "127.0.0.1", 1)) as pool:
        peer = HttpPeer(place_of(pool)._replace(credential=NoServer("a", lambda: 0.0)))
        with pytest.raises(TransportError, match="nobody makes tokens"):
            await say(peer)
        assert not peer.closed.is_set()


@pytest.mark.parametrize(
    "say", [lambda peer: peer.tell(b"{}"), lambda peer: peer.open_stream(None)], ids=["tell", "open_stream"]
)
async def test_a_server_that_cannot_be_reached_is_lost(say):
    with trio.fail_after(30), HttpPool(HttpOrigin(False, "127.0.0.1", 1)) as pool:
        peer = HttpPeer(place_of(pool))
        with pytest.raises(ConnectFailed):
            await say(peer)
        assert peer.closed.is_set()
