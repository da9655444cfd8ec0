"""`mcpmux traffic`: the group of the commands that read, replay and serve what was captured."""

from __future__ import annotations

import click

from mcpmux.cli.traffic_export import export
from mcpmux.cli.traffic_grep import grep
from mcpmux.cli.traffic_mock import mock
from mcpmux.cli.traffic_replay import replay
from mcpmux.cli.traffic_show import show
from mcpmux.cli.traffic_stats import stats
from mcpmux.cli.traffic_tail import tail
from mcpmux.cli.wall import Commands


@click.group(cls=Commands, commands=[tail, show, grep, stats, export, replay, mock])
def traffic() -> None:
    """See, search, measure and export what passed through mcpmux.

    \b
    Examples:
      mcpmux traffic tail mcpmux-capture                              live, as it passes
      mcpmux traffic stats mcpmux-capture method=resources/read       rates, errors, latency
    """
