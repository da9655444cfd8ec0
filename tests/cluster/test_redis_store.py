"""A real Redis that is away, comes, goes, hangs, refuses and moves."""

from __future__ import annotations

import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from benchmarks.process import free_port
from mcpmux.cluster.redis_store import CALLS, RedisStore, open_redis_store, parse_store_url
from mcpmux.cluster.store import Bucket, Place, Store, StoreAway, StoredSession
from mcpmux.config import ClientTls, Secret
from mcpmux.config.cluster import Cluster
from mcpmux.errors import ConfigError
from tests.cluster.redis_server import HOST, RedisServer
from tests.cluster.test_store_answers import anything
from tests.examples import examples

T = TypeVar("T")

LONG = 60.0  # seconds
MOST_SECONDS = 5.0  # for anything
PASSWORD = "open-sesame"


def at(server: RedisServer, timeout: float = 0.3, **settings) -> Cluster:
    return Cluster(url=Secret(f"redis://{server.address}"), timeout=timeout, **settings)


async def eventually(question: Callable[[], Awaitable[T]], seconds: float = MOST_SECONDS) -> T:
    """Return the answer of the store once it answers."""
    with trio.fail_after(seconds):
        while True:
            try:
                return await question()
            except StoreAway:
                await trio.sleep(0.01)


async def why_away(store: Store) -> str:
    """Return the error of the store once it fails."""
    with trio.fail_after(MOST_SECONDS):
        while True:
            try:
                await store.version()
            except StoreAway as away:
                return str(away)
            await trio.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(MOST_SECONDS):
        while True:
            if await in_thread(condition):
                return
            await trio.sleep(0.01)


in_thread = trio.to_thread.run_sync


async def test_a_store_is_used_as_soon_as_it_is_there(redis):
    server = redis.make()
    async with open_redis_store(at(server)) as store:
        sentence = f"the store at {server.address} cannot be reached: connection refused"
        assert await why_away(store) == sentence
        assert store.away == sentence
        assert sentence in repr(store)
        await in_thread(server.start)
        assert (await eventually(store.version)).startswith("redis ")
        assert store.away is None


async def test_the_first_call_waits_for_the_connection(redis):
    async with open_redis_store(at(redis.start(), timeout=MOST_SECONDS)) as store:
        assert await store.find("s") is None


async def test_an_unknown_host_is_told():
    async with open_redis_store(Cluster(url=Secret("redis://nowhere.invalid"))) as store:
        assert (await why_away(store)).startswith("the store at nowhere.invalid:6379 ")


async def test_a_store_that_starts_again_is_used_again(redis):
    server = redis.start()
    async with open_redis_store(at(server)) as store:
        for _ in range(3):
            await eventually(store.version)
            await in_thread(server.kill)
            assert "cannot be reached" in await why_away(store)
            await in_thread(server.start)
        await eventually(store.version)


async def test_a_restart_that_nobody_notices_costs_no_call(redis):
    server = redis.start()
    async with open_redis_store(at(server, timeout=MOST_SECONDS)) as store:
        await store.version()
        await in_thread(server.kill)
        await in_thread(server.start)
        assert await store.find("s") is None


async def test_who_was_a_member_of_what_is_lost_is_none(redis):
    server = redis.start()
    async with open_redis_store(at(server)) as store:
        await eventually(lambda: store.renew("a", b"", LONG, joining=True))
        await in_thread(server.kill)
        await in_thread(server.start)
        assert await eventually(lambda: store.renew("a", b"", LONG, joining=False)) is None
        assert await store.renew("a", b"", LONG, joining=True) is None
        assert await store.renew("b", b"", LONG, joining=True) is not None


async def test_what_a_store_writes_to_disk_is_there_after_a_restart(redis):
    server = redis.start("--appendonly", "yes")
    async with open_redis_store(at(server)) as store:
        await eventually(lambda: store.renew("a", b"", LONG, joining=True))
        await store.save("s", StoredSession("a", b"facts"), LONG)
        await in_thread(server.stop)
        await in_thread(server.start)
        assert await eventually(lambda: store.find("s")) == StoredSession("a", b"facts")
        assert await store.renew("a", b"", LONG, joining=False) is not None


