"""The translation of servers as each host app's documentation shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hosts.machines import USER_FILES, find, write_files

CLAUDE_DESKTOP = """
{ "mcpServers": { "files": {
    "command": "npx", "args": ["-y", "files-server", "${HOME}"], "env": { "N": 3 } } } }
"""
CLAUDE_CODE = """
{
  "numStartups": 7,
  "mcpServers": {
    "shared": { "type": "http", "url": "${BASE:-https://a.example}/mcp", "headers": { "X-Team": "${TEAM}" } },
    "old": { "type": "sse", "url": "https://b.example/sse" }
  },
  "projects": {
    "/project/shop": {
      "mcpServers": { "db": { "type": "stdio", "command": "./db", "args": [], "env": {} },
                      "off": { "command": "off" } },
      "disabledMcpServers": ["off"]
    }
  }
}
"""
CURSOR = """
{ "mcpServers": {
    "near": { "command": "${userHome}${/}bin${pathSeparator}near", "env": { "A": "${env:A_TOKEN}" } },
    "far": { "url": "https://c.example/mcp", "headers": { "X-Key": "${env:FAR_KEY}" } } } }
"""
VSCODE = """
{
  // what is asked for
  "inputs": [
    { "type": "promptString", "id": "cloud-key", "password": true, "default": "geheim" },
    { "type": "pickString", "id": "region", "options": ["eu", "us"], "default": "eu" },
    { "type": "command", "id": "made", "command": "x.y" },
  ],
  "servers": {
    "cloud": { "type": "stdio", "command": "cloud", "args": ["--region", "${input:region}"],
               "env": { "KEY": "${input:cloud-key}", "GONE": null }, "dev": { "watch": "**" } },
    "made": { "command": "x", "args": ["${input:made}"] },
    "asked": { "command": "x", "args": ["${input:nobody}"] },
    "here": { "command": "${workspaceFolder}/run" },
    "chosen": { "command": "x", "args": ["${command:pick.one}"] },
    "boxed": { "command": "x", "sandboxEnabled": true },
    "piped": { "type": "http", "url": "unix:///tmp/x.sock" },
  },
}
"""
WINDSURF = """
{ "mcpServers": { "wind": { "serverUrl": "https://${env:WIND_HOST}/mcp",
    "headers": { "Authorization": "Bearer ${file:@run}" }, "disabled": true, "disabledTools": ["rm"] } } }
"""
ZED = """
// settings of Zed
{
  "theme": "One", /* and more */
  "context_servers": {
    "local": { "command": "loc", "args": ["a"], "env": { "B": "${c}" }, "timeout": 20 },
    "nested": { "source": "custom", "command": { "path": "nes", "args": ["b"], "env": {} } },
    "remote": { "url": "https://d.example/mcp", "enabled": false },
    "bought": { "source": "extension", "enabled": true, "settings": { "k": "v" } },
  },
}
"""
CODEX = """
model = "x"

[mcp_servers.tools]
command = "cod"
args = ["--x"]
env = { E = "1" }
env_vars = ["FROM_HERE", { name = "THERE", source = "remote" }]
cwd = "/srv"
startup_timeout_sec = 15
tool_timeout_sec = 45
enabled_tools = ["read"]
supports_parallel_tool_calls = true

[mcp_servers.tools.tools.read]
approval_mode = "approve"

[mcp_servers."far off"]
url = "https://e.example/mcp"
bearer_token_env_var = "E_TOKEN"
http_headers = { "X-Region" = "eu" }
env_http_headers = { "X-Key" = "E_KEY" }
enabled = false
oauth = { client_id = "abc" }
"""
GEMINI = """
{
  "mcp": { "excluded": ["off"] },
  "mcpServers": {
    "gem": { "command": "gem", "args": ["$HOME/x"], "cwd": "/g",
             "env": { "K": "$GEM_KEY", "L": "${L_KEY:-d}" },
             "timeout": 15000, "trust": false, "includeTools": ["a"] },
    "stream": { "httpUrl": "https://f.example/mcp", "headers": { "X": "price 5$" } },
    "off": { "url": "https://g.example/sse" }
  }
}
"""
GOOSE = """\
GOOSE_MODE: auto
extensions:
  developer: { type: builtin, name: developer, enabled: true, bundled: true }
  gander:
    type: stdio
    name: gander
    enabled: true
    cmd: gan
    args: [-y, "der"]
    envs: { M: one }
    env_keys: [GANDER_KEY]
    timeout: 300
    available_tools: []
  lake:
    type: streamable_http
    name: lake
    enabled: false
    uri: https://h.example/mcp
    headers: { Authorization: "Bearer ${LAKE_KEY}", X-Mode: $M }
    envs: { }
    env_keys: [LAKE_KEY]
  socket: { type: streamable_http, name: s, enabled: true, uri: "http://x/mcp", socket: /run/x }
