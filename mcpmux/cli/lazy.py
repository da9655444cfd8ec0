"""A group of commands whose modules are imported when they are asked for.

Each names its commands by where they are, so that `mcpmux serve` pays for nothing that only a benchmark or a
look into a capture needs. Help with the list of commands imports them all.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any

import click

import mcpmux


class Commands(click.Group):
    """Commands of which the likeliest is named to whoever mistypes one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command's name, the command and its arguments. Raises UsageError for one that there is not."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            # Not at the top: who makes no mistakes need not wait for it.
            from mcpmux.config.report import closest

            close = closest(args[0].lower(), self.list_commands(ctx))
            if close is None:
                raise
            raise click.UsageError(f"{error.message} Did you mean '{close}'?", ctx) from None


class LazyCommands(Commands):
    """Commands inside the wall; see `process`. `places`: name → `module:attribute`, in the order of use."""

    def __init__(self, *args: Any, places: Mapping[str, str], **more: Any) -> None:
        super().__init__(*args, **more)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of use, not of the alphabet."""
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, from its module; None when there is no such command."""
        place = self._places.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        with uncollected():
            command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that `ctx` names. Raises only what click turns into an exit code."""
        # Not at the top: the wall knows the logs, and `--version` needs neither.
        with uncollected():
            import_structlog()
            from mcpmux.cli.process import run_inside

        return run_inside(lambda: super(LazyCommands, self).invoke(ctx))


# What a start need not do: a seventh of its time, and some of its memory.
#
# What is imported stays, so nothing of it is looked through by the collector, neither meanwhile nor later.
#
# structlog imports asyncio for log methods that are awaited, which mcpmux must not use, and rich, where
# that is installed, for coloured tracebacks, which mcpmux does not print. Promises: whoever wants either of
# them afterwards gets the real one, structlog included.


@contextmanager
def uncollected() -> Iterator[None]:
    """What is made in here stays for good: the collector is not to look for what can go."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class _Later(ModuleType):
    """Stands for a module that is imported when something of it is wanted."""

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self.__name__), attribute)


def import_structlog() -> None:
    """Import structlog; nothing happens when somebody has done so before."""
    if "structlog" in sys.modules:
        return
    # None: as if it were not installed.
    stand_ins = {"asyncio": _Later("asyncio"), "rich": None, "structlog.twisted": None}
    absent = [name for name in stand_ins if name not in sys.modules]
    for name in absent:
        sys.modules[name] = stand_ins[name]  # type: ignore[assignment]  # None is what the import system knows
    try:
        import_module("structlog")
    finally:
        for name in absent:
            del sys.modules[name]


# Whether the modules that every exchange passes through are compiled; pyproject.toml names them.

_PACKAGE = Path(mcpmux.__file__).parent


def is_compiled() -> bool:
    """Whether they are; else they are interpreted, and do the same."""
    return any((_PACKAGE / f"transports/wire{suffix}").exists() for suffix in EXTENSION_SUFFIXES)
