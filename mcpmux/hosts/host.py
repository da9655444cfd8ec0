"""The known host apps, as a table: names, formats, and the place of the servers in a file.

It follows the documentation of each. Host apps with the same form of servers share a row's words;
`entry` has the differences.
"""

from __future__ import annotations

from typing import Final

from attrs import frozen

# How texts in a file refer to variables; `reference` has the rules.
LITERAL: Final = "literal"
SHELL: Final = "shell"
EDITOR: Final = "editor"
DOLLAR: Final = "dollar"
OWN: Final = "own"


@frozen
class Host:
    """One host app.

    `user_files`: a folder of `place.find_folders` and a path in it; mcpmux is installed in the first one.
    `project_files`: paths in a project. `servers`: the key path of its servers. `references`: a word of those
    above. `timeout_seconds`: the unit of a server's `timeout`, None where that is not about tool calls.
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


CLINE_FILE = "settings/cline_mcp_settings.json"

_HOSTS = (
    Host("claude-desktop", "Claude Desktop", (("apps", "Claude/claude_desktop_config.json"),)),
    Host("claude-code", "Claude Code", (("claude", ".claude.json"),), (".mcp.json",), references=SHELL),
    Host("cursor", "Cursor", (("home", ".cursor/mcp.json"),), (".cursor/mcp.json",), references=EDITOR),
    Host(
        "vscode",
        "VS Code",
        (("apps", "Code/User/mcp.json"),),
        (".vscode/mcp.json",),
        servers=("servers",),
        references=EDITOR,
    ),
    Host(
        "windsurf",
        "Windsurf",
        # The second belongs to its plugins for other editors.
        (("home", ".codeium/windsurf/mcp_config.json"), ("home", ".codeium/mcp_config.json")),
        references=EDITOR,
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
    ),
    Host(
        "goose",
        "Goose",
        (("goose", "config.yaml"),),
        format="yaml",
        servers=("extensions",),
        timeout_seconds=1,
    ),
    Host(
        "cline",
        "Cline",
        # The second is its place inside of VS Code, before its parts shared one folder.
        (("cline", CLINE_FILE), ("apps", f"Code/User/globalStorage/saoudrizwan.claude-dev/{CLINE_FILE}")),
        references=EDITOR,
        timeout_seconds=1,
        file_variable="CLINE_MCP_SETTINGS_PATH",
    ),
)

HOSTS: Final = {host.name: host for host in _HOSTS}

OTHER: Final = Host("other", "the host app", (), references=OWN)
"""For a file in the common form at another place than a host app's: it may be made for mcpmux."""

FORMS: Final = (
    (("mcpServers",), OTHER),
    (("servers",), HOSTS["vscode"]),
    (("mcp", "servers"), HOSTS["vscode"]),  # of its settings.json
    (("context_servers",), HOSTS["zed"]),
    (("mcp_servers",), HOSTS["codex"]),
)
"""Key path of the servers in a document -> the host app that keeps them there."""