async def test_a_store_that_hangs_is_away_until_it_goes_on(redis):
    server = redis.start()
    async with open_redis_store(at(server)) as store:
        await eventually(store.version)
        server.pause()
        for _ in range(5):
            with (
                pytest.raises(StoreAway, match=r"does not answer within 0\.3 s"),
                trio.fail_after(MOST_SECONDS),
            ):
                await store.find("s")
        server.resume()
        assert await eventually(lambda: store.save("s", StoredSession("a", b""), LONG))


async def test_a_store_that_is_known_to_hang_makes_nobody_wait(redis):
    server = redis.start()
    async with open_redis_store(at(server)) as store:
        await eventually(store.version)
        server.pause()
        await why_away(store)
        await until(lambda: store._opened is None)
        refused = []

        async def find() -> None:
            with pytest.raises(StoreAway, match="does not answer"):
                await store.find("s")
            refused.append("s")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(find)
            await wait_all_tasks_blocked()
            assert refused


async def test_a_store_that_hangs_from_the_start_is_away(redis):
    server = redis.start()
    server.pause()
    async with open_redis_store(at(server)) as store:
        assert await why_away(store) == f"the store at {server.address} does not answer within 0.3 s"
        server.resume()
        await eventually(store.version)


async def test_calls_that_hang_are_bounded(redis):
    server = redis.start()
    async with open_redis_store(at(server, timeout=1.0)) as store:
        await eventually(store.version)
        server.pause()
        sentences = []

        async def find() -> None:
            try:
                await store.find("s")
            except StoreAway as away:
                sentences.append(str(away))

        async with trio.open_nursery() as nursery:
            for _ in range(CALLS + 1):
                nursery.start_soon(find)
        too_many = f"the store at {server.address} has {CALLS} calls to answer already"
        assert sentences.count(too_many) == 1
        assert len(sentences) == CALLS + 1


async def test_callers_that_are_cancelled_take_nothing_away_from_others(redis):
    server = redis.make()
    async with open_redis_store(at(server)) as store:
        for number in range(100):
            if number == 50:
                await in_thread(server.start)
            with trio.move_on_after(0.002 * (number % 5)):
                await eventually(lambda: store.find("s"))
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(eventually, lambda: store.find("s"))
        assert store._calls == 0


async def test_connections_that_are_cut_are_opened_again(redis):
    server = redis.start()
    async with open_redis_store(at(server)) as store:
        for _ in range(20):
            await eventually(store.version)
            await in_thread(server.ask, "CLIENT KILL TYPE normal")
        await eventually(store.version)


async def test_leaving_closes_all_connections(redis):
    server = redis.start()
    async with open_redis_store(at(server)) as store:
        await eventually(store.version)
        await in_thread(server.kill)
        await why_away(store)
        await in_thread(server.start)
        await eventually(store.version)
    await until(lambda: "connected_clients:1\r\n" in server.ask("INFO clients"))


async def test_scripts_that_the_store_forgot_are_sent_again(redis):
    server = redis.start()
    async with open_redis_store(at(server)) as store:
        await eventually(lambda: store.save("s", StoredSession("a", b""), LONG))
        count = store.commands
        await store.save("s", StoredSession("a", b""), LONG)
        assert store.commands == count + 1
        await in_thread(server.ask, "SCRIPT FLUSH")
        await store.save("s", StoredSession("a", b""), LONG)
        assert store.commands == count + 3


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "wants a password; set `password` in [cluster]"),
        ({"password": Secret("wrong")}, "refuses the `username` and `password` of [cluster]"),
        (
            {"username": "nobody", "password": Secret(PASSWORD)},
            "refuses the `username` and `password` of [cluster]",
        ),
    ],
)
async def test_who_has_not_the_right_password_is_told_so(redis, settings, reason):
    server = redis.start("--requirepass", PASSWORD)
    async with open_redis_store(at(server, **settings)) as store:
        assert await why_away(store) == f"the store at {server.address} {reason}"


async def test_no_error_has_a_password_in_it(redis):
    server = redis.start("--requirepass", PASSWORD)
    async with open_redis_store(at(server, username="nobody", password=Secret(PASSWORD))) as store:
        with pytest.raises(StoreAway) as caught:
            await store.version()
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


async def test_the_right_password_opens_the_store(redis):
    server = redis.start("--requirepass", PASSWORD)
    async with open_redis_store(at(server, password=Secret(PASSWORD))) as store:
        await eventually(store.version)
    with_user = f"redis://default:{PASSWORD}@{server.address}"
    async with open_redis_store(Cluster(url=Secret(with_user), timeout=MOST_SECONDS)) as store:
        await store.version()


