"""The known host apps, and where their configuration files are on Linux, macOS and Windows.

The table of host apps follows the documentation of each. Host apps with the same form of servers share a
row's words; `entry` has the differences.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from attrs import evolve, field, frozen

from mcpmux.config.layout import SERVER_PLACES

# The ways in which texts in a file refer to variables; `reference` has the rules.
LITERAL: Final = "literal"
SHELL: Final = "shell"
EDITOR: Final = "editor"
DOLLAR: Final = "dollar"
OWN: Final = "own"


@frozen
class Host:
    """One host app.

    `user_files`: a folder of `find_folders` and a path in it; mcpmux is installed in the first one.
    `project_files`: paths in a project. `servers`: the key path of its servers. `references`: a word of those
    above. `timeout_seconds`: the unit of a server's `timeout`, None where that is not about tool calls.
    `url_member`: of the entry of a server at a URL; None for a host app that takes no URL. `command_type` and
    `url_type`: the `type` that entries of both kinds must have, "" for none.
    """

    name: str
    title: str
    user_files: tuple[tuple[str, str], ...]
    project_files: tuple[str, ...] = ()
    format: str = "json"
    servers: tuple[str, ...] = ("mcpServers",)
    references: str = LITERAL
    timeout_seconds: float | None = None
    file_variable: str | None = None
    """An environment variable that names the file."""
    url_member: str | None = "url"
    command_type: str = ""
    url_type: str = ""


CLINE_FILE = "settings/cline_mcp_settings.json"

_HOSTS = (
    Host(
        "claude-desktop",
        "Claude Desktop",
        (("apps", "Claude/claude_desktop_config.json"),),
        url_member=None,
    ),
    Host(
        "claude-code",
        "Claude Code",
        (("claude", ".claude.json"),),
        (".mcp.json",),
        references=SHELL,
        command_type="stdio",
        url_type="http",
    ),
    Host("cursor", "Cursor", (("home", ".cursor/mcp.json"),), (".cursor/mcp.json",), references=EDITOR),
    Host(
        "vscode",
        "VS Code",
        (("apps", "Code/User/mcp.json"),),
        (".vscode/mcp.json",),
        servers=("servers",),
        references=EDITOR,
        command_type="stdio",
        url_type="http",
    ),
    Host(
        "windsurf",
        "Windsurf",
        # The second belongs to its plugins for other editors.
        (("home", ".codeium/windsurf/mcp_config.json"), ("home", ".codeium/mcp_config.json")),
        references=EDITOR,
        url_member="serverUrl",
    ),
    Host(
        "zed",
        "Zed",
        (("zed", "settings.json"),),
        (".zed/settings.json",),
        servers=("context_servers",),
        timeout_seconds=1,
    ),
    Host(
        "codex",
        "Codex",
        (("codex", "config.toml"),),
        (".codex/config.toml",),
        format="toml",
        servers=("mcp_servers",),
    ),
    Host(
        "gemini",
        "Gemini CLI",
        (("home", ".gemini/settings.json"),),
        (".gemini/settings.json",),
        references=DOLLAR,
        timeout_seconds=0.001,
        url_member="httpUrl",
    ),
    Host(
        "goose",
        "Goose",
        (("goose", "config.yaml"),),
        format="yaml",
        servers=("extensions",),
        timeout_seconds=1,
        url_member="uri",
        url_type="streamable_http",
    ),
    Host(
        "cline",
        "Cline",
        # The second is its place inside of VS Code, before its parts shared one folder.
        (("cline", CLINE_FILE), ("apps", f"Code/User/globalStorage/saoudrizwan.claude-dev/{CLINE_FILE}")),
        references=EDITOR,
        timeout_seconds=1,
        file_variable="CLINE_MCP_SETTINGS_PATH",
        url_type="streamableHttp",
    ),
)

HOSTS: Final = {host.name: host for host in _HOSTS}

OTHER: Final = Host("other", "the host app", (), references=OWN)
"""For a file in the common form at another place than a host app's: it may be made for mcpmux."""

FORMS: Final = (
    *zip(SERVER_PLACES, (OTHER, HOSTS["vscode"], HOSTS["vscode"], HOSTS["zed"]), strict=True),
    (HOSTS["codex"].servers, HOSTS["codex"]),
)
"""Key path of the servers in a document -> the host app that keeps them there."""


MACOS, WINDOWS = "darwin", "win32"


@frozen
class Machine:
    """The facts that determine where files are. `platform` is as in `sys.platform`."""

    platform: str
    home: Path
    environ: Mapping[str, str] = field(factory=dict)
    project: Path | None = None
    """The folder of the project whose files count, too."""

    @property
    def separator(self) -> str:
        """The separator of the parts of a path."""
        return "\\" if self.platform == WINDOWS else "/"


def this_machine(environ: Mapping[str, str], project: Path | None = None) -> Machine:
    """Return the present machine. `project` is the current folder by default."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  # unlike Path.home it never raises
    return Machine(sys.platform, home, environ, Path.cwd() if project is None else project.absolute())


@frozen
class Place:
    """A file in which a host app may have servers. `project`: the folder that it is for, None for all."""

    host: Host
    path: Path
    project: Path | None = None


def find_places(machine: Machine, names: Iterable[str] = HOSTS) -> Iterator[Place]:
    """Yield every possible file of these hosts: those of the user first, then of the project."""
    folders = find_folders(machine)
    for name in dict.fromkeys(names):
        host = HOSTS[name]
        named = machine.environ.get(host.file_variable) if host.file_variable else None
        if named:
            yield Place(host, Path(named))
        for folder, inside in host.user_files[1 if named else 0 :]:
            yield Place(host, folders[folder] / inside)
        if machine.project is not None and machine.project != machine.home:
            for inside in host.project_files:
                yield Place(host, machine.project / inside, machine.project)


def recognize(path: Path, machine: Machine) -> Place | None:
    """Return the place of the file at `path`, a host app's or a project's; None for any other file."""
    path = Path(os.path.abspath(path))  # noqa: PTH100  # without `..`, and links stay
    for place in find_places(evolve(machine, project=None)):
        if place.path == path:
            return place
    for host in HOSTS.values():
        for inside in host.project_files:
            if path.as_posix().endswith(f"/{inside}"):
                return Place(host, path, path.parents[inside.count("/")])
    return None


def find_folders(machine: Machine) -> dict[str, Path]:
    """Return the folders that the table of hosts names."""
    home = machine.home

    def named(variable: str, default: Path) -> Path:
        value = machine.environ.get(variable)
        return Path(value) if value else default

    if machine.platform == WINDOWS:
        apps = config = named("APPDATA", home / "AppData/Roaming")
        own = {"zed": apps / "Zed", "goose": apps / "Block/goose/config"}
    else:
        config = named("XDG_CONFIG_HOME", home / ".config")
        apps = home / "Library/Application Support" if machine.platform == MACOS else config
        own = {"zed": config / "zed", "goose": config / "goose"}
    return {
        "home": home,
        "apps": apps,
        "claude": named("CLAUDE_CONFIG_DIR", home),
        "codex": named("CODEX_HOME", home / ".codex"),
        "cline": named("CLINE_DATA_DIR", named("CLINE_DIR", home / ".cline") / "data"),
        **own,
    }
