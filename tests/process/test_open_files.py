"""As many open files as clients may need, if the system allows: real processes with limits set for them."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.process.running import WAIT_SECONDS, Running

if not sys.platform.startswith("linux"):
    pytest.skip("reads /proc", allow_module_level=True)

START = """
import resource, sys
limits = tuple(int(each) for each in sys.argv.pop(1).split(","))
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
from mcpmux.cli.main import cli
cli(sys.argv[1:], prog_name="mcpmux")
"""
UPSTREAM = ("--upstream", "x=http://127.0.0.1:9/mcp")  # a port without a server
WATCHED_SECONDS = 1.5  # while no connection can be accepted
SPARE_CPU = 0.75  # of that time; a loop that spins takes all of it


class Served(Running):
    """A running `mcpmux serve` with these limits of open files."""

    def __init__(self, soft: int, hard: int) -> None:
        options = ("serve", *UPSTREAM, "--http", "127.0.0.1:0")
        super().__init__(*options, command=[sys.executable, "-c", START, f"{soft},{hard}"])
        self.port = urlsplit(self.line().strip()).port

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), WAIT_SECONDS)

    def ask(self, connection: socket.socket) -> bytes:
        """Request a path that is not there, and return the first bytes of the answer."""
        connection.sendall(b"GET /nothing HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        return connection.recv(1000)

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_serve_allows_itself_what_its_clients_may_need() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip("too few open files are allowed here")
    with Served(64, 2000) as served, ExitStack() as open_ones:
        for _ in range(150):
            assert b" 404 " in served.ask(open_ones.enter_context(served.connect()))
        limits = Path(f"/proc/{served.pid}/limits").read_text()
        soft = int(next(line for line in limits.splitlines() if line.startswith("Max open files")).split()[3])
        assert 1000 <= soft <= 2000
        served.stop(signal.SIGTERM)
        assert "open files" not in served.stderr


def test_with_too_few_files_clients_wait_and_the_reason_is_told() -> None:
    with Served(48, 48) as served:
        connections = [served.connect() for _ in range(80)]
        assert b" 404 " in served.ask(connections[0])
        seconds = served.cpu_seconds()
        time.sleep(WATCHED_SECONDS)  # the loop must stay idle for this long
        assert served.cpu_seconds() - seconds < SPARE_CPU * WATCHED_SECONDS
        last = connections[-1]
        for connection in connections[:-1]:
            connection.close()
        assert b" 404 " in served.ask(last)
        last.close()
        served.stop(signal.SIGTERM)
        log = served.stderr
    assert log.count("too few open files are allowed for all clients") == 1
    assert log.count("clients wait") == 1
    assert "Traceback" not in log
    assert "retrying" not in log
