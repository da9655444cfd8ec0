"""One server over HTTP: how long mcpmux waits for its event streams, and what ends a session with it."""

from __future__ import annotations

import math

import pytest
import trio

from mcpmux.auth.bearer import Challenge
from mcpmux.auth.credential import Credential
from mcpmux.channels.http_peer import (
    LEAST_RETRY_SECONDS,
    RETRY_SECONDS,
    HttpErrorReply,
    HttpPeer,
    HttpPlace,
    HttpStatusError,
    SessionExpired,
    may_mean_forgotten,
    may_repeat,
    pause_before_stream,
    retry_seconds,
)
from mcpmux.errors import ConnectFailed, McpmuxError, RpcError, TransportClosed, TransportError
from mcpmux.mux.breaker import STABLE_SECONDS, Comeback
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import ErrorReply
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin
from mcpmux.transports.sse import SseDecoder


def place_of(pool: HttpPool) -> HttpPlace:
    return HttpPlace(pool, "http://127.0.0.1:1/mcp", (), 1000, lambda _: None, 1.0)


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
def test_a_broken_stream_is_reopened_after_the_servers_delay(said: bytes, seconds: float):
    """2025-11-25, "Transports": the client MUST respect the `retry` field."""
    decoder = SseDecoder(1000)
    decoder.feed(said)
    assert retry_seconds(decoder) == seconds
    assert retry_seconds(decoder.continued()) == seconds


@pytest.mark.parametrize(
    ("said", "pauses"),
    [
        (b"", [1, 1, 1, 1, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30]),
        (b"retry: 2000\n\n", [2] * 11),
    ],
)
def test_streams_that_end_at_once_are_opened_ever_more_seldom(said: bytes, pauses: list[float]):
    """Unless the server said when, or the last one was of use."""
    decoder, comeback = SseDecoder(1000), Comeback()
    decoder.feed(said)
    assert [pause_before_stream(decoder, comeback, 0.0, 0.0, 0.0) for _ in pauses] == pytest.approx(pauses)
    for held in (STABLE_SECONDS + 1, math.inf):
        assert pause_before_stream(decoder, comeback, 0.0, held, 0.0) == pauses[0]
        assert pause_before_stream(decoder, comeback, 0.0, 0.0, 0.0) == pauses[1]


REFUSALS: list[tuple[McpmuxError, bool, bool]] = [
    # the answer to a tool call; whether it is a reason to look for the session; whether the call is repeated
    # after that was found to be refused as a whole
    (SessionExpired("404"), True, True),
    (HttpStatusError(401, b""), True, True),
    (HttpStatusError(408, b"session"), False, False),
    (HttpStatusError(429, b"session"), False, False),
    (HttpStatusError(500, b"boom"), True, False),
    (HttpStatusError(500, b"no such Session"), True, True),
    (HttpStatusError(503, b"not initialized", retry_after=1.0), False, True),
    (HttpErrorReply(400, ErrorReply(1, -32000, "no")), True, True),
    (HttpErrorReply(500, ErrorReply(1, -32603, "no")), True, False),
    (HttpErrorReply(500, ErrorReply(1, -32602, "no")), True, False),
    (RpcError(-32600, "no"), True, True),
    (RpcError(-32602, "no"), True, True),
    (RpcError(-32001, "Request timed out"), True, False),
    (RpcError(-32001, "Session not found"), True, True),
    (RpcError(-32000, "Connection closed"), False, False),
    (RpcError(-32000, "No valid session ID"), True, True),
    (RpcError(-30001, "The SessionId has expired, please re-initialize"), True, True),
    (RpcError(-30001, "no such file"), False, False),
    (RpcError(-32603, "the session of the database ended"), False, False),
    (TransportClosed("the session was reset"), False, False),
]


@pytest.mark.parametrize(("error", "doubts", "repeats"), REFUSALS)
def test_a_tool_call_is_repeated_only_when_it_was_certainly_not_done(
    error: McpmuxError, doubts: bool, repeats: bool
):
    assert may_mean_forgotten(error) is doubts
    assert may_repeat(Call("tools/call", {}, {}), error, holds=False) is repeats
    assert may_repeat(Call("tools/list", {}, {}), error, holds=False)
    certainly = isinstance(error, SessionExpired)
    assert may_repeat(Call("tools/call", {}, {}), error, holds=True) is certainly


def test_a_refusal_has_the_servers_own_words_beside_our_advice():
    refusal = HttpStatusError(401, b"Your token\nhas expired")
    assert refusal.in_full.endswith("log in; the server says: Your token has expired")
    assert str(refusal).endswith("log in")
    assert HttpStatusError(401, b"<html>no</html>").in_full.endswith("log in")
    assert HttpStatusError(418, b"<b>tea</b>").in_full == "HTTP status 418 (I'm a Teapot): <b>tea</b>"
    assert HttpStatusError(599, b"").told == "HTTP status 599"


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
