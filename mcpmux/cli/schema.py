"""`mcpmux config`: about the configuration itself."""

from __future__ import annotations

import json

import click

from mcpmux.cli.lazy import Commands
from mcpmux.config import config_schema


@click.group(cls=Commands)
def config() -> None:
    """About the configuration file.

    \b
    Example:
      mcpmux config schema > mcpmux.schema.json
    """


@config.command()
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors that complete and check it.

    \b
    Example:
      mcpmux config schema > mcpmux.schema.json
    """
    click.echo(json.dumps(config_schema(), indent=2, ensure_ascii=False))
