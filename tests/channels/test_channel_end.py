"""A channel over HTTP that has ended: whoever still comes to it hears so, as of a lost connection."""

from __future__ import annotations

import pytest
import trio

from mcpmux.channels.calls import unheard
from mcpmux.channels.http_peer import HttpPlace
from mcpmux.channels.opener import answer_server, open_streamable
from mcpmux.errors import TransportError
from mcpmux.protocol.call import Call
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.revisions import NEWEST, NEWEST_LEGACY
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin


@pytest.mark.parametrize("revision", [NEWEST_LEGACY, NEWEST])
@pytest.mark.parametrize("method", ["tools/call", "resources/read"])
async def test_who_comes_too_late_hears_that_the_connection_is_lost(revision: str, method: str):
    """A tool call of a legacy server is carried by a task, which an ended channel cannot have any more."""
    with trio.fail_after(60), HttpPool(HttpOrigin(False, "127.0.0.1", 1)) as pool:
        place = HttpPlace(pool, "http://127.0.0.1:1/mcp", (), 1024, answer_server, lambda _: None, 1.0)
        async with open_streamable(place) as channel:
            channel.settle(ServerFacts(revision, {}))
        with pytest.raises(TransportError):
            await channel.exchange(Call(method, {}, {}), unheard)
