"""The port of a replica accepts letters that are signed, for it, of now, and read once."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trustme

from mcpmux.cluster.letter import Card, Letter, ListenWanted, Neighbour, News
from mcpmux.cluster.port import FRESH_SECONDS, MISDIRECTED, PATH, SENDER, SIGNATURE, ReplicaClient
from mcpmux.cluster.replica import Replica, open_replica
from mcpmux.cluster.seal import ClusterSeal
from mcpmux.cluster.store import MemoryStore
from mcpmux.config import ClientTls, Config, Limits, Merging, Secret, ServerTls
from mcpmux.config.cluster import Cluster, ReplicaListener
from mcpmux.errors import ConfigError, RemoteProtocolError, TransportError
from mcpmux.transports.body_budget import SMALL_BODY, BodyBudget
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin
from mcpmux.transports.tls import TlsContexts
from tests.runtime.world import upstream

KEY = b"key of this cluster"
PATIENCE = 20.0
NOTHING = News([], [])


@asynccontextmanager
async def open_alone(
    bodies: BodyBudget | None = None, peers: ClientTls | None = None, **listener: Any
) -> AsyncIterator[Replica]:
    config = Config(
        upstreams=(upstream("docs"),),
        merging=Merging(cursor_key=Secret(KEY.decode())),
        cluster=Cluster(
            url=Secret("redis://unused"),
            listener=ReplicaListener(**listener),
            peers=peers or ClientTls(),
        ),
    )
    with trio.fail_after(PATIENCE):
        async with open_replica(
            config, MemoryStore(trio.current_time), ClusterSeal.of(config), bodies
        ) as replica:
            yield replica


async def post(replica: Replica, letter: Letter, *, body: bytes | None = None, key: bytes = KEY) -> int:
    """Post a letter, and return the status of the answer. `body`: what arrives in its place."""
    encoded = msgspec.msgpack.encode(letter)
    signature = ((SIGNATURE, ClusterSeal(key).sign(encoded)),)
    with HttpPool(HttpOrigin.from_url(replica.members.card.url)) as pool:
        response = await pool.send(
            "POST", PATH, (), encoded if body is None else body, idempotent=False, more=signature
        )
        await response.read()
        response.release()
        return response.status


def letter_to(replica: Replica, *, late: float = 0.0, nonce: str = "once") -> Letter:
    return Letter(replica.members.replica, time.time() - late, nonce, NOTHING)


async def test_a_letter_is_read_once():
    async with open_alone() as replica:
        letter = letter_to(replica)
        assert [await post(replica, letter) for _ in range(3)] == [204, 403, 403]
        assert await post(replica, letter_to(replica, nonce="another")) == 204


@pytest.mark.parametrize(
    ("late", "status"),
    [(0, 204), (FRESH_SECONDS - 5, 204), (FRESH_SECONDS + 5, 403), (5 - FRESH_SECONDS, 204), (-3600, 403)],
)
async def test_a_letter_is_of_now(late, status):
    async with open_alone() as replica:
        assert await post(replica, letter_to(replica, late=late)) == status


async def test_nothing_in_a_letter_can_be_changed_on_the_way():
    async with open_alone() as replica:
        letter = letter_to(replica)
        news = News([1], [("docs", "notifications/tools/list_changed")])
        other = msgspec.structs.replace(letter, content=news)
        assert await post(replica, letter, body=msgspec.msgpack.encode(other)) == 403
        assert await post(replica, letter, key=b"key of somebody else") == 403
        assert await post(replica, msgspec.structs.replace(letter, to="somebody")) == 403
        assert await post(replica, letter) == 204


async def test_a_listen_is_answered_when_its_letter_is_for_this_replica():
    async with open_alone() as replica:
        letter = Letter(replica.members.replica, time.time(), "once", ListenWanted("docs", ["memo:1"], "1"))
        assert await post(replica, letter, key=b"key of somebody else") == 403
        assert await post(replica, msgspec.structs.replace(letter, to="somebody")) == 403
        assert await post(replica, msgspec.structs.replace(letter, at=0.0)) == 403
        assert await post(replica, letter) == MISDIRECTED  # it has no such upstream


async def test_nonsense_is_refused_and_the_port_goes_on():
    async with open_alone() as replica:
        letter = letter_to(replica)
        for body in (b"", b"{}", b"\xc1" * 100, msgspec.msgpack.encode(["x"] * 4)):
            assert await post(replica, letter, body=body) == 403
        assert await post(replica, letter) == 204


LARGE = News(list(range(SMALL_BODY)), [])
LENGTH = 2**20


@pytest.mark.parametrize(
    ("key", "late", "length", "reason"),
    [
        (b"key of somebody else", 0.0, LENGTH, b"its head is not signed"),
        (KEY, 0.0, LENGTH - 1, b"its head is not signed"),
        (KEY, FRESH_SECONDS + 5, LENGTH, b"it is old"),
    ],
)
async def test_the_head_of_a_large_letter_shows_that_a_replica_writes_it(key, late, length, reason):
    async with open_alone() as replica:
        at = repr(time.time() - late)
        signature = ClusterSeal(key).sign(f"head {replica.members.replica} {at} {length}".encode())
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\n{SENDER}: {at} {signature}\r\nContent-Length: {LENGTH}"
        port = HttpOrigin.from_url(replica.members.card.url).port
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(f"{head}\r\n\r\n".encode())
            await stream.send_eof()  # and no part of the letter
            answer = b"".join([part async for part in stream])
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert answer.partition(b"\r\n\r\n")[2].startswith(reason)


async def test_large_letters_count_in_the_budget_for_bodies():
    bodies = BodyBudget(SMALL_BODY)
    async with open_alone(bodies) as replica:
        there = Neighbour(replica.members.replica, Card("a", replica.members.card.url))
        client = ReplicaClient(ClusterSeal(KEY), TlsContexts(), ClientTls(), Limits())
        await client.tell(there, LARGE)
        assert bodies.take(1)  # for a client's request
        with pytest.raises(RemoteProtocolError, match="max_body_bytes_in_flight"):
            await client.tell(there, LARGE)
        await client.tell(there, NOTHING)
        bodies.give_back(1)
        await client.tell(there, LARGE)
        assert bodies.taken == 0
        client.close()


async def test_a_port_with_an_authority_wants_a_certificate_of_others(tmp_path: Path):
    authority = trustme.CA()
    ca, certificate = tmp_path / "ca.pem", tmp_path / "one.pem"
    authority.cert_pem.write_to_path(str(ca))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    tls = ServerTls(certificate=str(certificate), client_ca=str(ca))
    async with open_alone(tls=tls) as replica:
        there = Neighbour(replica.members.replica, Card("a", replica.members.card.url))
        assert there.card.url.startswith("https://")
        shown = ClientTls(ca=str(ca), certificate=str(certificate))
        for peers, is_heard in ((shown, True), (ClientTls(ca=str(ca)), False), (ClientTls(), False)):
            client = ReplicaClient(ClusterSeal(KEY), TlsContexts(), peers, Limits())
            try:
                await client.tell(there, NOTHING)
            except TransportError:
                assert not is_heard, peers
            else:
                assert is_heard, peers
            finally:
                client.close()


async def test_certificates_between_replicas_are_renewed(tmp_path: Path):
    paths = [tmp_path / "ca.pem", tmp_path / "one.pem"]

    def issue() -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(paths[0]))
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(paths[1]))

    issue()
    ca, certificate = map(str, paths)
    ours = ServerTls(certificate=certificate, client_ca=ca)
    peers = ClientTls(ca=ca, certificate=certificate)
    async with open_alone(tls=ours, peers=peers) as replica:
        there = Neighbour(replica.members.replica, Card("a", replica.members.card.url))
        for _ in range(2):
            client = ReplicaClient(ClusterSeal(KEY), replica.certificates, peers, Limits())
            await client.tell(there, NOTHING)
            client.close()
            issue()
            settings = Config(
                upstreams=(upstream("docs"),),
                cluster=Cluster(listener=ReplicaListener(tls=ours), peers=peers),
            ).tls
            assert await replica.certificates.renew(settings) == ("cluster.listener", "cluster.peers")


async def test_an_unusable_file_for_peers_is_reported_at_the_start(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"cluster\.peers: tls\.ca: .*missing"):
        async with open_alone(peers=ClientTls(ca=str(tmp_path / "missing.pem"))):
            pass
