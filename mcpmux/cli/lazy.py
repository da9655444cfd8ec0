"""Groups of commands, and a quick start: each command is imported when it is run.

The help of a group imports all its commands.
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


class LazyCommands(click.Group):
    """A group that runs commands by `process.run_inside`. `places`: name -> `module:attribute`, in order."""

    def __init__(self, *args: Any, places: Mapping[str, str], **more: Any) -> None:
        super().__init__(*args, **more)
        self.commands = {name: click.Command(name) for name in places}  # whose names click suggests
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order of `places`, not of the alphabet."""
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

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that `ctx` names. Raises only what click turns into an exit code."""
        # Not at the top: `--version` needs neither logs nor trio.
        with uncollected():
            import_structlog()
            from mcpmux.cli.process import run_inside

        return run_inside(lambda: super(LazyCommands, self).invoke(ctx))


# What a start saves: a seventh of its time, and some memory.
#
# Imported modules stay, so the garbage collector need not look through them, neither now nor later.
#
# structlog imports asyncio for log methods that are awaited, which mcpmux does not use, and rich for coloured
# tracebacks, which mcpmux does not print. Whoever needs one of them afterwards gets the real module.


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
    """Import structlog without asyncio and rich. Does nothing if it is imported already."""
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


_PACKAGE = Path(mcpmux.__file__).parent


def is_compiled() -> bool:
    """Whether the modules that pyproject.toml lists for mypyc are compiled. If not, they are interpreted."""
    return any((_PACKAGE / f"transports/byte_stream{suffix}").exists() for suffix in EXTENSION_SUFFIXES)
