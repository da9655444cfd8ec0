"""A group of commands whose help has whole sentences, where click cuts them at the edge of the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import click

SENTENCE = 200  # characters of a sentence at most


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