async def test_a_store_that_is_full_refuses_what_takes_room(redis):
    server = redis.start("--maxmemory", "1")
    async with open_redis_store(at(server, timeout=MOST_SECONDS)) as store:
        assert await store.find("s") is None
        client = store._opened
        with capture_logs() as logs:
            for _ in range(2):
                with pytest.raises(StoreAway, match="refuses: OOM "):
                    await store.save("s", StoredSession("a", b""), LONG)
        (event,) = logs  # and no flood
        assert event["reason"] == store.away is not None
        assert await store.find("s") is None
        assert store.away is None
        assert store._opened is client


async def test_a_replica_is_no_store(redis):
    server = redis.start()
    async with open_redis_store(at(server)) as store:
        await eventually(store.version)
        await in_thread(server.ask, f"REPLICAOF {HOST} 1")
        with pytest.raises(StoreAway, match="refuses: "):
            await store.save("s", StoredSession("a", b""), LONG)
        await in_thread(server.ask, "REPLICAOF NO ONE")
        assert await eventually(lambda: store.save("s", StoredSession("a", b""), LONG))


async def test_prefixes_and_databases_keep_clusters_apart(redis):
    server = redis.start()
    other_database = Cluster(url=Secret(f"redis://{server.address}/1"), timeout=MOST_SECONDS)
    async with (
        open_redis_store(at(server, timeout=MOST_SECONDS)) as store,
        open_redis_store(at(server, timeout=MOST_SECONDS, prefix="other")) as other_prefix,
        open_redis_store(other_database) as other,
    ):
        await use_everything(store, "a")
        assert await other_prefix.renew("b", b"", LONG, joining=True) == [("b", b"")]
        assert await other.renew("c", b"", LONG, joining=True) == [("c", b"")]
        assert await other.find("a") is None
        assert await other_prefix.find("a") is None


async def use_everything(store: Store, name: str) -> None:
    """Call every method once. `name` is the name of a replica and of its session."""
    members = await store.renew(name, b"card", LONG, joining=True)
    assert members is not None
    assert (name, b"card") in members
    assert await store.save(name, StoredSession(name, b"facts"), LONG)
    assert await store.claim(name, name, name)
    assert await store.find(name) == StoredSession(name, b"facts")
    await store.append(name, [b"1", b"2", b"3"], 2, LONG)
    assert await store.keep([name, "nobody's"], name, LONG) == {name}
    assert list(await store.events(name)) == [b"2", b"3"]
    assert await store.take([Bucket(f"{name}-1", 0.1, 0.1), Bucket(f"{name}-2", 0.1, 0.0)]) is None
    assert (await store.version()).startswith("redis ")


@pytest.mark.parametrize("bad", ["inf", "nan", "99999999999", "-inf", "no number"])
async def test_a_bucket_with_a_bad_time_counts_as_an_empty_one(redis, bad):
    server = redis.start()
    bucket = Bucket("b", 1.0, 9.0)
    async with open_redis_store(at(server, timeout=MOST_SECONDS)) as store:
        assert server.ask(f"SET {{mcpmux.rate}}:b '{bad}'") == "+OK\r\n"
        refused = await store.take([bucket])
        assert refused is None or list(refused) == [0, pytest.approx(1.0, abs=0.1)]


async def test_what_others_write_to_the_store_is_passed_over(redis):
    server = redis.start()
    async with open_redis_store(at(server, timeout=MOST_SECONDS)) as store:
        await use_everything(store, "s")
        for command in (
            r'ZADD {mcpmux}:replicas 99999999999999 "\xff\xfe"',
            f"ZADD {{mcpmux}}:replicas 99999999999999 {'x' * 1000}",
            "XADD mcpmux:events:{s} 99999999999999-1 other x",
        ):
            assert not server.ask(command).startswith("-"), command
        members = await store.renew("a", b"card", LONG, joining=True)
        assert members is not None
        assert {member.replica for member in members} == {"a", "s"}
        assert {lease.replica for lease in (await store.members()).leases} == {"a", "s"}
        assert list(await store.events("s")) == [b"2", b"3"]


