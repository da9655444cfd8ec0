"""Write the configuration of `mcpmux import`: TOML, with comments about the origin of each upstream."""

from __future__ import annotations

from collections.abc import Sequence

from mcpmux.hosts.entry import Table
from mcpmux.hosts.gathering import Gathered
from mcpmux.hosts.toml_text import format_table
from mcpmux.printable import printable

_HEAD = """\
# Written by `mcpmux import`. The files of the host apps were not changed.
# Check it with `mcpmux check`, and put mcpmux into a host app with `mcpmux install`.
"""


def render(servers: Sequence[tuple[Gathered, Table]]) -> str:
    """Return the text of the file. Each upstream comes with its table, without secrets."""
    return "\n".join([_HEAD, *(_render_one(server, table) for server, table in servers)])


def _render_one(server: Gathered, table: Table) -> str:
    comments = [
        f"{source.place.host.title}, {source.name}: {source.place.path}"
        + (f" (project {source.place.project})" if source.place.project is not None else "")
        for source in server.sources
    ]
    comments += dict.fromkeys(note for source in server.sources for note in source.notes)
    if not server.enabled:
        table = {"enabled": False, **table}
    lines = "".join(f"# {printable(comment)}\n" for comment in comments)
    return lines + format_table(("upstreams", server.name), table)
