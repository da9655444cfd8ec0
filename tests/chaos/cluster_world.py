"""Three replicas of mcpmux as processes, the store that they share, and the faults of both.

Each replica reaches Redis through its own relay in this process, and haproxy in front gives each request to
the next replica. Everything is on loopback, and no process outlives `open_cluster`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import trio

from benchmarks.process import free_port
from tests.chaos.fault_proxy import FaultProxy
from tests.chaos.waiting import count_descriptors, count_kilobytes, read_metrics
from tests.cluster.redis_server import RedisServer, RedisServers, redis_servers
from tests.peers.revision import Json
from tests.process.running import COMMAND
from tests.real.cluster import CURSOR_KEY, Balancer
from tests.real.mux import START_SECONDS

NAMES = ("a", "b", "c")
PRINCIPALS = ("ann", "bob", "cid")
ERAS = ("modern", "legacy")  # of the servers behind, which are called so
ADMIN_TOKEN = "the-token-of-the-chaos"
LEASE_SECONDS = 2.0  # a busy machine may keep a process waiting for a second
SESSION_IDLE = 20.0  # a session that no replica can keep for twice that long has ended at all replicas
KEPT_SECONDS = 2 * SESSION_IDLE  # in the store, unless it is renewed
SEEN_SECONDS = 0.5  # until haproxy has seen that a replica is there again
DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--repl-diskless-sync-delay", "0")
LAG_SECONDS = 1.0  # that the one which follows may be behind
SERVER = Path(__file__).with_name("server.py")
COUNTED = re.compile(
    r"^mcpmux_(client_sessions|listening_clients|exchanges_in_flight)(?:\{.*\})? (.+)$", re.M
)


def token_of(principal: str) -> str:
    return f"token-of-{principal}"


class Truth:
    """A server behind mcpmux, asked past it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SERVER), name, name, "--http"], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    async def change(self, uri: str) -> Json:
        return await trio.to_thread.run_sync(self._ask, "POST", "/change", uri)

    async def tell(self) -> Json:
        return await trio.to_thread.run_sync(self._ask, "GET", "/truth")

    def _ask(self, verb: str, path: str, body: str = "") -> Json:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS)
        try:
            connection.request(verb, path, body)
            answer: Json = json.loads(connection.getresponse().read())
            return answer
        finally:
            connection.close()


class ReplicaProcess:
    """One `mcpmux serve`, which always has the same ports. Its log, of all its processes, is in a file."""

    def __init__(self, name: str, config: Path, store: FaultProxy, store_url: str) -> None:
        self.name, self.store = name, store
        self.port, self._admin = free_port(), free_port()
        self.log = config.parent / f"{name}.log"
        self._command = [*COMMAND, "serve", str(config), "--http", f"127.0.0.1:{self.port}"]
        self._env = {
            "REPLICA": name,
            "STORE_URL": store_url,
            "REPLICA_PORT": str(free_port()),
            "ADMIN_PORT": str(self._admin),
        }
        self._process: subprocess.Popen[str] | None = None
        self.descriptors = self.kilobytes = 0  # when it had just started

    def __repr__(self) -> str:
        return f"<ReplicaProcess {self.name}>"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, and wait until it listens. For threads."""
        assert self._process is None
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **self._env},
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert "/mcp" in line, self.log.read_text()[-2000:]
        self.descriptors, self.kilobytes = count_descriptors(self.pid), self.held()

    def stop(self, number: int) -> int:
        """Signal it and wait for its end: the exit code. For threads."""
        process, self._process = self._process, None
        assert process is not None and process.stdout is not None
        process.send_signal(number)
        try:
            return process.wait(START_SECONDS)
        finally:
            process.kill()
            process.stdout.close()

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def end(self) -> None:
        if self._process is not None:
            self.stop(signal.SIGKILL)

    def held(self) -> int:
        """Return the process's private memory in kilobytes."""
        return count_kilobytes(self.pid)

    def counts(self) -> dict[str, float]:
        """Read from its metrics what it holds for clients, without zeros. Blocks, so call it in a thread."""
        text = read_metrics(self._admin, ADMIN_TOKEN)
        counts = {line: float(count) for line, count in COUNTED.findall(text)}
        assert counts, text
        return {line: count for line, count in counts.items() if count}


