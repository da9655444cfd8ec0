"""Machines with the files of host apps, made in a temporary folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mcpmux.hosts.entry import Found
from mcpmux.hosts.host import HOSTS, Machine
from mcpmux.hosts.importing import look_around

# Where the first file of each host app is below the home folder, on Linux.
USER_FILES = {
    "claude-desktop": ".config/Claude/claude_desktop_config.json",
    "claude-code": ".claude.json",
    "cursor": ".cursor/mcp.json",
    "vscode": ".config/Code/User/mcp.json",
    "windsurf": ".codeium/windsurf/mcp_config.json",
    "zed": ".config/zed/settings.json",
    "codex": ".codex/config.toml",
    "gemini": ".gemini/settings.json",
    "goose": ".config/goose/config.yaml",
    "cline": ".cline/data/settings/cline_mcp_settings.json",
}


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def machine_of(home: Path, project: Path | None = None, **environ: str) -> Machine:
    return Machine("linux", home, environ, project)


def find(
    home: Path, files: Mapping[str, str], project: Path | None = None, **environ: str
) -> dict[str, Found]:
    """Find the servers in these files, by name. All files can be read."""
    write_files(home, files)
    servers, unread = look_around(machine_of(home, project, **environ), HOSTS)
    assert unread == []
    return {server.name: server for server in servers}
