"""The extensions that servers speak, and what clients are told of them, for `mcpmux check`."""

from __future__ import annotations

from collections.abc import Mapping

import click

from mcpmux.cli.console import Columns, show_items, show_json
from mcpmux.config import Config
from mcpmux.mux.extensions import EXTENSIONS, Extension, explain_extensions
from mcpmux.mux.rewrite import Namespace
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.handshake import ServerFacts


def _name(extension: Extension) -> str:
    return extension.name if extension.kind == EXTENSIONS else f"{extension.name} ({extension.kind})"


def _fate(extension: Extension) -> str:
    if not extension.told:
        return f"not told: {extension.why}"
    return f"told; {extension.why}" if extension.why else "told"


COLUMNS: Columns = {
    "EXTENSION": _name,
    "SERVERS": lambda extension: ", ".join(extension.servers),
    "CLIENTS ARE": _fate,
}


def report_extensions(config: Config, servers: Mapping[str, ServerFacts], *, as_json: bool) -> None:
    """Print what the servers declare beyond the core of MCP, if they do."""
    transparent = Namespace(config.prefixes).transparent is not None
    found = explain_extensions(servers, transparent=transparent)
    if found and as_json:
        show_json(raw({"extensions": [each._asdict() for each in found]}))
    elif found:
        click.echo()
        show_items(found, False, COLUMNS)