class Fault:
    """One fault of a replica or of the store. `end`: when all was as before; None while it lasts."""

    def __init__(self, kind: str, whom: str) -> None:
        self.kind, self.whom = kind, whom
        self.begin = time.monotonic()
        self.end: float | None = None

    @property
    def is_of_store(self) -> bool:
        """Whether the store, or the way of somebody to it, is what is harmed."""
        return self.kind not in ("kill", "stop", "pause")

    def __repr__(self) -> str:
        lasted = f"{self.end - self.begin:.2f} s" if self.end is not None else "lasts"
        return f"{self.begin:.2f} {self.whom}: {self.kind} ({lasted})"


class Pair:
    """Two Redis servers, one of which follows the other, and a Sentinel. For threads."""

    def __init__(self, servers: RedisServers) -> None:
        first = servers.start(*DURABLE)
        self._both = first, servers.start(*DURABLE, "--replicaof", "127.0.0.1", str(first.port))
        # A busy machine is no reason to fail over.
        self._sentinel = servers.start_sentinel(first, "sentinel down-after-milliseconds main 1500")
        self._expect_following()

    @property
    def url(self) -> str:
        return f"redis+sentinel://{self._sentinel.address}/main"

    @property
    def primary(self) -> RedisServer:
        """The one that the Sentinel calls so."""
        named = self._sentinel.ask("SENTINEL GET-MASTER-ADDR-BY-NAME main")
        return next(redis for redis in self._both if str(redis.port) in named)

    def fail_over(self) -> RedisServer:
        """Kill the one in charge, which is returned when the other is in charge."""
        killed = self.primary
        killed.kill()
        _wait(lambda: self.primary is not killed and "role:master" in self.primary.ask("INFO replication"))
        return killed

    def bring_back(self, killed: RedisServer) -> None:
        """Start the one that was killed: it follows from now on."""
        killed.start()
        killed.ask(f"REPLICAOF 127.0.0.1 {self.primary.port}")
        self._expect_following()

    def _expect_following(self) -> None:
        """Wait until one has everything that the other has, and could be put in charge."""

        def is_following() -> bool:
            [other] = [redis for redis in self._both if redis is not self.primary]
            is_known = str(other.port) in self._sentinel.ask("SENTINEL REPLICAS main")
            return is_known and "master_link_status:up" in other.ask("INFO replication")

        _wait(is_following)


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Cluster:
    """`port`: haproxy's, for clients. `pair`: what the store is instead of one `redis`, if it is.

    `faults`: all so far. `losses`: of sessions that began to open in these times the store may not know.
    """

    def __init__(
        self,
        port: int,
        replicas: dict[str, ReplicaProcess],
        redis: RedisServer,
        truths: dict[str, Truth],
        pair: Pair | None = None,
    ) -> None:
        self.port, self.pair = port, pair
        self.replicas, self._redis, self.truths = replicas, redis, truths
        self.faults: list[Fault] = []
        self.losses: list[tuple[float, float]] = []

    @property
    def redis(self) -> RedisServer:
        return self.pair.primary if self.pair is not None else self._redis

    # Faults. Each lasts for a while and is over when it returns.

    async def kill(self, replica: ReplicaProcess, seconds: float) -> None:
        await self._restart(replica, signal.SIGKILL, seconds)

    async def stop(self, replica: ReplicaProcess, seconds: float) -> None:
        await self._restart(replica, signal.SIGTERM, seconds)

    async def _restart(self, replica: ReplicaProcess, number: int, seconds: float) -> None:
        code = await trio.to_thread.run_sync(replica.stop, number)
        assert code in (0, -number), f"{replica} ended with {code}: {replica.log.read_text()[-2000:]}"
        await trio.sleep(seconds)
        await trio.to_thread.run_sync(replica.start)
        await trio.sleep(SEEN_SECONDS)

    async def pause(self, replica: ReplicaProcess, seconds: float) -> None:
        replica.signal(signal.SIGSTOP)
        try:
            await trio.sleep(seconds)
        finally:
            replica.signal(signal.SIGCONT)

    async def cut_off(self, mode: str, replica: ReplicaProcess, seconds: float) -> None:
        """Harm the way of one replica to the store."""
        replica.store.become(mode)
        try:
            await trio.sleep(seconds)
        finally:
            replica.store.become("pass")

    async def kill_store(self, seconds: float) -> None:
        await trio.to_thread.run_sync(self.redis.kill)
        await trio.sleep(seconds)
        await trio.to_thread.run_sync(self.redis.start)

    async def wipe_store(self, seconds: float) -> None:
        await trio.to_thread.run_sync(self.redis.kill)
        for kept in self.redis.folder.glob("appendonlydir*"):
            shutil.rmtree(kept)
        await trio.sleep(seconds)
        self.losses.append((-math.inf, time.monotonic()))
        await trio.to_thread.run_sync(self.redis.start)

    async def fail_over(self, seconds: float) -> None:
        assert self.pair is not None
        killed = time.monotonic()
        self.losses.append((killed - LAG_SECONDS, killed))
        primary = await trio.to_thread.run_sync(self.pair.fail_over)
        await trio.sleep(seconds)
        await trio.to_thread.run_sync(self.pair.bring_back, primary)

    async def pause_store(self, seconds: float) -> None:
        self.redis.pause()
        try:
            await trio.sleep(seconds)
        finally:
            self.redis.resume()

    # What is there

    def keys(self) -> dict[str, int]:
        """Return all keys in the store, with their milliseconds to live. Blocks: call it in a thread."""
        answer = self.redis.ask("KEYS *")
        names = [line for line in answer.split("\r\n")[1:] if line and not line.startswith("$")]
        lives = {name: int(self.redis.ask(f"PTTL {name}").strip().removeprefix(":")) for name in names}
        return {name: left for name, left in lives.items() if left != -2}  # those have just gone


