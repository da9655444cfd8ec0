"""A group of commands whose modules are imported when they are asked for.

Each names its commands by where they are, so that `mcpmux serve` pays for nothing that only a benchmark or a
look into a capture needs. Help with the list of commands imports them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from mcpmux.cli.needless import import_structlog, uncollected


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
            from mcpmux.cli.wall import run_inside

        return run_inside(lambda: super(LazyCommands, self).invoke(ctx))
