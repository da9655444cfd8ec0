"""`mcpmux traffic`: the group of the commands that read, replay and serve what was captured."""

from __future__ import annotations

import click

from mcpmux.cli.lazy import LazyCommands

PLACES = {
    name: f"mcpmux.cli.traffic_{name}:{name}"
    for name in ("tail", "show", "grep", "stats", "export", "replay", "mock")
}


@click.group(cls=LazyCommands, places=PLACES)
def traffic() -> None:
    """See, search, measure and export what passed through mcpmux.

    \b
    Examples:
      mcpmux traffic tail mcpmux-capture                              live, as it passes
      mcpmux traffic stats mcpmux-capture method=resources/read       rates, errors, latency
    """