class Chaos:
    """Starts a fault every second or so, at a part that has none. `kinds`: how many of each kind."""

    REPLICAS = ("kill", "stop", "pause", "refuse", "hang", "cut", "slow")
    STORE = ("kill store", "wipe store", "pause store", "fail over")

    def __init__(self, cluster: Cluster, chance: random.Random, kinds: dict[str, int], wipes: int) -> None:
        self._cluster, self._chance, self._kinds = cluster, chance, dict(kinds)
        self._wipes = wipes
        self._busy: set[str] = set()

    async def run(self, seconds: float) -> None:
        """Harm for so long; returns when the last fault is over."""
        end = trio.current_time() + seconds
        async with trio.open_nursery() as nursery:
            while trio.current_time() < end:
                kind = self._chance.choices(list(self._kinds), list(self._kinds.values()))[0]
                whom = "store" if kind in self.STORE else self._chance.choice(NAMES)
                lasts = self._chance.uniform(0.5, 4.0)
                pause = self._chance.uniform(0.5, 1.5)
                if whom in self._busy or (kind == "wipe store" and not self._wipes):
                    await trio.sleep(pause / 4)
                    continue
                self._wipes -= kind == "wipe store"
                self._busy.add(whom)
                nursery.start_soon(self._do, kind, whom, lasts)
                await trio.sleep(pause)

    async def _do(self, kind: str, whom: str, seconds: float) -> None:
        cluster = self._cluster
        replica = cluster.replicas.get(whom)
        fault = Fault(kind, whom)
        cluster.faults.append(fault)
        if replica is None:
            store = {
                "kill store": cluster.kill_store,
                "wipe store": cluster.wipe_store,
                "pause store": cluster.pause_store,
                "fail over": cluster.fail_over,
            }
            await store[kind](seconds if kind == "pause store" else seconds / 2)
        else:
            ways = {"kill": cluster.kill, "stop": cluster.stop, "pause": cluster.pause}
            way = ways.get(kind, partial(cluster.cut_off, kind))
            await way(replica, seconds / 2 if kind in ("kill", "stop") else seconds)
        fault.end = time.monotonic()
        self._busy.discard(whom)