async def test_a_session_that_others_have_written_is_told_with_its_key(redis):
    server = redis.start()
    async with open_redis_store(at(server, timeout=MOST_SECONDS)) as store:
        server.ask(r'HSET mcpmux:session:{s} owner "\xff" facts x')
        with pytest.raises(StoreAway, match=r"has something else under the `prefix` .*mcpmux:session:{s}"):
            await store.find("s")
        client = store._opened
        assert await store.find("t") is None
        assert store._opened is client


QUESTIONS: list[Callable[[Store], Awaitable[object]]] = [
    lambda store: store.renew("a", b"card", LONG, joining=True),
    lambda store: store.members(),
    lambda store: store.find("s"),
    lambda store: store.claim("s", "a", "b"),
    lambda store: store.keep(["s", "t"], "a", LONG),
    lambda store: store.events("s"),
    lambda store: store.take([Bucket("b", 1.0, 1.0)]),
    lambda store: store.take_place(Place("g", "n"), 1, LONG),
    lambda store: store.version(),
]


@settings(max_examples=examples(300))
@given(anything, st.sampled_from(QUESTIONS))
def test_no_answer_of_a_store_raises_anything_but_that_it_is_away(answer, question) -> None:
    class Client:
        """Answers everything alike."""

        async def evalsha(self, *_: object) -> object:
            return answer

        hmget = xrange = info = evalsha

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        yield Client()

    async def ask() -> None:
        config = Cluster(url=Secret("redis://127.0.0.1:1"), timeout=MOST_SECONDS)
        store = RedisStore(config, parse_store_url(Secret("redis://127.0.0.1:1")), opened)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.run)
            with suppress(StoreAway):
                await question(store)
            nursery.cancel_scope.cancel()

    trio.run(ask)


async def test_everything_there_ends_by_itself(redis):
    server = redis.start()
    async with open_redis_store(at(server, timeout=MOST_SECONDS)) as store:
        await use_everything(store, "s")
        await store.leave("other")
        await until(lambda: server.ask("DBSIZE") == ":5\r\n")  # without the buckets, which are full
        for key in (
            "{mcpmux}:replicas",
            "{mcpmux}:cards",
            "{mcpmux}:ended",
            "mcpmux:session:{s}",
            "mcpmux:events:{s}",
        ):
            assert int(server.ask(f"PTTL {key}").strip(":\r\n")) > 0


# TLS


def secure(redis, certificates, certificate: str, key: str, *options: str) -> tuple[RedisServer, str]:
    """Start a server. Return it and the address at which it speaks TLS."""
    port = free_port()
    server = redis.start(
        *("--tls-port", str(port), "--tls-cert-file", certificate, "--tls-key-file", key),
        *("--tls-ca-cert-file", certificates.ca, *options),
    )
    return server, f"{HOST}:{port}"


NO_CLIENT = ("--tls-auth-clients", "no")


def securely_at(address: str, timeout: float = MOST_SECONDS, **tls) -> Cluster:
    return Cluster(url=Secret(f"rediss://{address}"), timeout=timeout, tls=ClientTls(**tls))


async def test_a_server_that_proves_who_it_is_is_used(redis, certificates):
    server, address = secure(redis, certificates, certificates.server, certificates.server_key, *NO_CLIENT)
    async with open_redis_store(securely_at(address, ca=certificates.ca)) as store:
        await use_everything(store, "s")
        await in_thread(server.kill)
        await in_thread(server.start)
        await eventually(store.version)


@pytest.mark.parametrize(
    ("authority", "reason"),
    [
        ("strange_ca", "the server's certificate is not trusted"),
        ("ca", "the server's certificate is for another name"),
    ],
)
async def test_a_server_that_cannot_prove_who_it_is_is_not_used(redis, certificates, authority, reason):
    name = "server" if authority == "strange_ca" else "elsewhere"
    files = getattr(certificates, name), getattr(certificates, f"{name}_key")
    _, address = secure(redis, certificates, *files, *NO_CLIENT)
    async with open_redis_store(securely_at(address, ca=getattr(certificates, authority))) as store:
        assert f"cannot be reached: {reason}" in await why_away(store)


async def test_a_server_may_have_the_name_that_the_settings_say(redis, certificates):
    _, address = secure(redis, certificates, certificates.elsewhere, certificates.elsewhere_key, *NO_CLIENT)
    named = securely_at(address, ca=certificates.ca, server_name="elsewhere.example")
    async with open_redis_store(named) as store:
        await store.version()


