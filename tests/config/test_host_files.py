from __future__ import annotations

import pytest

from mcpmux.config import Http, HttpListener, Secret, Stdio, Unix, WebSocket
from mcpmux.config.layout import HOST_APP_KEYS
from mcpmux.config.model import ToolSelection
from tests.config.documents import problems_of, read

NPX = {"command": "npx"}
WEB = {"url": "https://example.com"}
SOCKET = {"url": "wss://example.com/mcp"}
SERVERS = {"mcpServers": {"docs": NPX}}

NEITHER = "expected `command` (a program to start) or `url` (the endpoint of a running server)"
TRANSPORTS = '"stdio", "http", "sse" or "websocket"'
INPUT = "`${input:…}` is asked for by the host app, which mcpmux cannot do; use `${VARIABLE}`"


@pytest.mark.parametrize(
    "document",
    [
        {"mcpServers": {"docs": NPX}},
        {"servers": {"docs": NPX}, "inputs": []},
        {"mcp": {"servers": {"docs": NPX}, "inputs": []}, "editor.fontSize": 12},
        {"mcpServers": {"docs": NPX}, "globalShortcut": "", "logging": "anything"},
    ],
)
def test_servers_are_found_where_host_apps_keep_them(document):
    (upstream,) = read(document).upstreams
    assert (upstream.name, upstream.prefix, upstream.target) == ("docs", "docs", Stdio("npx"))


def test_servers_of_all_places_are_taken():
    config = read(
        {"mcpServers": {"docs": NPX}, "servers": {"docs": NPX, "web": {"url": "https://example.com"}}}
    )
    assert [upstream.name for upstream in config.upstreams] == ["docs", "docs-2", "web"]


def test_comments_and_trailing_commas_are_tolerated():
    config = read('{ // mine\n "servers": { "docs": { "command": "npx", }, }, }')
    assert config.upstreams[0].target == Stdio("npx")


@pytest.mark.parametrize(
    ("entry", "target"),
    [
        ({"type": "stdio", "command": "npx", "args": ["-y"]}, Stdio("npx", ("-y",))),
        ({"type": "local", "command": "npx", "cwd": "/srv"}, Stdio("npx", cwd="/srv")),
        (
            {"command": "npx", "env": {"A": "${env:B}", "C": 1}},
            Stdio("npx", (), {"A": Secret("b"), "C": Secret("1")}),
        ),
        ({"url": "https://example.com"}, Http("https://example.com")),
        ({"serverUrl": "https://example.com"}, Http("https://example.com")),
        ({"httpUrl": "https://example.com"}, Http("https://example.com")),
        ({"type": "http", "url": "https://example.com", "env": {}}, Http("https://example.com")),
        ({"type": "streamable-http", "url": "https://example.com"}, Http("https://example.com")),
        ({"transport": "streamableHttp", "url": "https://example.com"}, Http("https://example.com")),
        ({"type": "ws", **SOCKET}, WebSocket("wss://example.com/mcp")),
        (
            {"transport": "websocket", **SOCKET, "headers": {"X-Key": "${B}"}},
            WebSocket("wss://example.com/mcp", {"X-Key": Secret("b")}),
        ),
        ({"url": "unix:/run/a.sock"}, Unix("/run/a.sock")),
        ({"type": "sse", "url": "https://example.com"}, Http("https://example.com", transport="sse")),
        ({"transport": "sse", "url": "https://example.com"}, Http("https://example.com", transport="sse")),
        (
            {"url": "https://example.com", "headers": {"X-Key": "${B}"}},
            Http("https://example.com", {"X-Key": Secret("b")}),
        ),
    ],
)
def test_entry_becomes_a_target(entry, target):
    assert read({"mcpServers": {"docs": entry}}, {"B": "b"}).upstreams[0].target == target


@pytest.mark.parametrize("key", sorted(HOST_APP_KEYS))
def test_key_of_a_host_app_is_accepted_and_not_read(key):
    assert problems_of({"mcpServers": {"docs": {**NPX, key: ["${UNSET}", {}]}}}) == []


@pytest.mark.parametrize(
    ("keys", "selection"),
    [
        ({}, ToolSelection()),
        ({"includeTools": ["a", "b*"]}, ToolSelection(("a", "b*"))),
        ({"enabledTools": ["a"], "disabledTools": ["b"]}, ToolSelection(("a",), ("b",))),
        ({"excludeTools": ["a"], "disabledTools": ["b"]}, ToolSelection(None, ("a", "b"))),
        ({"tools": ["a"]}, ToolSelection(("a",))),
        ({"tools": ["*"]}, ToolSelection(("*",))),
        ({"tools": {"a": {"default": "allow"}}}, ToolSelection()),
        ({"includeTools": []}, ToolSelection(())),
        ({"includeTools": ["run(git status)"]}, ToolSelection(("run",))),
    ],
)
def test_the_tools_that_a_host_app_would_offer_are_offered(keys, selection):
    assert read({"mcpServers": {"docs": {**NPX, **keys}}}).upstreams[0].tools == selection


