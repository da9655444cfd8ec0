"""Explain which capabilities beyond the core of MCP servers declare, and which of them clients see.

`mcpmux check` shows it. Promises: its account of 2026-07-28 clients is what `merge_capabilities` offers them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import click

from mcpmux.cli.console import Columns, show_items
from mcpmux.config import Config
from mcpmux.mux.merge import DELIVERED, merge_capabilities
from mcpmux.mux.rewrite import Namespace
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.tasks import EXTENSION as TASKS
from mcpmux.protocol.tasks import offers_tasks

EXTENSIONS: Final = "extensions"
EXPERIMENTAL: Final = "experimental"
CAPABILITIES: Final = "capabilities"
UI: Final = "io.modelcontextprotocol/ui"

TASKS_PASS: Final = (
    "in the form of the client's revision; tasks of modern servers are for modern clients only"
)
METHODS_STAY: Final = "methods of its own only pass if there is one server and it has no prefix"
UNKNOWN: Final = "mcpmux does not know this capability"
LEGACY_TASKS: Final = "only servers of 2026-07-28 can have it"
NO_OBJECT: Final = "its settings are not an object"
DIFFERENT: Final = "its servers have different settings for it"


class Extension(NamedTuple):
    """A capability that servers declare under `kind`. `told`: whether clients see it. `why`: the reason."""

    kind: str
    name: str
    servers: tuple[str, ...]
    told: bool
    why: str


def explain_extensions(servers: Mapping[str, ServerFacts], *, transparent: bool) -> list[Extension]:
    """Return all that the servers declare, by kind and name. `transparent`: the only server has no prefix."""
    merged = merge_capabilities(servers.values())
    declaring: dict[tuple[str, str], list[str]] = {}
    for server, facts in servers.items():
        for declared in dict.fromkeys(_declared(facts)):
            declaring.setdefault(declared, []).append(server)
    extensions = []
    for (kind, name), names in sorted(declaring.items()):
        is_announced = name in merged.get(kind, {})
        why = _why(
            kind, name, [servers[server] for server in names], told=is_announced, transparent=transparent
        )
        extensions.append(Extension(kind, name, tuple(names), is_announced, why))
    return extensions


def _declared(facts: ServerFacts) -> Iterator[tuple[str, str]]:
    """Yield kind and name. Tasks of older revisions count as the extension, in another form."""
    if offers_tasks(facts):
        yield EXTENSIONS, TASKS
    for capability, options in facts.capabilities.items():
        if capability in (EXTENSIONS, EXPERIMENTAL):
            yield from ((capability, name) for name in (options if isinstance(options, dict) else ()))
        elif capability not in DELIVERED and capability != "tasks":
            yield CAPABILITIES, capability


def _why(kind: str, name: str, servers: list[ServerFacts], *, told: bool, transparent: bool) -> str:
    if kind == CAPABILITIES:
        return UNKNOWN
    if (kind, name) == (EXTENSIONS, TASKS):
        return TASKS_PASS if told else LEGACY_TASKS
    if told:
        return "" if transparent or name == UI else METHODS_STAY
    settings = [facts.capabilities[kind][name] for facts in servers]
    return DIFFERENT if any(isinstance(setting, dict) for setting in settings) else NO_OBJECT


def find_extensions(config: Config, servers: Mapping[str, ServerFacts]) -> list[Extension]:
    """What the servers of a configuration declare beyond the core of MCP."""
    return explain_extensions(servers, transparent=Namespace(config.prefixes).transparent is not None)


def extensions_of(server: str, extensions: Sequence[Extension]) -> list[dict[str, Any]]:
    """What one server declares, for machines."""
    own = [extension for extension in extensions if server in extension.servers]
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