async def test_a_server_that_asks_for_a_certificate_gets_it(redis, certificates):
    _, address = secure(redis, certificates, certificates.server, certificates.server_key)
    ours = {"certificate": certificates.client, "key": certificates.client_key}
    async with open_redis_store(securely_at(address, ca=certificates.ca, **ours)) as store:
        await store.version()
    async with open_redis_store(securely_at(address, ca=certificates.ca)) as store:
        assert "cannot be reached" in await why_away(store)


async def test_a_server_without_tls_is_told(redis, certificates):
    server = redis.start()
    config = securely_at(server.address, timeout=0.3, ca=certificates.ca)
    async with open_redis_store(config) as store:
        assert "does not answer within" in await why_away(store)


async def test_files_that_are_of_no_use_are_told_at_once(certificates):
    with pytest.raises(ConfigError, match=r"cluster: tls\.ca: .*missing"):
        async with open_redis_store(securely_at("h:1", ca=certificates.missing)):
            pass


# Sentinels


async def start_pair(redis) -> tuple[RedisServer, RedisServer, RedisServer, Cluster]:
    """Start a primary, its replica, and the Sentinel that watches both. Return them and their settings."""
    primary = redis.start("--repl-diskless-sync-delay", "0")
    replica = redis.start("--replicaof", HOST, str(primary.port))
    await until(lambda: "master_link_status:up" in replica.ask("INFO replication"))
    sentinel = redis.start_sentinel(primary)
    await until(lambda: str(replica.port) in sentinel.ask("SENTINEL REPLICAS main"))
    url = Secret(f"redis+sentinel://{HOST}:{free_port()},{sentinel.address}/main")
    return primary, replica, sentinel, Cluster(url=url, timeout=1.0)


FAILOVER_SECONDS = 20.0


@pytest.mark.slow
async def test_when_a_primary_dies_its_replica_is_used(redis):
    primary, replica, _, config = await start_pair(redis)
    async with open_redis_store(config) as store:
        await eventually(lambda: store.renew("a", b"", LONG, joining=True))
        await store.save("s", StoredSession("a", b"facts"), LONG)
        await until(lambda: replica.ask("EXISTS mcpmux:session:{s}") == ":1\r\n")
        await in_thread(primary.kill)
        assert await eventually(lambda: store.claim("s", "b", "a"), FAILOVER_SECONDS)
        assert await store.find("s") == StoredSession("b", b"facts")
        assert await store.renew("a", b"", LONG, joining=False) is not None
        await in_thread(primary.start)  # as a primary that nobody told otherwise yet
        assert await eventually(lambda: store.find("s")) == StoredSession("b", b"facts")


@pytest.mark.slow
async def test_a_primary_that_is_to_become_a_replica_is_left(redis):
    _, replica, sentinel, config = await start_pair(redis)
    async with open_redis_store(config) as store:
        await eventually(lambda: store.save("s", StoredSession("a", b""), LONG))
        await until(lambda: sentinel.ask("SENTINEL FAILOVER main") == "+OK\r\n")
        await until(lambda: "role:master" in replica.ask("INFO replication"))

        async def writes_to_replica() -> None:
            await store.save("new", StoredSession("a", b"facts"), LONG)
            if replica.ask("EXISTS mcpmux:session:{new}") != ":1\r\n":
                raise StoreAway

        await eventually(writes_to_replica)


async def test_sentinels_may_have_a_password_of_their_own(redis):
    primary = redis.start("--requirepass", PASSWORD)
    sentinel = redis.start_sentinel(primary, "requirepass of-sentinel")
    for user, reason in {":of-sentinel@": None, "": "wants a password", ":wrong@": "refuses the "}.items():
        url = Secret(f"redis+sentinel://{user}{sentinel.address}/main")
        config = Cluster(url=url, timeout=MOST_SECONDS, password=Secret(PASSWORD))
        async with open_redis_store(config) as store:
            if reason is None:
                await use_everything(store, "s")
            else:
                assert reason in await why_away(store)


async def test_a_service_that_no_sentinel_knows_is_told(redis):
    sentinel = redis.start_sentinel(redis.start())
    url = Secret(f"redis+sentinel://{sentinel.address}/other")
    async with open_redis_store(Cluster(url=url, timeout=MOST_SECONDS)) as store:
        assert "no Sentinel answers that knows" in await why_away(store)


