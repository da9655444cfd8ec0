"""Letters between replicas that are refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

import pytest
import trio

from mcpmux.channels.channel import ignore_event
from mcpmux.cluster.letter import Card, HandedRequest, ListenWanted, Neighbour
from mcpmux.cluster.port import Outcome, ReplicaClient
from mcpmux.cluster.replica import Replica, open_replica
from mcpmux.cluster.seal import ClusterSeal
from mcpmux.cluster.store import MemoryStore
from mcpmux.config import ClientTls, Config, Limits, Merging, Secret
from mcpmux.config.cluster import Cluster
from mcpmux.errors import ConnectFailed, RemoteProtocolError, TransportError
from mcpmux.protocol.call import Call
from mcpmux.transports.http.client import was_unsent
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.tls import TlsContexts
from tests.runtime.world import upstream

SILENCE = 0.2  # seconds
KEY = "key of this cluster"
PATIENCE = 5.0


class Untouched:
    """A reply that must not be touched."""

    def __getattr__(self, name: str) -> None:
        raise AssertionError(f"the client is answered: {name}")


def chunk(data: bytes) -> bytes:
    """Return the data as a chunk of a response."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@asynccontextmanager
async def open_alone() -> AsyncIterator[Replica]:
    config = Config(
        upstreams=(upstream("docs"),),
        merging=Merging(cursor_key=Secret(KEY)),
        cluster=Cluster(url=Secret("redis://unused"), replica="a"),
    )
    with trio.fail_after(PATIENCE):
        async with open_replica(config, MemoryStore(trio.current_time), ClusterSeal.of(config)) as replica:
            yield replica


@pytest.mark.parametrize(
    ("to", "key", "reason"),
    [
        ("0123456789", KEY, "it is for another replica"),  # started again, at the same address
        (None, "key of another cluster", "it is not signed"),
    ],
)
async def test_a_request_that_is_refused_counts_as_not_handed_over(to, key, reason):
    async with open_alone() as replica:
        client = ReplicaClient(ClusterSeal(key.encode()), TlsContexts(), ClientTls(), Limits())
        handed = HandedRequest.of(
            0, HttpRequest("POST", "/mcp", "", {}, b"{}", "127.0.0.1:1", False, True, "")
        )
        neighbour = Neighbour(to or replica.members.replica, Card("a", replica.members.card.url))
        outcome = await client.hand_over(neighbour, handed, cast("HttpReply", Untouched()))
        with pytest.raises(ConnectFailed, match=reason):
            await client.ask_state(neighbour)
        client.close()
    assert outcome is Outcome.UNSENT


OPEN = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", "said nothing"),
        (OPEN, "said nothing"),
        (OPEN + chunk(b":\n\n"), "said nothing"),
        (OPEN + chunk(b"data: {}\n\n"), "as a replica does"),
        (OPEN + chunk(b"data: \xff\n\n"), "as a replica does"),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", "it refuses: no"),
    ],
)
async def test_a_listen_at_a_replica_that_is_silent_or_talks_nonsense_ends(said, reason):
    """Drop a connection, as a stopped replica or a broken network does."""
    async with open_answering(said) as (client, there):
        listen = ListenWanted("docs", ["memo:1"], "1")
        with pytest.raises((TransportError, RemoteProtocolError), match=reason):
            await client.listen(there, listen, SILENCE, ignore_event)


JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (JSON, "as a replica does"),
        (OPEN + chunk(b"data: {}\n\n"), "as a replica does"),
        (OPEN + b"0\r\n\r\n", "has ended"),
        (b"HTTP/1.1 403 Forbidden\r\nMcpmux-Refused: 1\r\nContent-Length: 2\r\n\r\nno", "no"),
    ],
)
async def test_a_call_that_a_replica_does_not_answer_fails(said, reason):
    async with open_answering(said) as (client, there):
        with pytest.raises((TransportError, RemoteProtocolError), match=reason) as failed:
            await client.exchange(there, Call("tasks/get", {}, {}), ignore_event)
    assert was_unsent(failed.value) == (reason == "no")


@asynccontextmanager
async def open_answering(said: bytes) -> AsyncIterator[tuple[ReplicaClient, Neighbour]]:
    """Open a replica that answers every letter with the same bytes, and a client of it."""

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(said)
        await trio.sleep_forever()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(
                partial(trio.serve_tcp, answer, 0, host="127.0.0.1", handler_nursery=nursery)
            )
            url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
            client = ReplicaClient(ClusterSeal(KEY.encode()), TlsContexts(), ClientTls(), Limits())
            yield client, Neighbour("a", Card("a", url))
            client.close()
            nursery.cancel_scope.cancel()
