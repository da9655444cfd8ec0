"""Files of host apps that are served unchanged: their servers, our settings in them, and mistakes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mcpmux.config import Http, HttpListener, Missing, Secret, Stdio, Unix, WebSocket
from mcpmux.config.model import ToolSelection
from mcpmux.config.reading import read_table
from mcpmux.config.scalars import derive_name
from mcpmux.hosts.configuration import read_config
from mcpmux.hosts.entry import HOST_APP_KEYS
from tests.config.documents import problems_of, read
from tests.hosts.machines import find, write_files
from tests.hosts.test_entry import TABLES, WIND_HOST, files_of

NPX = {"command": "npx"}
WEB = {"url": "https://example.com"}
SOCKET = {"url": "wss://example.com/mcp"}
SERVERS = {"mcpServers": {"docs": NPX}}

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
        ({"tools": ["*"]}, ToolSelection()),
        ({"includeTools": "a"}, ToolSelection()),
        ({"includeTools": ["a"], "tools": ["b"]}, ToolSelection(("a",))),
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
        {"url": "geheim", "disabled": True},
        {"command": "${UNSET}", "enabled": False},
        {"url": "geheim", "mcpmux": {"enabled": False, "prefx": ""}},
    ],
)
def test_disabled_server_never_stops_anything(entry):
    config = read({"mcpServers": {"docs": NPX, "old": entry}})
    assert [upstream.name for upstream in config.upstreams if upstream.enabled] == ["docs"]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (5, "it is no table"),
        ({}, "it has neither a command nor a URL"),
        ({"comand": "npx"}, "it has neither a command nor a URL; is `comand` one of them?"),
        ({**NPX, "url": "https://example.com"}, "it has a command and a URL, or two URLs"),
        (
            {"httpUrl": "https://a.example", "url": "https://a.example"},
            "it has a command and a URL, or two URLs",
        ),
        ({"url": "tcp://a:1", "headers": {"A": "b"}}, "`headers` does not go with a tcp:// URL"),
        ({"url": "geheim"}, "url: expected a URL: http://, https://"),
        ({**NPX, "args": "geheim"}, "args: expected a list, got text"),
        ({**NPX, "args": ["${input:token}"]}, f"args[0]: {INPUT}"),
        ({**NPX, "args": ["${R%/}"]}, "args[0]: expected `${VARIABLE}`"),
        ({**NPX, "env": {"A": "${UNSET_9}"}}, "env.A: the environment variable `UNSET_9` is not set"),
        ({**NPX, "envFile": "/nowhere/.env"}, "env_file: expected a readable file of `NAME=value` lines"),
        ({**NPX, "cwd": "${workspaceFolder}"}, "${workspaceFolder} is only known in a project"),
    ],
)
def test_entry_that_cannot_be_read_is_one_missing_server(entry, reason):
    config = read({"mcpServers": {"docs": NPX, "My Docs": entry}})
    docs, other = config.upstreams
    assert (docs.target, other.name, other.enabled) == (Stdio("npx"), "my-docs", True)
    assert isinstance(other.target, Missing)
    assert other.target.reason.startswith(reason)
    assert "geheim" not in other.target.reason


def test_keys_that_no_host_app_has_are_a_warning():
    config = read({"mcpServers": {"docs": {**NPX, "isActive": True, "tags": ["${"]}, "web": WEB}})
    assert [upstream.target for upstream in config.upstreams] == [Stdio("npx"), Http("https://example.com")]
    assert config.notes == ("mcpServers.docs: keys that mcpmux does not know: isActive, tags",)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({**NPX, "mcpmux": {"prefx": ""}}, ".mcpmux.prefx: unknown key; did you mean `prefix`?"),
        ({**NPX, "mcpmux": {"args": []}}, ".mcpmux.args: unknown key; expected one of"),
        ({**NPX, "mcpmux": True}, ".mcpmux: expected a table, got true or false"),
        ({"comand": "npx", "mcpmux": {"prefx": ""}}, ".mcpmux.prefx: unknown key; did you mean `prefix`?"),
        ({**SOCKET, "mcpmux": {"proxy": ""}}, ": `proxy` does not go with a wss:// URL"),
    ],
)
def test_settings_of_our_own_stay_strict(entry, problem):
    (sentence,) = problems_of({"mcpServers": {"My Docs": entry}})
    assert sentence.startswith(f'mcpServers."My Docs"{problem}')


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({**SERVERS, "mcpMux": {}}, "mcpMux: unknown key; did you mean `mcpmux`?"),
        ({**SERVERS, "mcpmux": {"listener": {}}}, "mcpmux.listener: unknown key; did you mean `listeners`?"),
        ({**SERVERS, "mcpmux": []}, "mcpmux: expected a table, got a list"),
        ({"mcpServers": {}}, "expected at least one upstream that is enabled"),
    ],
)
def test_mistake_around_the_servers_is_told(document, problem):
    assert problems_of(document) == [problem]


def test_servers_that_are_no_table_are_a_mistake():
    assert "mcpServers: expected a table of upstreams, got a list" in problems_of({"mcpServers": []})


# One translation, whether a file is served or imported.


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("host", sorted(TABLES.keys() - {"goose"}))
def test_a_file_is_served_as_it_is_imported(home: Path, host: str) -> None:
    environ = dict.fromkeys(["TEAM", "A_TOKEN", "FAR_KEY", "CLOUD_KEY", "GEM_KEY", "Z", "E_KEY"], "x")
    environ |= dict.fromkeys(["E_TOKEN", "FROM_HERE", "THERE"], "x")
    environ |= {"HOME": str(home), "WIND_HOST": WIND_HOST}
    place, text = files_of(home, host).popitem()
    imported = find(home, {place: text.replace('"disabled": true', '"disabled": false')}, None, **environ)
    served = {
        upstream.name: upstream for upstream in read_config(str(home / place), environ, bytes).upstreams
    }
    everywhere = {
        derive_name(server.name): server for server in imported.values() if server.place.project is None
    }
    assert served.keys() == everywhere.keys()
    for name, server in everywhere.items():
        target = served[name].target
        assert served[name].enabled is server.enabled
        if server.reason is not None:
            assert target == Missing(server.reason)
        else:
            (expected,) = read_table({"upstreams": {name: server.table}}, environ, "").upstreams
            assert (target, served[name].timeouts) == (expected.target, expected.timeouts)


@pytest.mark.parametrize(
    ("place", "said", "arrives"),
    [
        (".gemini/settings.json", "$TOKEN ${TOKEN}", "t t"),
        (".cursor/mcp.json", "${env:TOKEN} ${userHome} $TOKEN", "t @home $TOKEN"),
        (".config/Claude/claude_desktop_config.json", "${TOKEN} ${R%/}", "${TOKEN} ${R%/}"),
        (".claude.json", "${TOKEN} ${R%/}", "t ${R%/}"),
        ("shop/.gemini/settings.json", "$TOKEN", "t"),
        ("shop/.cursor/mcp.json", "${workspaceFolder}", "@home/shop"),
        ("mine.json", "${TOKEN} ${env:TOKEN} $${TOKEN} ${userHome} $TOKEN", "t t ${TOKEN} @home $TOKEN"),
    ],
)
def test_the_place_of_a_file_tells_how_it_is_read(home: Path, place: str, said: str, arrives: str) -> None:
    entry: dict[str, Any] = {"command": "x", "env": {"A": said}}
    write_files(home, {place: json.dumps({"mcpServers": {"a": entry}})})
    environ = {"TOKEN": "t", "XDG_CONFIG_HOME": str(home / ".config")}
    target = read_config(os.path.relpath(home / place), environ, bytes).upstreams[0].target
    assert isinstance(target, Stdio)
    assert target.env["A"] == Secret(arrives.replace("@home", str(home)))
    assert target.cwd == (str(home / "shop") if "shop" in place else None)


def test_servers_of_other_projects_are_left_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    projects = {str(home / name): {"mcpServers": {name: NPX}} for name in ("shop", "else")}
    write_files(home, {".claude.json": json.dumps({"mcpServers": {"all": NPX}, "projects": projects})})
    (home / "shop").mkdir()
    monkeypatch.chdir(home / "shop")
    all_, shop = read_config(str(home / ".claude.json"), {}, bytes).upstreams
    assert (all_.name, all_.target) == ("all", Stdio("npx"))
    assert (shop.name, shop.target) == ("shop", Stdio("npx", cwd=str(home / "shop")))
