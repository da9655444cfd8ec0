"""`mcpmux` and `mcpmux traffic`: their commands, where each of them is, and how groups of commands start.

The help of a group imports all its commands. It has whole sentences, where click cuts them at the edge of the
terminal.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

import mcpmux

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SENTENCE = 200  # characters of a sentence at most
ELSEWHERE = {
    "version": "see `mcpmux --version`",
    "init": "`mcpmux import --write` and `mcpmux add NAME COMMAND` make a file",
    "status": "see `mcpmux ctl status`, `mcpmux ps` and `mcpmux check`",
    "run": "see `mcpmux serve`",
}
"""Commands that other programs have -> what does that here."""


class Group(click.Group):
    """A group that describes each command by the first sentence of its help."""

    def sections(self, context: click.Context) -> Mapping[str, Iterable[str]]:
        """Return heading -> names of commands, in the order of the help."""
        return {"Commands": self.list_commands(context)}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands of each section."""
        width = max(map(len, self.list_commands(ctx)))
        for heading, names in self.sections(ctx).items():
            commands = {name: self.get_command(ctx, name) for name in names}
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        (name.ljust(width), command.get_short_help_str(SENTENCE))
                        for name, command in commands.items()
                        if command is not None
                    ]
                )


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
        command = getattr(quick_import(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def sections(self, context: click.Context) -> Mapping[str, Iterable[str]]:
        """See Group."""
        return self._sections

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` begin with. Raises UsageError."""
        if ctx.parent is None and args[0] in ELSEWHERE:
            ctx.fail(f"No such command '{args[0]}'; {ELSEWHERE[args[0]]}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Return names of commands without their help, which would import them all; then options."""
        from click.shell_completion import CompletionItem  # not at the top: only a shell needs it

        names = [CompletionItem(name) for name in self._places if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that `ctx` names. Raises only what click turns into an exit code."""
        process = quick_import(
            "mcpmux.cli.process"
        )  # not at the top: `--version` needs neither logs nor trio
        return process.run_inside(lambda: super(LazyCommands, self).invoke(ctx))


# A quick start: this saves a seventh of its time, and some memory.


def quick_import(module: str) -> ModuleType:
    """Import a module, without work for the garbage collector, and structlog without asyncio and rich.

    Imported modules stay, so the garbage collector need not look through them, neither now nor later.
    structlog imports asyncio for log methods that are awaited, which mcpmux does not use, and rich for
    coloured tracebacks, which mcpmux does not print. A later import of one of them gets the real module.
    """
    gc.disable()
    try:
        if "structlog" not in sys.modules:
            _import_structlog()
        return import_module(module)
    finally:
        gc.freeze()
        gc.enable()


class _Later(ModuleType):
    """A stand-in that imports the real module at the first access to an attribute."""

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self.__name__), attribute)


def _import_structlog() -> None:
    # None: as if it were not installed.
    stand_ins = {"asyncio": _Later("asyncio"), "rich": None, "structlog.twisted": None}
    absent = stand_ins.keys() - sys.modules.keys()
    sys.modules.update({name: stand_ins[name] for name in absent})  # type: ignore[misc]  # None is known there
    try:
        import_module("structlog")
    finally:
        for name in absent:
            del sys.modules[name]


# The commands.

SECTIONS = {
    "Serve": {
        "serve": "mcpmux.cli.serve:serve",
        "demo": "mcpmux.cli.serve:demo",
        "ps": "mcpmux.cli.admin.shared:ps",
        "stop": "mcpmux.cli.admin.shared:stop",
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
        "ls": "mcpmux.cli.client.listing:ls",
        "read": "mcpmux.cli.client.requesting:read",
        "call": "mcpmux.cli.client.requesting:call",
        "prompt": "mcpmux.cli.client.requesting:prompt",
        "complete": "mcpmux.cli.client.requesting:complete",
        "subscribe": "mcpmux.cli.client.listening:subscribe",
        "ping": "mcpmux.cli.client.listening:ping",
    },
    "Watch and control": {
        "top": "mcpmux.cli.top.command:top",
        "ctl": "mcpmux.cli.admin.ctl:ctl",
        "traffic": "mcpmux.cli.main:traffic",
        "audit": "mcpmux.cli.audit:audit",
        "bench": "mcpmux.cli.bench.command:bench",
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
        "tail": "mcpmux.cli.traffic.messages:tail",
        "show": "mcpmux.cli.traffic.messages:show",
        "grep": "mcpmux.cli.traffic.messages:grep",
        "stats": "mcpmux.cli.traffic.report:stats",
        "export": "mcpmux.cli.traffic.report:export",
        "replay": "mcpmux.cli.traffic.replay:replay",
        "mock": "mcpmux.cli.traffic.replay:mock",
    }
}


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
