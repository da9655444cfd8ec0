"""Real Redis servers in their own processes, which can be killed, paused and started again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from benchmarks.process import free_port

SLOTS = 16384  # of a Redis Cluster
START_SECONDS = 10.0  # for one that is ready in a tenth of one on a machine that does nothing else
HOST = "127.0.0.1"


class RedisServer:
    """One process at a time, at the same port. The methods wait, so they are for threads.

    `options` go to its command line; what it writes goes into `log`.
    """

    def __init__(self, folder: Path, *options: str, program: str = "redis-server") -> None:
        self.port = free_port()
        self.folder = folder / str(self.port)
        self.folder.mkdir()
        self.log = self.folder / "log"
        self._program = program_path(program)
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"RedisServer({self.address}, {self._process})"

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        assert self._process is None
        common = ("--port", str(self.port), "--bind", HOST, "--dir", str(self.folder))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command(), *common, *self._options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            _wait(self._is_ready, f"{self._program} does not start")
        except TimeoutError:
            self.kill()
            pytest.fail(f"{self._program} does not start:\n{self.log.read_text()[-2000:]}")

    def _command(self) -> list[str]:
        return [self._program, "--save", ""]

    def _is_ready(self) -> bool:
        return self.ask("PING").startswith(("+PONG", "-NOAUTH"))

    def ask(self, line: str) -> str:
        """Send a command, and return the beginning of its answer, "" without one. Does not wait for long."""
        try:
            with socket.create_connection((HOST, self.port), timeout=5) as connection:
                connection.sendall(line.encode() + b"\r\n")
                return connection.recv(65536).decode()
        except OSError:
            return ""

    def stop(self) -> None:
        """Ask it to end, so that it writes its data."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
            os.kill(process.pid, number)
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """Stop its answers, while its connections stay and new ones are accepted by the system."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


class RedisSentinel(RedisServer):
    """A Sentinel that watches one primary, as the service "main", and decides alone.

    `settings`: more lines of its file.
    """

    def __init__(self, folder: Path, primary: RedisServer, *settings: str) -> None:
        super().__init__(folder, program="redis-sentinel")
        self._settings = self.folder / "sentinel.conf"
        self._settings.write_text(
            f"sentinel monitor main {HOST} {primary.port} 1\n"
            "sentinel down-after-milliseconds main 300\n"
            "sentinel failover-timeout main 2000\n" + "".join(f"{line}\n" for line in settings)
        )

    def _command(self) -> list[str]:
        return [self._program, str(self._settings)]


class RedisNode(RedisServer):
    """One node of a Redis Cluster. `slots`: those that it had first."""

    def __init__(self, folder: Path) -> None:
        self.bus_port = free_port()
        self.slots = range(0)
        super().__init__(
            folder,
            *("--cluster-enabled", "yes", "--cluster-port", str(self.bus_port)),
            *("--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no"),
            *("--repl-diskless-sync-delay", "0", "--cluster-allow-replica-migration", "no"),
        )

    @property
    def node_id(self) -> str:
        return self.ask("CLUSTER MYID").split("\r\n")[1]

    def owns(self, slot: int) -> bool:
        return slot in self.slots

    def knows(self, nodes: Sequence[RedisNode]) -> bool:
        answer = self.ask("CLUSTER NODES")
        return "handshake" not in answer and all(node.node_id in answer for node in nodes)

    def expect_ok(self, line: str) -> None:
        answer = self.ask(line)
        assert answer == "+OK\r\n", f"{line}: {answer}"


class RedisServers:
    """The Redis servers of one test, which are killed at its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._all: list[RedisServer] = []

    def make(self, *options: str) -> RedisServer:
        """Make a server that is not started yet. It writes to disk only with options for that."""
        return self._note(RedisServer(self._folder, *options))

    def start(self, *options: str) -> RedisServer:
        server = self.make(*options)
        server.start()
        return server

    def start_sentinel(self, primary: RedisServer, *settings: str) -> RedisSentinel:
        sentinel = RedisSentinel(self._folder, primary, *settings)
        self._note(sentinel)
        sentinel.start()
        return sentinel

    def start_cluster(self, primaries: int, replicas: int = 0) -> list[RedisNode]:
        """Start a Redis Cluster. The replicas come last, one of each primary from the first on."""
        nodes = [RedisNode(self._folder) for _ in range(primaries + replicas)]
        for node in nodes:
            self._note(node)
            node.start()
        bounds = [number * SLOTS // primaries for number in range(primaries + 1)]
        for number, node in enumerate(nodes):
            node.expect_ok(f"CLUSTER SET-CONFIG-EPOCH {number + 1}")
            if number < primaries:
                node.slots = range(bounds[number], bounds[number + 1])
                node.expect_ok(f"CLUSTER ADDSLOTSRANGE {node.slots[0]} {node.slots[-1]}")
            nodes[0].expect_ok(f"CLUSTER MEET {HOST} {node.port} {node.bus_port}")
        _wait(lambda: all(node.knows(nodes) for node in nodes), "the nodes do not meet")
        for primary, replica in zip(nodes, nodes[primaries:], strict=False):
            replica.expect_ok(f"CLUSTER REPLICATE {primary.node_id}")
            _wait(lambda: "link_status:up" in replica.ask("INFO replication"), "no replication")  # noqa: B023
        _wait(lambda: all("cluster_state:ok" in node.ask("CLUSTER INFO") for node in nodes), "no cluster")
        return nodes

    def _note(self, server: RedisServer) -> RedisServer:
        self._all.append(server)
        return server

    def kill_all(self) -> None:
        for server in self._all:
            server.kill()


@contextmanager
def redis_servers(folder: Path) -> Iterator[RedisServers]:
    servers = RedisServers(folder)
    try:
        yield servers
    finally:
        servers.kill_all()


def _wait(condition: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(problem)
        time.sleep(0.01)


def program_path(name: str) -> str:
    """Return the path of a program of Redis. Without it the test is skipped, or fails in CI."""
    path = shutil.which(name)
    if path is None:
        reason = f"{name} is not installed"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path
