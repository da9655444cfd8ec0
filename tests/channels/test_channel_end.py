"""A channel over HTTP that has ended: later exchanges end as on a lost connection."""

from __future__ import annotations

import pytest
import trio

from mcpmux.channels.channel import ignore_event
from mcpmux.channels.http_peer import HttpPlace, HttpStatusError
from mcpmux.channels.opener import open_streamable
from mcpmux.errors import McpmuxError, MessageTooLarge, RpcError, TransportClosed, TransportError
from mcpmux.protocol.call import Call
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.revisions import NEWEST, NEWEST_LEGACY
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin
from mcpmux.transports.http.sse_streams import MessageRefused


@pytest.mark.parametrize("revision", [NEWEST_LEGACY, NEWEST])
@pytest.mark.parametrize("method", ["tools/call", "resources/read"])
async def test_who_comes_too_late_hears_that_the_connection_is_lost(revision: str, method: str):
    """A tool call of a legacy server is carried by a task, which an ended channel cannot have any more."""
    with trio.fail_after(60), HttpPool(HttpOrigin(False, "127.0.0.1", 1)) as pool:
        place = HttpPlace(pool, "http://127.0.0.1:1/mcp", (), 1024, lambda _: None, 1.0)
        async with open_streamable(place) as channel:
            channel.settle(ServerFacts(revision, {}))
            channel.peer.lose(TransportClosed("gone"))
        assert channel.close_reason.__traceback__ is None
        for _ in range(2):
            with pytest.raises(TransportError) as caught:
                await channel.exchange(Call(method, {}, {}), ignore_event)
            assert caught.value is not channel.close_reason  # which would keep all that a caller has at hand
            assert str(caught.value) == str(channel.close_reason)
        assert channel.close_reason.__traceback__ is None


KEPT: list[McpmuxError] = [
    TransportClosed("gone").quoting(": a page"),
    MessageRefused("no", 404),
    HttpStatusError(401, b"who?", None, 2.0, "meant"),
    RpcError(-32602, "wrong", {"a": 1}),
    MessageTooLarge("long", b"{"),
]


@pytest.mark.parametrize("error", KEPT, ids=lambda error: type(error).__name__)
def test_a_kept_error_is_raised_as_an_equal_one_without_frames(error: McpmuxError):
    with pytest.raises(type(error)):
        raise error
    other = error.anew()
    assert type(other) is type(error)
    assert (other.args, other.in_full) == (error.args, error.in_full)
    assert getattr(other, "__dict__", None) == getattr(error, "__dict__", None)
    assert (other.__traceback__, other.__context__) == (None, None)