# Redis Clusters


def at_all(servers: list[RedisServer], timeout: float = 1.0) -> Cluster:
    url = Secret(f"redis+cluster://{','.join(server.address for server in servers)}")
    return Cluster(url=url, timeout=timeout)


NAMES = [f"session-{number}" for number in range(60)]


async def names_by_node(store: Store, servers: list[RedisServer]) -> dict[RedisServer, list[str]]:
    """Save sessions of "a", and return them by their places."""
    for name in NAMES:
        await eventually(partial(store.save, name, StoredSession("a", b""), LONG))
    return {
        server: [name for name in NAMES if server.ask(f"EXISTS mcpmux:session:{{{name}}}") == ":1\r\n"]
        for server in servers
    }


@pytest.mark.slow
async def test_of_a_cluster_one_node_that_dies_takes_only_its_own(redis):
    servers = redis.start_cluster(3)
    first, second, third = servers
    async with open_redis_store(at_all(servers, timeout=MOST_SECONDS)) as store:
        names = await names_by_node(store, servers)
        await in_thread(first.kill)
        for _ in range(20):
            with pytest.raises(StoreAway):
                await store.find(names[first][0])
            for server in (second, third):
                for name in names[server]:
                    assert await store.find(name) is not None
        await in_thread(first.start)
        assert await eventually(
            lambda: store.save(names[first][0], StoredSession("a", b""), LONG), FAILOVER_SECONDS
        )


@pytest.mark.slow
async def test_a_node_that_hangs_makes_no_other_hang(redis):
    servers = redis.start_cluster(3)
    first, *others = servers
    async with open_redis_store(at_all(servers, timeout=2.0)) as store:
        names = await names_by_node(store, servers)
        first.pause()
        for _ in range(2):
            with pytest.raises(StoreAway):
                await store.find(names[first][0])
            for server in others:
                assert await store.keep(names[server], "a", LONG) == set(names[server])
            with trio.move_on_after(0.1) as impatience:
                await store.keep(NAMES, "a", LONG)
            assert impatience.cancelled_caught
            with pytest.raises(StoreAway, match="does not answer"):
                await store.keep(NAMES, "a", LONG)
        first.resume()
        assert await eventually(lambda: store.find(names[first][0]), FAILOVER_SECONDS)


@pytest.mark.slow
async def test_a_replica_in_a_cluster_takes_over(redis):
    servers = redis.start_cluster(3, replicas=1)
    first, *_, replica = servers
    async with open_redis_store(at_all(servers)) as store:
        name = (await names_by_node(store, servers[:3]))[first][0]
        await until(lambda: replica.ask("DBSIZE") == first.ask("DBSIZE"))
        await in_thread(first.kill)
        session = await eventually(lambda: store.find(name), FAILOVER_SECONDS)
        assert session == StoredSession("a", b"")
        assert await eventually(lambda: store.claim(name, "b", "a"), FAILOVER_SECONDS)


@pytest.mark.slow
async def test_a_slot_that_has_moved_is_found(redis):
    servers = redis.start_cluster(3)
    first, second, _ = servers
    slot = int(first.ask("CLUSTER KEYSLOT moved").strip(":\r\n"))
    owner = next(server for server in servers if server.owns(slot))
    target = second if owner is first else first
    async with open_redis_store(at_all(servers)) as store, open_redis_store(at_all(servers)) as other:
        await eventually(store.version)
        await eventually(other.version)
        for server in (target, *servers):
            assert server.ask(f"CLUSTER SETSLOT {slot} NODE {target.node_id}") == "+OK\r\n"
        assert await store.save("moved", StoredSession("a", b""), LONG)
        assert target.ask("EXISTS mcpmux:session:{moved}") == ":1\r\n"
        assert await other.keep(["moved"], "a", LONG) == {"moved"}


@pytest.mark.slow
async def test_a_redis_cluster_is_used_as_soon_as_it_is_there(redis):
    nowhere = redis.make()
    async with open_redis_store(at_all([nowhere])) as store:
        assert "cannot be reached: connection refused" in await why_away(store)
    servers = redis.start_cluster(3)
    async with open_redis_store(at_all([nowhere, *servers])) as store:
        for number in range(20):
            await eventually(partial(use_everything, store, f"s{number}"))
