"""Commands are imported when they are asked for, in real processes: what a start must not pay for."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from mcpmux.cli.lazy import LazyCommands
from mcpmux.cli.main import PLACES, cli
from mcpmux.cli.traffic import PLACES as TRAFFIC
from mcpmux.cli.traffic import traffic
from tests.cli.running import WAIT_SECONDS

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
    "mcpmux.cli.traffic",
    "mcpmux.traffic.mock",
    "mcpmux.traffic.replay",
    "mcpmux.traffic.reading.dialogue",
    "mcpmux.traffic.reading.export",
    "mcpmux.traffic.reading.stats",
    "mcpmux.traffic.reading.timeline",
)
OTHERS = ("mcpmux.demo", "mcpmux.cli.console", "opentelemetry", "rich.table", "rich.live", "rich.progress")
ROOMS = ("mcpmux.app", "mcpmux.config", "mcpmux.runtime", "mcpmux.transports", "mcpmux.traffic")

FREE_OF = {
    "version": (["--version"], (*BENCH, *TRAFFIC_TOOLS, *OTHERS, *ROOMS, "trio", "structlog", "rich")),
    "serve": (["serve", "nowhere.toml"], (*BENCH, *TRAFFIC_TOOLS, "mcpmux.demo", "mcpmux.cli.console")),
    "serve, libraries": (["serve", "nowhere.toml"], ("opentelemetry", "rich.live", "rich.progress")),
    "a look at a server": (["ls", "nowhere.toml"], (*BENCH, *TRAFFIC_TOOLS)),
    "a tail": (["traffic", "tail", "nowhere.jsonl"], (*BENCH, *TRAFFIC_TOOLS[1:4])),
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


def test_a_benchmark_imports_the_load_generator() -> None:
    assert "mcpmux.bench.plan" in imported("bench", "--help")


@pytest.mark.parametrize(("group", "places"), [(cli, PLACES), (traffic, TRAFFIC)])
def test_every_place_has_its_command(group: click.Command, places: dict[str, str]) -> None:
    assert isinstance(group, LazyCommands)
    context = click.Context(group)
    assert group.list_commands(context) == list(places)
    for name in places:
        command = group.get_command(context, name)
        assert command is not None
        assert command.name == name
    assert group.get_command(context, "nothing") is None
