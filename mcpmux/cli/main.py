"""`mcpmux` and `mcpmux traffic`: groups whose commands are imported when they are run, and a quick start.

The help of a group imports all its commands.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

import mcpmux
from mcpmux.cli.group import Group

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SECTIONS = {
    "Serve": {
        "serve": "mcpmux.cli.serve:serve",
        "demo": "mcpmux.cli.serve:demo",
        "ps": "mcpmux.cli.shared:ps",
        "stop": "mcpmux.cli.shared:stop",
    },
    "Set up servers and host apps": {
        "import": "mcpmux.cli.moving:import_command",
        "add": "mcpmux.cli.servers:add",
        "remove": "mcpmux.cli.servers:remove_command",
        "check": "mcpmux.cli.check:check",
        "install": "mcpmux.cli.moving:install",
        "uninstall": "mcpmux.cli.moving:uninstall",
    },
    "Use servers": {
        "ls": "mcpmux.cli.client:ls",
        "read": "mcpmux.cli.client:read",
        "call": "mcpmux.cli.client:call",
        "prompt": "mcpmux.cli.asking:prompt",
        "complete": "mcpmux.cli.asking:complete",
        "subscribe": "mcpmux.cli.asking:subscribe",
        "ping": "mcpmux.cli.asking:ping",
    },
    "Watch and control": {
        "top": "mcpmux.cli.top:top",
        "ctl": "mcpmux.cli.ctl:ctl",
        "traffic": "mcpmux.cli.main:traffic",
        "audit": "mcpmux.cli.audit:audit",
        "bench": "mcpmux.cli.bench:bench",
    },
    "Configure": {
        "config": "mcpmux.cli.config:config",
        "view": "mcpmux.cli.view:view",
        "access": "mcpmux.cli.config:access",
        "auth": "mcpmux.cli.auth:auth",
        "completion": "mcpmux.cli.completion:completion",
        "help": "mcpmux.cli.main:help_command",
    },
}
TRAFFIC_SECTIONS = {
    "Commands": {
        "tail": "mcpmux.cli.traffic_messages:tail",
        "show": "mcpmux.cli.traffic_messages:show",
        "grep": "mcpmux.cli.traffic_messages:grep",
        "stats": "mcpmux.cli.traffic_report:stats",
        "export": "mcpmux.cli.traffic_report:export",
        "replay": "mcpmux.cli.traffic_replay:replay",
        "mock": "mcpmux.cli.traffic_replay:mock",
    }
}


class LazyCommands(Group):
    """A group that runs commands by `process.run_inside`.

    `sections`: heading in its help -> name of a command -> its `module:attribute`, all in order.
    """

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, str]], **more: Any) -> None:
        super().__init__(*args, **more)
        self._sections = sections
        self._places = {name: place for places in sections.values() for name, place in places.items()}
        self.commands = {name: click.Command(name) for name in self._places}  # whose names click suggests

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the sections, not of the alphabet."""
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; None when there is no such command."""
        place = self._places.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        with uncollected():
            command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def sections(self, context: click.Context) -> Mapping[str, Iterable[str]]:
        """See Group."""
        return self._sections

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Return names of commands without their help, which would import them all; then options."""
        from click.shell_completion import CompletionItem  # not at the top: only a shell needs it

        names = [CompletionItem(name) for name in self._places if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that `ctx` names. Raises only what click turns into an exit code."""
        # Not at the top: `--version` needs neither logs nor trio.
        with uncollected():
            import_structlog()
            from mcpmux.cli.process import run_inside

        return run_inside(lambda: super(LazyCommands, self).invoke(ctx))


# A quick start: this saves a seventh of its time, and some memory.
#
# Imported modules stay, so the garbage collector need not look through them, neither now nor later.
#
# structlog imports asyncio for log methods that are awaited, which mcpmux does not use, and rich for coloured
# tracebacks, which mcpmux does not print. A later import of one of them gets the real module.


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector from looking through objects that are made in here, now and later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class _Later(ModuleType):
    """A stand-in that imports the real module at the first access to an attribute."""

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self.__name__), attribute)


def import_structlog() -> None:
    """Import structlog without asyncio and rich, unless it is imported already."""
    if "structlog" in sys.modules:
        return
    # None: as if it were not installed.
    stand_ins = {"asyncio": _Later("asyncio"), "rich": None, "structlog.twisted": None}
    absent = stand_ins.keys() - sys.modules.keys()
    sys.modules.update({name: stand_ins[name] for name in absent})  # type: ignore[misc]  # None is known there
    try:
        import_module("structlog")
    finally:
        for name in absent:
            del sys.modules[name]


_PACKAGE = Path(mcpmux.__file__).parent


def is_compiled() -> bool:
    """Return whether the modules that pyproject.toml lists for mypyc are compiled, not interpreted."""
    return any((_PACKAGE / f"transports/byte_stream{suffix}").exists() for suffix in EXTENSION_SUFFIXES)


@click.group(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    sections=SECTIONS,
)
@click.version_option(
    mcpmux.__version__, "-V", "--version", message="%(prog)s %(version)s" + " (compiled)" * is_compiled()
)
def cli() -> None:
    """Put one Model Context Protocol endpoint in front of many servers.

    Exit codes: 0 for success, 1 for failure, 2 for a mistake on the command line or in a file.

    \b
    Examples:
      mcpmux demo                                   see it work, without installing anything
      mcpmux serve mcpmux.toml                      the servers of a file at http://127.0.0.1:8484/mcp
      mcpmux serve --upstream time="uvx mcp-server-time"
      mcpmux ls https://example.com/mcp             list what a server offers
    """


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help_command(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command, as its option --help does.

    \b
    Example:
      mcpmux help traffic tail
    """
    assert context.parent is not None
    cli.main([*words, "--help"], prog_name=context.parent.info_name)


@click.group(cls=LazyCommands, context_settings={"show_default": True}, sections=TRAFFIC_SECTIONS)
def traffic() -> None:
    """Watch, search, measure and export the traffic of mcpmux.

    \b
    Examples:
      mcpmux traffic tail mcpmux-capture                              live, as it passes
      mcpmux traffic stats mcpmux-capture method=resources/read       rates, errors, latency
    """
