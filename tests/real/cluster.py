"""Replicas of mcpmux in a deployment: a Redis that they share, a haproxy in front without stickiness.

haproxy gives each request to the next replica, regardless of its session and connection. Its log names the
replica that got each request.
"""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from benchmarks.process import free_port
from tests.process.running import wait_until
from tests.real.mux import START_SECONDS, HttpMux, Json, write_config
from tests.real.parts import program
from tests.real.web_server import run_web_server

CURSOR_KEY = "what all replicas of the tests know"
NAMES = ("a", "b", "c")
POLL_SECONDS = 0.05
LEASE = "1s"  # short, so that a replica that was killed is soon known to have gone

BALANCER = """\
global
  log stdout format raw local0
  stats socket ipv4@127.0.0.1:{admin} level admin
defaults
  mode http
  log global
  option logasap
  option dontlognull
  option abortonclose
  option http-server-close
  option redispatch 1
  retries 3
  timeout connect 5s
  timeout client 1h
  timeout server 1h
  timeout tunnel 1h
frontend clients
  bind 127.0.0.1:{port}
  capture request header Mcp-Session-Id len 64
  capture response header Mcp-Session-Id len 64
  capture request header Mcp-Method len 64
  capture request header Mcp-Name len 128
  log-format "{said}"
  default_backend replicas
backend replicas
  balance roundrobin
{servers}
"""

SAID = (
    "request %s %ST %HM"
    " %[capture.req.hdr(0)] %[capture.res.hdr(0)] %[capture.req.hdr(1)] %[capture.req.hdr(2)]"
)
"""What haproxy says of each request; see `Served`."""


class Served(NamedTuple):
    """One request, by haproxy's log. `session`: that it is in, or opened.

    `subject`: what a modern client's headers say that it is about, or else its method.
    """

    replica: str
    status: int
    verb: str
    session: str | None
    opened: bool
    subject: str | None


@contextmanager
def run_redis(directory: Path) -> Iterator[str]:
    """Run a Redis server that keeps nothing on disk, and yield its URL."""
    port = free_port()
    options = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory), "--save", ""]
    with run_web_server([program("redis-server", "redis"), *options], "Ready to accept connections", {}):
        yield f"redis://127.0.0.1:{port}"


class Balancer:
    """A running haproxy in front of replicas, by name and port. `url` is for clients."""

    def __init__(self, replicas: dict[str, int], directory: Path) -> None:
        self._port, self._admin = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self._port}/mcp"
        servers = [f"  server {name} 127.0.0.1:{port} check inter 100" for name, port in replicas.items()]
        config = directory / "haproxy.cfg"
        ports = {"port": self._port, "admin": self._admin}
        config.write_text(BALANCER.format(**ports, servers="\n".join(servers), said=SAID))
        self._command = [program("haproxy"), "-db", "-f", str(config)]
        self._lines: list[str] = []
        self._more = threading.Condition()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._expect_listening()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _expect_listening(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self._port)):
                return
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"haproxy does not listen: {self._lines}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with self._more:
                    self._lines.append(line)
                    self._more.notify_all()

    def drain(self, replica: str) -> None:
        """Send a replica no new requests, and wait until it has answered the old ones."""
        self._tell(f"set server replicas/{replica} state drain")
        wait_until(lambda: not self._open_at(replica), f"{replica} does not answer everything")

    def resume(self, replica: str) -> None:
        """Send a replica requests again."""
        self._tell(f"set server replicas/{replica} state ready")

    def _open_at(self, replica: str) -> int:
        """Count the requests that a replica is answering."""
        names, *rows = (line.split(",") for line in self._tell("show stat").splitlines() if line)
        [row] = [row for row in rows if row[:2] == ["replicas", replica]]
        return int(row[names.index("scur")])

    def _tell(self, command: str) -> str:
        with socket.create_connection(("127.0.0.1", self._admin), START_SECONDS) as admin:
            admin.sendall(command.encode() + b"\n")
            with admin.makefile() as answer:
                return answer.read()

    def served(self, since: int = 0) -> list[Served]:
        """Return the requests that were answered so far, without the first `since` ones."""
        with self._more:
            return [_read(line) for line in self._lines if line.startswith("request ")][since:]

    def expect(self, count: int, *, session: str | None = None, about: str | None = None) -> list[Served]:
        """Wait for `count` requests of an open session, or about a subject, and return them.

        haproxy logs a request a little after its client has the answer.
        """
        deadline = time.monotonic() + START_SECONDS
        with self._more:
            while True:
                requests = [
                    request
                    for request in self.served()
                    if (request.session, request.subject, request.opened) == (session, about, False)
                ]
                if len(requests) >= count:
                    return requests
                assert self._more.wait(deadline - time.monotonic()), f"only {requests}"

    def owner_of(self, session: str) -> str:
        """Return the replica that opened a session."""
        [owner] = [
            request.replica for request in self.served() if request.opened and request.session == session
        ]
        return owner

    def sessions(self) -> dict[str, set[str]]:
        """Return the replicas that got requests of each session, after the one that opened it."""
        replicas: dict[str, set[str]] = {}
        for request in self.served():
            if request.session is not None:
                replicas.setdefault(request.session, set())
                if not request.opened:
                    replicas[request.session].add(request.replica)
        return replicas


def _read(line: str) -> Served:
    _, replica, status, verb, *captured = line.split()
    session, opened, method, name = (None if text == "-" else text for text in captured)
    return Served(replica, int(status), verb, opened or session, opened is not None, name or method)


class Cluster:
    """Replicas with one configuration, by name, and their balancer."""

    def __init__(self, config: Path, names: tuple[str, ...]) -> None:
        self._config = config
        self._names = names
        self._ports: dict[str, int] = {}
        self._running = ExitStack()
        self.replicas: dict[str, HttpMux] = {}

    def __enter__(self) -> Self:
        with ExitStack() as running:
            self._running = running
            self.start_missing()
            self.balancer = running.enter_context(Balancer(self._ports, self._config.parent))
            self.url = self.balancer.url
            self._running = running.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def start_missing(self) -> None:
        """Start the replicas that do not run."""
        for name in self._names:
            if name not in self.replicas:
                self.start(name)

    def start(self, name: str) -> None:
        """Start a replica that does not run, where it ran before if it did."""
        mux = HttpMux(self._config, port=self._ports.get(name, 0), env={"REPLICA": name})
        self.replicas[name] = self._running.enter_context(mux)
        self._ports[name] = int(urlsplit(mux.url).netloc.partition(":")[2])

    def stop(self, name: str, number: int) -> int:
        """Signal a replica and wait for its end: the exit code."""
        return self.replicas.pop(name).stop(number)


@contextmanager
def run_cluster(
    directory: Path, upstreams: dict[str, Json], *, replicas: int = 2, page_size: int = 1000, **settings: Any
) -> Iterator[Cluster]:
    """Run a cluster and its Redis, with these upstreams."""
    with run_redis(directory) as redis:
        merging: Json = {"page_size": page_size, "cursor_key": CURSOR_KEY}
        shared: Json = {"url": redis, "replica": "${REPLICA}", "lease": LEASE}
        config = write_config(directory, upstreams, merging=merging, cluster=shared, **settings)
        with Cluster(config, NAMES[:replicas]) as cluster:
            yield cluster
