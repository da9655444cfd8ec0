"""Replicas as real processes, with a real Redis: how they are shown and what they leave behind."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from benchmarks.process import free_port
from tests.cli.invoking import Invoke
from tests.cluster.redis_server import RedisServer, redis_servers
from tests.process.running import Running, demo_table, wait_until

TOKEN = "0123456789abcdef"
CONFIG = """
[listeners]
http = ["127.0.0.1:0"]
[merging]
cursor_key = "key of this cluster"
[admin]
port = {port}
token = "{token}"
{more}
"""
CLUSTER = """
[cluster]
url = "redis://{address}"
replica = "{name}"
"""


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_servers(tmp_path) as servers:
        yield servers.start()


def write(path: Path, more: str) -> Path:
    path.write_text(demo_table("clock") + CONFIG.format(port=free_port(), token=TOKEN, more=more))
    return path


def start(stack: ExitStack, config: Path) -> Running:
    """Serve, with everything ready."""
    running = stack.enter_context(Running("serve", str(config), "--no-watch"))
    running.line(containing="/mcp")
    running.line()
    running.line("stderr", containing="upstream ready")
    return running


def replicas_at(invoke: Invoke, config: Path) -> list[dict[str, Any]]:
    done = invoke("ctl", "status", "--cluster", "--json", "-c", str(config))
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def ask(config: Path, path: str, body: bytes | None = None) -> bytes:
    """Return an answer of the admin listener of a replica."""
    port = config.read_text().partition("port = ")[2].partition("\n")[0]
    fields = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = Request(f"http://127.0.0.1:{port}{path}", body, fields)
    with urlopen(request, timeout=60) as answer:
        content: bytes = answer.read()
    return content


def test_replicas_are_shown_by_each_of_them(invoke: Invoke, tmp_path: Path, redis: RedisServer) -> None:
    a, b = (
        write(tmp_path / f"{name}.toml", CLUSTER.format(address=redis.address, name=name)) for name in "ab"
    )
    with ExitStack() as stack:
        start(stack, a)
        second = start(stack, b)
        wait_until(lambda: len(replicas_at(invoke, a)) == 2)
        assert [replica["name"] for replica in replicas_at(invoke, b)] == ["b", "a"]
        assert all(
            replica["state"] == "inside" and replica["lag_ms"] > 0 for replica in replicas_at(invoke, b)
        )
        heading, first, other = invoke("ctl", "status", "--cluster", "-c", str(a)).stdout.splitlines()
        assert heading.split() == [
            *("NAME", "STATE", "ID", "VERSION", "SINCE", "OTHERS", "OWNED", "SESSIONS", "TAKEN"),
            *("OVER", "HANDED", "OVER", "HANDED", "IN", "COMMANDS", "LAG", "WAITING", "LEASE", "DETAILS"),
        ]
        assert (first.split()[:2], other.split()[:2]) == (["a", "inside"], ["b", "inside"])
        ask(a, "/api/held", b'{"filter": "method=tools/call"}')
        assert json.loads(ask(b, "/api/held"))["order"]["filter"] == "method=tools/call"
        metrics = ask(a, "/metrics")
        assert b"\nmcpmux_cluster_replicas 2.0\n" in metrics
        assert b"\nmcpmux_cluster_inside 1.0\n" in metrics
        assert second.stop() == 0, second.stderr
        wait_until(lambda: [replica["state"] for replica in replicas_at(invoke, a)] == ["inside", "gone"])
        redis.pause()
        wait_until(lambda: replicas_at(invoke, a)[0]["state"] != "inside")
        own = replicas_at(invoke, a)[0]
        assert (own["state"], own["store_away"]) == ("outside", True)
        assert "does not answer within 1 s" in own["trouble"]


def test_mcpmux_that_is_alone_says_so(invoke: Invoke, tmp_path: Path) -> None:
    config = write(tmp_path / "mcpmux.toml", "")
    with ExitStack() as stack:
        start(stack, config)
        done = invoke("ctl", "status", "--cluster", "-c", str(config))
    assert done.exit_code == 1
    assert "is alone: there is no [cluster] in its configuration" in done.stderr


def test_replicas_on_one_disk_continue_a_chain_each(
    invoke: Invoke, tmp_path: Path, redis: RedisServer
) -> None:
    log = tmp_path / "new" / "log"
    audit = f"[audit]\ndirectory = {json.dumps(str(log))}\n"
    for run in (1, 2):
        with ExitStack() as stack:
            more = (CLUSTER.format(address=redis.address, name=name) + audit for name in "ab")
            both = [start(stack, write(tmp_path / "mcpmux.toml", tables)) for tables in more]
            for replica in both:
                assert replica.stop() == 0, replica.stderr
        verified = invoke("audit", "verify", str(log))
        assert verified.exit_code == 0, verified.stderr
        assert [line.partition(":")[0] for line in verified.stdout.splitlines()] == ["replica-a", "replica-b"]
        opened = invoke("audit", "show", str(log), "kind=open").stdout.splitlines()
        assert len(opened) == 2 * run
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (log, *log.iterdir())} == {0o700}