def write_config(folder: Path, truths: dict[str, Truth]) -> Path:
    """Write the configuration of all replicas. Each principal has a view that passes its name to `work`."""
    views = {}
    for principal in PRINCIPALS:
        overrides = [
            {"upstream": era, "kind": "tools", "name": "work", "parameters": {"as": {"value": principal}}}
            for era in ERAS
        ]
        views[principal] = {"principals": [principal], "overrides": overrides}
    tokens = {
        principal: {"sha256": hashlib.sha256(token_of(principal).encode()).hexdigest()}
        for principal in PRINCIPALS
    }
    config: Json = {
        "upstreams": {name: {"url": truth.url} for name, truth in truths.items()},
        "merging": {"cursor_key": CURSOR_KEY},
        "limits": {"session_idle": SESSION_IDLE},
        "auth": {"tokens": tokens},
        "views": views,
        "admin": {"port": "${ADMIN_PORT}", "token": ADMIN_TOKEN, "keep_exchanges": 100},
        "cluster": {
            "url": "${STORE_URL}",
            "replica": "${REPLICA}",
            "lease": LEASE_SECONDS,
            "listener": {"port": "${REPLICA_PORT}"},
        },
    }
    path = folder / "mcpmux.json"
    path.write_text(json.dumps(config))
    return path


@asynccontextmanager
async def open_cluster(folder: Path, chance: random.Random, *, paired: bool) -> AsyncIterator[Cluster]:
    """Run everything, connected. `paired`: the store is a pair, with no relays to it."""
    truths = {era: Truth(era) for era in ERAS}
    replicas: dict[str, ReplicaProcess] = {}
    try:
        with redis_servers(folder) as servers:
            pair = await trio.to_thread.run_sync(Pair, servers) if paired else None
            redis = pair.primary if pair else await trio.to_thread.run_sync(servers.start, *DURABLE)
            async with trio.open_nursery() as nursery:
                config = write_config(folder, truths)
                for name in NAMES:
                    relay = FaultProxy(chance)
                    relay.port = redis.port
                    url = f"redis://127.0.0.1:{await nursery.start(relay.serve)}"
                    replicas[name] = ReplicaProcess(name, config, relay, pair.url if pair else url)
                async with trio.open_nursery() as starting:
                    for replica in replicas.values():
                        starting.start_soon(trio.to_thread.run_sync, replica.start)
                with Balancer({name: replica.port for name, replica in replicas.items()}, folder) as balancer:
                    port = int(balancer.url.rpartition(":")[2].partition("/")[0])
                    yield Cluster(port, replicas, redis, truths, pair)
                nursery.cancel_scope.cancel()
    finally:
        for replica in replicas.values():
            replica.end()
        for truth in truths.values():
            truth.end()


async def is_empty(cluster: Cluster, seconds: float) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    """Wait until no replica holds anything of clients and the store nothing but leases: what is left."""
    held: dict[str, dict[str, float]] = {}
    kept: dict[str, int] = {}
    with trio.move_on_after(seconds):
        while True:
            held = {
                name: counts
                for name, replica in cluster.replicas.items()
                if (counts := await trio.to_thread.run_sync(replica.counts))
            }
            keys = await trio.to_thread.run_sync(cluster.keys)
            kept = {key: left for key, left in keys.items() if not key.startswith("{mcpmux}:")}
            if not held and not kept:
                break
            await trio.sleep(0.2)
    return held, kept