def test_a_table_of_our_own_selects_tools_too():
    selecting = {**NPX, "include_tools": ["a*"], "exclude_tools": ["ab"]}
    assert read({"upstreams": {"docs": selecting}}).upstreams[0].tools == ToolSelection(("a*",), ("ab",))
    assert read({"upstreams": {"docs": NPX}}).upstreams[0].tools.is_all


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"includeTools": "a"}, "includeTools: expected a list, got text"),
        ({"disabledTools": [""]}, "disabledTools: expected names of tools"),
        ({"includeTools": ["a"], "tools": ["b"]}, "expected one of `includeTools`, `tools`"),
    ],
)
def test_mistakes_about_these_tools_are_told(keys, problem):
    (told,) = problems_of({"mcpServers": {"docs": {**NPX, **keys}}})
    assert told.startswith("mcpServers.docs") and told.endswith(problem)


def test_server_names_become_upstream_names():
    config = read({"mcpServers": {"My Server": NPX, "my-server": NPX, "GitHub": NPX}})
    assert [upstream.name for upstream in config.upstreams] == ["my-server-2", "my-server", "github"]


def test_own_settings_stand_in_mcpmux_objects():
    config = read(
        {
            "mcpServers": {
                "docs": {**NPX, "timeout": 60000, "mcpmux": {"prefix": "", "connect_timeout": "2m"}},
            },
            "mcpmux": {"listeners": {"http": ["127.0.0.1:8484"]}, "logging": {"format": "json"}},
        }
    )
    assert config.upstreams[0].prefix == ""
    assert config.upstreams[0].connect_timeout == 120.0
    assert config.listeners.http == (HttpListener(host="127.0.0.1", port=8484),)
    assert config.logging.format == "json"


def test_env_file_is_read_and_env_wins(tmp_path):
    (tmp_path / ".env").write_text("A=file\nB=file\n")
    entry = {**NPX, "envFile": "${DIR}/.env", "env": {"B": "entry"}}
    target = read({"servers": {"docs": entry}}, {"DIR": str(tmp_path)}).upstreams[0].target
    assert target == Stdio("npx", (), {"A": Secret("file"), "B": Secret("entry")})


@pytest.mark.parametrize(
    "entry",
    [
        {"type": "ws", "url": "https://example.com", "disabled": True},
        {"command": "${UNSET}", "enabled": False},
        {"type": "ws", "url": "https://example.com", "mcpmux": {"enabled": False}},
    ],
)
def test_disabled_server_never_stops_anything(entry):
    config = read({"mcpServers": {"docs": NPX, "old": entry}})
    assert [upstream.name for upstream in config.upstreams if upstream.enabled] == ["docs"]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"type": "sse", "command": "npx"}, ': `type` is "sse", which does not go with `command`'),
        (
            {"transport": "ws", **WEB},
            ': `transport` is "ws", which does not go with an https:// URL; expected ws:// or wss://',
        ),
        ({"type": "http", **SOCKET}, ': `type` is "http", which does not go with a wss:// URL'),
        ({"type": "ws", "command": "npx"}, ': `type` is "ws", which does not go with `command`'),
        ({"url": "tcp://a:1", "headers": {}}, ": `headers` does not go with a tcp:// URL"),
        ({**SOCKET, "mcpmux": {"proxy": ""}}, ": `proxy` does not go with a wss:// URL"),
        ({"type": "pigeon", "command": "npx"}, f".type: expected {TRANSPORTS}"),
        ({"type": 5, "command": "npx"}, f".type: expected {TRANSPORTS}"),
        ({"type": "http", "command": "npx"}, ': `type` is "http", which does not go with `command`'),
        ({"type": "stdio", **WEB}, ': `type` is "stdio", which does not go with `url`'),
        ({}, f": {NEITHER}"),
        ({**NPX, "url": "https://example.com"}, ": expected `command` or `url`, got both"),
        ({"httpUrl": "https://a.example", "url": "https://a.example"}, ": expected one of `url`, `httpUrl`"),
        ({"comand": "npx"}, ".comand: unknown key; did you mean `command`?"),
        ({**NPX, "argz": []}, ".argz: unknown key; did you mean `args`?"),
        ({**NPX, "mcpmux": {"prefx": ""}}, ".mcpmux.prefx: unknown key; did you mean `prefix`?"),
        ({**NPX, "cwd": None}, ".cwd: expected text, got null"),
        ({**NPX, "mcpmux": True}, ".mcpmux: expected a table, got true or false"),
        ({**NPX, "args": ["${input:token}"]}, f".args[0]: {INPUT}"),
    ],
)
def test_mistake_is_told_with_its_key_path(entry, problem):
    assert problems_of({"mcpServers": {"My Docs": entry}}) == [f'mcpServers."My Docs"{problem}']


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({**SERVERS, "mcpMux": {}}, "mcpMux: unknown key; did you mean `mcpmux`?"),
        ({**SERVERS, "mcpmux": {"listener": {}}}, "mcpmux.listener: unknown key; did you mean `listeners`?"),
        ({**SERVERS, "mcpmux": []}, "mcpmux: expected a table, got a list"),
        ({"mcpServers": {}}, "expected at least one upstream that is enabled"),
        ({"servers": {"docs": NPX, "a b": 5}}, 'servers."a b": expected a table, got a number'),
        ({"mcp": {"servers": {"docs": {}}}}, f"mcp.servers.docs: {NEITHER}"),
    ],
)
def test_mistake_around_the_servers_is_told(document, problem):
    assert problems_of(document) == [problem]


def test_servers_that_are_no_table_are_a_mistake():
    assert "mcpServers: expected a table of upstreams, got a list" in problems_of({"mcpServers": []})
