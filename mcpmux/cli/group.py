"""Groups of commands: their help, their start, and a quick import of the commands that are run.

The help of a group imports all its commands. It has whole sentences, where click cuts them at the edge of the
terminal.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

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
