"""The extensions that servers speak, and what clients are told of them, for `mcpmux check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from mcpmux.cli.console import Columns, show_items
from mcpmux.config import Config
from mcpmux.mux.extensions import EXTENSIONS, Extension, explain_extensions
from mcpmux.mux.rewrite import Namespace
from mcpmux.protocol.handshake import ServerFacts


def find_extensions(config: Config, servers: Mapping[str, ServerFacts]) -> list[Extension]:
    """What the servers of a configuration declare beyond the core of MCP."""
    return explain_extensions(servers, transparent=Namespace(config.prefixes).transparent is not None)


def extensions_of(server: str, extensions: Sequence[Extension]) -> list[dict[str, Any]]:
    """What one server declares, for machines."""
    own = [each for each in extensions if server in each.servers]
    return [{"kind": each.kind, "name": each.name, "told": each.told, "why": each.why} for each in own]


def show_extensions(extensions: Sequence[Extension]) -> None:
    """Print a table of them, if there are any, behind another table."""
    if extensions:
        click.echo()
        show_items(extensions, False, COLUMNS)


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
