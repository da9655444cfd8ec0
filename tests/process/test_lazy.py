"""Commands are imported when they are asked for, in real processes: what a start must not pay for."""

from __future__ import annotations

import json
import subprocess
import sys
from http.client import HTTPConnection
from urllib.parse import urlsplit

import click
import pytest

from mcpmux.cli.main import PLACES, TRAFFIC_PLACES, LazyCommands, cli, traffic
from tests.process.running import WAIT_SECONDS

SHOW_IMPORTED = """
import sys
from mcpmux.cli.main import cli
try:
    cli(sys.argv[1:], prog_name="mcpmux")
finally:
    sys.stderr.write("\\n".join(["", *sys.modules]))
"""

BENCH = ("mcpmux.bench", "mcpmux.cli.bench")
TRAFFIC_TOOLS = (
    "mcpmux.cli.traffic_source",
    "mcpmux.traffic.replay",
    "mcpmux.traffic.reading.dialogue",
    "mcpmux.traffic.reading.export",
    "mcpmux.traffic.reading.stats",
)
OTHERS = ("mcpmux.demo", "mcpmux.cli.console", "opentelemetry", "rich.table", "rich.live", "rich.progress")
NEVER_SERVED = (  # without TLS, WebSocket, OAuth, an inspector, a capture, several workers and the like
    "rich",
    "difflib",
    "asyncio",
    "regex",
    "email",
    "wsproto",
    "oauthlib",
    "joserfc",
    "httpx",
    "httpcore",
    "anyio",
    "opentelemetry",
    "prometheus_client",
    "yaml",
    "urwid",
    "mcpmux.hosts.entry",
    "mcpmux.hosts.host",
    "mcpmux.transports.websocket",
    "mcpmux.auth.upstream_auth",
    "mcpmux.traffic.admin.listener",
    "mcpmux.traffic.admin.ring",
    "mcpmux.traffic.audit",
    "mcpmux.traffic.capture",
    "mcpmux.app.workers.supervisor",
    "mcpmux.config.schema",
)
ROOMS = ("mcpmux.app", "mcpmux.config", "mcpmux.runtime", "mcpmux.transports", "mcpmux.traffic")

FREE_OF = {
    "version": (["--version"], (*BENCH, *TRAFFIC_TOOLS, *OTHERS, *ROOMS, "trio", "structlog", "rich")),
    "serve": (["serve", "nowhere.toml"], (*BENCH, *TRAFFIC_TOOLS, "mcpmux.demo", "mcpmux.cli.console")),
    "serve, libraries": (["serve", "nowhere.toml"], NEVER_SERVED),
    "a look at a server": (["ls", "nowhere.toml"], (*BENCH, *TRAFFIC_TOOLS)),
    "a table of upstreams": (["top", "--once", "--url", "http://127.0.0.1:9"], ("urwid",)),
    "a tail": (["traffic", "tail", "nowhere.jsonl"], (*BENCH, *TRAFFIC_TOOLS[1:4], "httpx")),
}


def imported(*args: str) -> set[str]:
    """The modules of a process that has run a command."""
    command = [sys.executable, "-c", SHOW_IMPORTED, *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    modules = set(done.stderr.splitlines())
    assert "mcpmux.cli.main" in modules, done.stderr
    return modules


@pytest.mark.parametrize(("args", "heavy"), FREE_OF.values(), ids=FREE_OF)
def test_a_command_imports_nothing_that_only_others_need(args: list[str], heavy: tuple[str, ...]) -> None:
    found = imported(*args)
    assert {
        name for name in found if name.startswith(tuple(f"{room}." for room in heavy)) or name in heavy
    } == set()


def test_serving_and_answering_imports_nothing_that_nobody_uses() -> None:
    options = ["serve", "--upstream", "x=http://127.0.0.1:9/mcp", "--http", "127.0.0.1:0"]
    command = [sys.executable, "-c", SHOW_IMPORTED, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = urlsplit(process.stdout.readline().strip())
            connection = HTTPConnection(url.hostname or "", url.port, timeout=WAIT_SECONDS)
            params = {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "x", "version": "1"},
            }
            message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
            connection.request("POST", url.path, json.dumps(message), {"Content-Type": "application/json"})
            assert "result" in json.loads(connection.getresponse().read())
            connection.close()
        finally:
            process.terminate()
        _, said = process.communicate(timeout=WAIT_SECONDS)
    found = set(said.splitlines())
    assert "mcpmux.transports.http.server" in found, said
    assert {name for name in found if name.startswith(tuple(f"{each}." for each in NEVER_SERVED))} == set()
    assert found.isdisjoint(NEVER_SERVED)


def test_who_wants_what_the_logging_library_was_imported_without_gets_it() -> None:
    script = """
from mcpmux.cli.main import import_structlog
import_structlog()
import sys
assert not {"asyncio", "rich", "structlog.twisted"} & set(sys.modules), "imported all the same"
import structlog
import_structlog()
async def say():
    make = structlog.make_filtering_bound_logger("info")
    await make(structlog.PrintLogger(), [lambda logger, name, event: event["event"]], {}).ainfo("said")
import asyncio
import rich.text
asyncio.run(say())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )
    assert (done.stdout, done.stderr) == ("said\n", "")


def test_what_is_imported_is_not_looked_through_by_the_collector_again() -> None:
    script = """
import gc
from mcpmux.cli.main import cli
before = gc.get_freeze_count()
cli.get_command(None, "serve")
print(gc.isenabled(), gc.get_freeze_count() > before + 10_000)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )
    assert (done.stdout, done.stderr) == ("True True\n", "")


def test_a_benchmark_imports_the_load_generator() -> None:
    assert "mcpmux.bench.plan" in imported("bench", "--help")


@pytest.mark.parametrize(("group", "places"), [(cli, PLACES), (traffic, TRAFFIC_PLACES)])
def test_every_place_has_its_command(group: click.Command, places: dict[str, str]) -> None:
    assert isinstance(group, LazyCommands)
    context = click.Context(group)
    assert group.list_commands(context) == list(places)
    for name in places:
        command = group.get_command(context, name)
        assert command is not None
        assert command.name == name
    assert group.get_command(context, "nothing") is None
