"""Commands are imported when they are asked for, in real processes: what a start must not pay for."""

from __future__ import annotations

import signal
import sys

import click
import pytest

from mcpmux.cli.main import SECTIONS, TRAFFIC_SECTIONS, LazyCommands, cli, traffic
from tests.peers.blocking_client import HttpClient
from tests.process.running import Running

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
    "mcpmux.cli.traffic.source",
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
    "email",
    "trio_websocket",
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
    """Run a command, and return the modules of its process."""
    with Running(*args, command=[sys.executable, "-c", SHOW_IMPORTED]) as command:
        command.wait()
        return modules_in(command.stderr)


def modules_in(said: str) -> set[str]:
    modules = set(said.splitlines())
    assert "mcpmux.cli.main" in modules, said
    return modules


def printed_by(script: str) -> tuple[str, str]:
    """Run a script, and return its standard output and standard error."""
    with Running(command=[sys.executable, "-c", script]) as command:
        command.wait()
        return command.stdout, command.stderr


@pytest.mark.parametrize(("args", "heavy"), FREE_OF.values(), ids=FREE_OF)
def test_a_command_imports_nothing_that_only_others_need(args: list[str], heavy: tuple[str, ...]) -> None:
    modules = imported(*args)
    assert {
        name for name in modules if name.startswith(tuple(f"{room}." for room in heavy)) or name in heavy
    } == set()


def test_serving_and_answering_imports_nothing_that_nobody_uses() -> None:
    options = ["serve", "--upstream", "x=http://127.0.0.1:9/mcp", "--http", "127.0.0.1:0"]
    with Running(*options, command=[sys.executable, "-c", SHOW_IMPORTED]) as mux:
        client = HttpClient(mux.line().strip(), "2025-11-25")
        assert "result" in client.hello()[-1]
        mux.stop(signal.SIGTERM)
        modules = modules_in(mux.stderr)
    assert "mcpmux.transports.http.server" in modules
    assert {name for name in modules if name.startswith(tuple(f"{part}." for part in NEVER_SERVED))} == set()
    assert modules.isdisjoint(NEVER_SERVED)


def test_who_wants_what_the_logging_library_was_imported_without_gets_it() -> None:
    script = """
from mcpmux.cli.main import quick_import
quick_import("structlog")
import sys
assert not {"asyncio", "rich", "structlog.twisted"} & set(sys.modules), "imported all the same"
import structlog
quick_import("structlog")
async def say():
    make = structlog.make_filtering_bound_logger("info")
    await make(structlog.PrintLogger(), [lambda logger, name, event: event["event"]], {}).ainfo("said")
import asyncio
import rich.text
asyncio.run(say())
"""
    assert printed_by(script) == ("said\n", "")


def test_what_is_imported_is_not_looked_through_by_the_collector_again() -> None:
    script = """
import gc
from mcpmux.cli.main import cli
before = gc.get_freeze_count()
cli.get_command(None, "serve")
print(gc.isenabled(), gc.get_freeze_count() > before + 10_000)
"""
    assert printed_by(script) == ("True True\n", "")


def test_a_benchmark_imports_the_load_generator() -> None:
    assert "mcpmux.bench.plan" in imported("bench", "--help")


@pytest.mark.parametrize(("group", "sections"), [(cli, SECTIONS), (traffic, TRAFFIC_SECTIONS)])
def test_every_place_has_its_command(group: click.Command, sections: dict[str, dict[str, str]]) -> None:
    assert isinstance(group, LazyCommands)
    context = click.Context(group)
    names = [name for places in sections.values() for name in places]
    assert group.list_commands(context) == names
    for name in names:
        command = group.get_command(context, name)
        assert command is not None
        assert command.name == name
    assert group.get_command(context, "nothing") is None