"""
CLINE = """
{ "mcpServers": { "cl": { "command": "node", "args": ["s.js"], "env": { "Z": "${env:Z}" }, "timeout": 90,
    "alwaysAllow": ["t"], "disabled": true },
  "cloud": { "type": "streamableHttp", "url": "https://i.example/mcp", "autoApprove": [] } } }
"""

TABLES: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "claude-desktop": (
        CLAUDE_DESKTOP,
        {"files": {"command": "npx", "args": ["-y", "files-server", "$${HOME}"], "env": {"N": "3"}}},
    ),
    "claude-code": (
        CLAUDE_CODE,
        {
            "shared": {"url": "${BASE:-https://a.example}/mcp", "headers": {"X-Team": "${TEAM}"}},
            "old": {"url": "https://b.example/sse", "transport": "sse"},
            "db": {"command": "./db", "cwd": "/project/shop"},
            "off": {"command": "off", "cwd": "/project/shop"},
        },
    ),
    "cursor": (
        CURSOR,
        {
            "near": {"command": "@home/bin/near", "env": {"A": "${A_TOKEN}"}},
            "far": {"url": "https://c.example/mcp", "headers": {"X-Key": "${FAR_KEY}"}},
        },
    ),
    "vscode": (
        VSCODE,
        {
            "cloud": {
                "command": "cloud",
                "args": ["--region", "${REGION:-eu}"],
                "env": {"KEY": "${CLOUD_KEY}"},
            },
            "boxed": {"command": "x"},
        },
    ),
    "windsurf": (
        WINDSURF,
        {
            "wind": {
                "url": "https://${WIND_HOST}/mcp",
                "headers": {"Authorization": "Bearer ${file:@run}"},
                "exclude_tools": ["rm"],
            }
        },
    ),
    "zed": (
        ZED,
        {
            "local": {
                "command": "loc",
                "args": ["a"],
                "env": {"B": "$${c}"},
                "timeouts": {"tools/call": 20},
            },
            "nested": {"command": "nes", "args": ["b"]},
            "remote": {"url": "https://d.example/mcp"},
        },
    ),
    "codex": (
        CODEX,
        {
            "tools": {
                "command": "cod",
                "args": ["--x"],
                "cwd": "/srv",
                "connect_timeout": 15,
                "timeouts": {"tools/call": 45},
                "include_tools": ["read"],
                "env": {"E": "1", "FROM_HERE": "${FROM_HERE}", "THERE": "${THERE}"},
            },
            "far off": {
                "url": "https://e.example/mcp",
                "headers": {"X-Region": "eu", "X-Key": "${E_KEY}", "Authorization": "Bearer ${E_TOKEN}"},
            },
        },
    ),
    "gemini": (
        GEMINI,
        {
            "gem": {
                "command": "gem",
                "args": ["${HOME}/x"],
                "cwd": "/g",
                "env": {"K": "${GEM_KEY}", "L": "${L_KEY:-d}"},
                "timeouts": {"tools/call": 15},
                "include_tools": ["a"],
            },
            "stream": {"url": "https://f.example/mcp", "headers": {"X": "price 5$"}},
            "off": {"url": "https://g.example/sse"},
        },
    ),
    "goose": (
        GOOSE,
        {
            "gander": {
                "command": "gan",
                "args": ["-y", "der"],
                "env": {"M": "one", "GANDER_KEY": "${GANDER_KEY}"},
                "timeouts": {"tools/call": 300},
            },
            "lake": {
                "url": "https://h.example/mcp",
                "headers": {"Authorization": "Bearer ${LAKE_KEY}", "X-Mode": "${M}"},
            },
        },
    ),
    "cline": (
        CLINE,
        {
            "cl": {
                "command": "node",
                "args": ["s.js"],
                "env": {"Z": "${Z}"},
                "timeouts": {"tools/call": 90},
            },
            "cloud": {"url": "https://i.example/mcp"},
        },
    ),
}
WIND_HOST = "w.example"


def fill(value: Any, home: Path) -> Any:
    """Return the value with the folders of this test filled in."""
    if isinstance(value, dict):
        return {key: fill(member, home) for key, member in value.items()}
    if isinstance(value, list):
        return [fill(member, home) for member in value]
    if isinstance(value, str):
        return value.replace("@home", str(home)).replace("@run", str(home / "run"))
    return value


def files_of(home: Path, *hosts: str) -> dict[str, str]:
    (home / "run").write_text("x")
    return {USER_FILES[host]: fill(TABLES[host][0], home) for host in hosts}


@pytest.mark.parametrize("host", TABLES)
def test_servers_become_upstreams(tmp_path: Path, host: str) -> None:
    servers = find(tmp_path, files_of(tmp_path, host), WIND_HOST=WIND_HOST)
    tables = {name: server.table for name, server in servers.items() if server.reason is None}
    assert tables == fill(TABLES[host][1], tmp_path)


def test_every_server_that_is_off_comes_as_off(tmp_path: Path) -> None:
    servers = find(tmp_path, files_of(tmp_path, *TABLES), WIND_HOST=WIND_HOST)
    off = {name for name, server in servers.items() if server.reason is None and not server.enabled}
    assert off == {"off", "wind", "remote", "far off", "lake", "cl"}


REASONS = {
    "made": "one of its inputs is the result of a command of VS Code",
    "asked": "it refers to an input that the file does not have",
    "here": "${workspaceFolder} is only known in a project",
    "chosen": "${command…} is only known inside of VS Code",
    "piped": "it speaks HTTP over a socket or a pipe",
    "bought": "an extension of Zed starts it",
    "developer": "it is a part of Goose",
    "socket": "it speaks HTTP over a Unix socket",
}


def test_what_cannot_be_taken_over_says_why(tmp_path: Path) -> None:
    servers = find(tmp_path, files_of(tmp_path, "vscode", "zed", "goose"))
    assert {name: server.reason for name, server in servers.items() if server.reason} == REASONS


NOTES = {
    "cloud": "the host app takes a variable away from it, which mcpmux cannot do",
    "boxed": "the host app runs it in a sandbox, mcpmux does not",
    "far off": "the host app logs in for it: see `oauth` and `mcpmux auth login`",
}


def test_what_is_lost_is_noted(tmp_path: Path) -> None:
    servers = find(tmp_path, files_of(tmp_path, "vscode", "codex", "gemini"))
    assert {name: "; ".join(server.notes) for name, server in servers.items() if server.notes} == NOTES


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ('{"url": "geheim"}', "url: expected a URL"),
        ('{"command": "a", "args": ["${A:-${B}}"]}', "the default of ${A} has another reference"),
        ('{"command": "/opt/bin/mcpmux", "args": ["serve", "x.toml", "--stdio"]}', "it is mcpmux itself"),
        ('{"command": "python3", "args": ["-m", "mcpmux", "serve", "x"]}', "it is mcpmux itself"),
    ],
)
def test_entries_with_mistakes_are_refused_without_their_values(
    tmp_path: Path, entry: str, reason: str
) -> None:
    server = find(tmp_path, {".claude.json": f'{{"mcpServers": {{"x": {entry}}}}}'})["x"]
    assert server.reason is not None
    assert reason in server.reason
    assert "geheim" not in server.reason


def test_servers_of_a_project_run_in_its_folder(tmp_path: Path) -> None:
    project = tmp_path / "shop"
    files = {
        ".vscode/mcp.json": """{"servers": {
            "a": {"command": "${workspaceFolder}/a", "env": {"X": "own"},
                  "envFile": "${workspaceFolder}/.env"},
            "b": {"command": "b", "cwd": "sub"}}}""",
        ".mcp.json": '{"mcpServers": {"c": {"command": "c", "cwd": "${D}"}}}',
        ".env": "X=file\nexport Y='a ${b}'\n",
    }
    write_files(project, files)
    servers = find(tmp_path, {}, project)
    assert servers["a"].table == {
        "command": f"{project}/a",
        "env": {"X": "own"},
        "env_file": f"{project}/.env",
        "cwd": str(project),
    }
    assert servers["b"].table["cwd"] == f"{project}/sub"
    assert servers["c"].table["cwd"] == "${D}"
    assert all(server.place.project == project for server in servers.values())


def test_a_file_of_variables_that_is_not_there_is_noted(tmp_path: Path) -> None:
    servers = find(tmp_path, {".cursor/mcp.json": '{"mcpServers": {"x": {"command": "a", "envFile": "no"}}}'})
    assert servers["x"].table == {"command": "a", "env_file": f"{tmp_path}/no"}
    (note,) = servers["x"].notes
    assert note.startswith("env_file: expected a readable file of `NAME=value` lines")


def test_keys_that_are_not_read_may_say_anything(tmp_path: Path) -> None:
    entry = '{"command": "a", "note": "${nowhere}", "mcpmux": {"prefix": "${P:-p}"}}'
    server = find(tmp_path, {".cursor/mcp.json": f'{{"mcpServers": {{"x": {entry}}}}}'})["x"]
    assert (server.table, server.reason) == ({"command": "a", "prefix": "${P:-p}"}, None)
    assert server.notes == ("keys that mcpmux does not know: note",)


def test_nothing_of_a_server_is_in_its_repr(tmp_path: Path) -> None:
    servers = find(tmp_path, {".cursor/mcp.json": '{"mcpServers": {"x": {"command": "geheim"}}}'})
    assert "geheim" not in repr(servers)
