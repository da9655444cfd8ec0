"""Hostile servers, one at a time and all at once, beside a good one: they harm no other and leave no memory.

What is measured is the real process: its resident size, and what its own watchdog logs of the processor's
time in the rounds of its event loop.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import pytest

from mcpmux.app.loop_watch import HELD_SECONDS
from mcpmux.app.serving import KEPT_BYTES
from tests.peers.blocking_client import HttpClient
from tests.peers.revision import MODERN
from tests.process.running import COMMAND, WAIT_SECONDS, Running
from tests.real.mux import Json

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SERVER = [sys.executable, "-I", "-S", str(Path(__file__).parent / "hostile_server.py")]
LISTS = ("endless-list", "cursor-loop")
WEB = (
    "gzip-bomb",
    "noise",
    "event",
    "fields",
    "interim",
    "redirects",
    "wrong-ids",
    "notifications",
    "trickle",
    "brackets",
    "broken-utf8",
    *LISTS,
)
LINES = ("wrong-ids", "notifications", "brackets", "broken-utf8", "event")
MIB = 2**20
AT_ONCE_BYTES = 128 * MIB  # that one server may take while it is heard: twice the limit of a message
STAYING_BYTES = 16 * MIB  # what one server teaches, besides what is kept for the next large message
TOGETHER = 3  # servers at a time that are in the middle of a large message, when all are asked at once
WARM_CALLS = 20
DEADLINES = {"request_timeout": 5, "list_timeout": 5, "connect_timeout": 60, "timeouts": {"tools/call": 5}}
WATCHDOG = r"the event loop was held\b.* longest_ms=(\d+)"
UNAVAILABLE, TIMEOUT = -31001, -31002


@contextmanager
def servers(*names: str) -> Iterator[dict[str, int]]:
    """Run servers in another process, and yield their ports by name."""
    process = subprocess.Popen([*SERVER, *names], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout, process.stdin:
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.kill()
            process.wait(WAIT_SECONDS)


class Mux(Running):
    """A running mcpmux whose log is a file, so that the test need not read it meanwhile."""

    def __init__(self, directory: Path, upstreams: dict[str, Json]) -> None:
        config = directory / "mcpmux.json"
        config.write_text(json.dumps({"upstreams": upstreams}))
        self.log = directory / "log"
        command = ["sh", "-c", 'exec "$@" 2>"$0"', str(self.log), *COMMAND]
        options = ("--http", "127.0.0.1:0", "--log-level", "warning")
        super().__init__("serve", str(config), *options, command=command)
        self.url = self.line().strip()

    def ask(self, upstream: str) -> Json:
        """Have a server do what it is there for."""
        client = HttpClient(self.url, MODERN)
        if upstream in LISTS:
            return client.ask("tools/list")[-1]
        return client.ask("tools/call", {"name": f"{upstream}__harm", "arguments": {}})[-1]

    def forget_peak(self) -> None:
        """Have `peak_bytes` begin anew."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    @property
    def peak_bytes(self) -> int:
        """The largest resident size so far."""
        return self._status("VmHWM:")

    @property
    def resident_bytes(self) -> int:
        """The resident size."""
        return self._status("VmRSS:")

    def _status(self, what: str) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(what)) * 1024


def assert_good(mux: Mux) -> None:
    answer = mux.ask("good")
    assert answer["result"]["content"] == [{"type": "text", "text": "good"}], answer


def assert_told(upstream: str, answer: Json) -> None:
    """Check that the caller gets an error for what a hostile server did, or a bounded list."""
    if upstream in LISTS:
        assert "result" in answer, answer
    else:
        assert answer["error"]["code"] in (UNAVAILABLE, TIMEOUT), answer


def run(directory: Path, web: tuple[str, ...], lines: tuple[str, ...], together: int = 1) -> None:
    """Ask all of these at once, and the good one all the while.

    `together`: how many may take memory, and the event loop in one round, at the same time.
    """
    with servers(*web) as hostile, servers("good") as good:
        ports = {**hostile, **good}
        upstreams: dict[str, Json] = {
            name: {"url": f"http://127.0.0.1:{port}/mcp", **DEADLINES} for name, port in ports.items()
        }
        for name in lines:
            command = {"command": SERVER[0], "args": [*SERVER[1:], "--stdio", name]}
            upstreams[f"{name}-lines"] = {**command, **DEADLINES}
        bad = [name for name in upstreams if name != "good"]
        with Mux(directory, upstreams) as mux, ThreadPoolExecutor(len(bad)) as pool:
            for _ in range(WARM_CALLS):
                assert_good(mux)
            start = mux.resident_bytes
            mux.forget_peak()
            names: dict[Future[Json], str] = {pool.submit(mux.ask, name): name for name in bad}
            waiting = set(names)
            while waiting:
                assert_good(mux)
                waiting = wait(waiting, 0).not_done
            peak = mux.peak_bytes
            for future, name in names.items():
                assert_told(name, future.result())
            for _ in range(WARM_CALLS):
                assert_good(mux)
            after = mux.resident_bytes
            held = [int(count) for count in re.findall(WATCHDOG, mux.log.read_text())]
        taken, stayed = (peak - start) // MIB, (after - start) // MIB
        print(f"{', '.join(bad)}: from {start // MIB} MiB, took {taken} MiB more, of which {stayed} stayed")
        assert all(milliseconds < together * HELD_SECONDS * 1000 for milliseconds in held), held
        assert peak - start < together * AT_ONCE_BYTES
        assert after - start < KEPT_BYTES + together * STAYING_BYTES


@pytest.mark.parametrize("name", WEB)
def test_a_hostile_web_server_harms_nobody_else(tmp_path: Path, name: str) -> None:
    run(tmp_path, (name,), ())


@pytest.mark.parametrize("name", LINES)
def test_a_hostile_process_harms_nobody_else(tmp_path: Path, name: str) -> None:
    run(tmp_path, ("trickle",), (name,))


def test_all_of_them_at_once_harm_nobody_else(tmp_path: Path) -> None:
    run(tmp_path, WEB, LINES, TOGETHER)
