"""From the files of host apps to a configuration that mcpmux accepts: laws for any contents of the files."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.config import Http, Stdio
from mcpmux.config.reading import TOO_DEEP
from mcpmux.files import CONFIG_BYTES
from mcpmux.hosts.configuration import read_config
from mcpmux.hosts.entry import Found
from mcpmux.hosts.host import HOSTS, Host, Machine
from mcpmux.hosts.importing import Gathered, gather, look_around, render
from mcpmux.hosts.reference import variables_in
from mcpmux.hosts.secrecy import Vault
from mcpmux.hosts.toml_text import format_table, format_value
from tests.hosts.machines import USER_FILES, machine_of, write_files

SECRET = "Zq8-geheim-77"

# The names of a server's parts in each host app, where they differ from those of most apps.
WORDS = {
    "codex": {"headers": "http_headers"},
    "goose": {"command": "cmd", "url": "uri", "env": "envs"},
}


def file_of(host: Host, servers: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the file of the host app with these servers."""
    words = WORDS.get(host.name, {})
    entries = {
        name: {words.get(key, key): value for key, value in server.items()}
        for name, server in servers.items()
    }
    if host.name == "goose":
        kinds = {name: "stdio" if "cmd" in server else "streamable_http" for name, server in entries.items()}
        entries = {name: {"type": kinds[name], **server} for name, server in entries.items()}
    if host.format == "toml":
        tables = [format_table((*host.servers, name), server) for name, server in entries.items()]
        return "\n".join(tables)
    document: dict[str, Any] = {host.servers[0]: entries}
    return yaml.safe_dump(document) if host.format == "yaml" else json.dumps(document)


def take_over(home: Path, files: Mapping[str, str]) -> tuple[list[Found], list[Gathered], str, Vault]:
    """Return the servers found and gathered, the configuration, and its secrets."""
    write_files(home, files)
    servers, unread = look_around(machine_of(home), HOSTS)
    assert unread == []
    vault, gathered = Vault(), gather(servers)
    return (
        servers,
        gathered,
        render([(server, vault.clear(server.name, server.table)) for server in gathered]),
        vault,
    )


def read(text: str, vault: Vault) -> Any:
    environ = {secret.variable: secret.value.reveal() for secret in vault.moved}
    return read_config(
        "-", {**dict.fromkeys(variables_in(tomllib.loads(text)), "https://x.example"), **environ}, text.encode
    )


words = st.one_of(
    st.sampled_from(
        ["npx", "-y", "${HOME}", "$X", "${env:A}", "${B:-c}", "a b", "", "${", "ü", '"', "--key"]
    ),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=6),
)
names = st.sampled_from(["docs", "My Docs", "a.b", "x" * 40, "mcpmux", "9"])
tables = st.dictionaries(st.sampled_from(["A", "X-Key", "PATH", "API_TOKEN"]), words, max_size=3)
commands = st.fixed_dictionaries(
    {"command": words}, optional={"args": st.lists(words, max_size=4), "env": tables, "cwd": words}
)
urls = st.fixed_dictionaries(
    {"url": st.sampled_from(["https://x.example/mcp", "http://u:p@h/?key=abcd&b=c", "nonsense", "ws://h/"])},
    optional={"headers": tables, "type": st.sampled_from(["http", "sse"])},
)
turned_off = st.booleans().map(lambda off: {"enabled": False} if off else {})
servers = st.dictionaries(
    names, st.builds(lambda server, off: server | off, commands | urls, turned_off), max_size=4
)
files = st.dictionaries(st.sampled_from(list(HOSTS)), servers, max_size=4)


@given(files)
def test_whatever_is_taken_over_is_accepted(
    tmp_path_factory: pytest.TempPathFactory, made: dict[str, dict[str, dict[str, Any]]]
) -> None:
    home = tmp_path_factory.mktemp("home")
    texts = {USER_FILES[name]: file_of(HOSTS[name], entries) for name, entries in made.items()}
    servers, gathered, text, vault = take_over(home, texts)
    assert len(servers) == sum(map(len, made.values()))
    taken = [server for server in servers if server.reason is None]
    assert sum(len(server.sources) for server in gathered) == len(taken)
    if any(server.enabled for server in taken):
        config = read(text, vault)
        assert {upstream.name: upstream.enabled for upstream in config.upstreams} == {
            server.name: server.enabled for server in gathered
        }


keys = st.sampled_from(
    [
        *(
            "command",
            "args",
            "env",
            "cwd",
            "url",
            "headers",
            "type",
            "timeout",
            "enabled",
            "disabled",
            "envFile",
        ),
        *(
            "http_headers",
            "env_http_headers",
            "bearer_token_env_var",
            "env_vars",
            "startup_timeout_ms",
            "oauth",
        ),
        *("tool_timeout_sec", "enabled_tools", "tools", "cmd", "uri", "envs", "env_keys", "available_tools"),
        *("socket", "source", "settings", "mcpmux", "serverUrl", "includeTools", "name"),
    ]
)
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | words
    | st.sampled_from(["${input:k}", "stdio"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | keys, inner, max_size=3),
    max_leaves=5,
)
odd_servers = anything | st.dictionaries(
    words, anything | st.dictionaries(keys, anything, max_size=5), max_size=3
)
others = st.dictionaries(st.sampled_from(["inputs", "mcp", "projects"]), anything, max_size=2)


@given(st.sampled_from(list(HOSTS)), odd_servers, others)
def test_whatever_is_in_a_file_is_no_bug(
    tmp_path_factory: pytest.TempPathFactory, name: str, made: Any, beside: dict[str, Any]
) -> None:
    host = HOSTS[name]
    document = {**beside, host.servers[0]: made}
    if host.format == "toml":
        text = "".join(f"{key} = {format_value(value)}\n" for key, value in document.items())
    else:
        text = yaml.safe_dump(document) if host.format == "yaml" else json.dumps(document)
    home = tmp_path_factory.mktemp("home")
    write_files(home, {USER_FILES[name]: text})
    servers, _ = look_around(machine_of(home), [name])
    vault, gathered = Vault(), gather(servers)
    text = render([(server, vault.clear(server.name, server.table)) for server in gathered])
    if any(server.enabled for server in gathered):
        assert read(text, vault).enabled


def test_keys_that_are_no_text_are_no_bug(tmp_path: Path) -> None:
    servers = (
        "1: { type: stdio, cmd: x, args: [2026-01-01, 1.5] }\n  y: { type: stdio, cmd: x, envs: { 2: 3 } }"
    )
    write_files(tmp_path, {USER_FILES["goose"]: f"extensions:\n  {servers}\n"})
    entries, unread = look_around(machine_of(tmp_path), HOSTS)
    assert unread == []
    assert [(server.name, server.reason) for server in entries] == [
        ("1", "args[1]: expected text, got a number"),
        ("y", None),
    ]


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("place", ["env", "headers", "args", "url"])
def test_a_secret_is_out_of_the_file_and_still_reaches_the_server(
    tmp_path: Path, name: str, place: str
) -> None:
    host = HOSTS[name]
    server: dict[str, dict[str, Any]] = {
        "env": {"command": "x", "env": {"API_KEY": SECRET}},
        "headers": {"url": "https://x.example/mcp", "headers": {"Authorization": f"Bearer {SECRET}"}},
        "args": {"command": "x", "args": ["--token", SECRET]},
        "url": {"url": f"https://x.example/mcp?api_key={SECRET}"},
    }
    servers, gathered, text, vault = take_over(
        tmp_path, {USER_FILES[name]: file_of(host, {"s": server[place]})}
    )
    assert SECRET not in text
    assert SECRET not in repr((servers, gathered, vault))
    (upstream,) = read(text, vault).upstreams
    target = upstream.target
    assert isinstance(target, Stdio | Http)
    if isinstance(target, Stdio):
        reached = {
            "env": {key: secret.reveal() for key, secret in target.env.items()},
            "args": list(target.args),
        }
    else:
        reached = {
            "headers": {key: secret.reveal() for key, secret in target.headers.items()},
            "url": target.url,
        }
    assert reached[place] == server[place][place]


def test_a_file_that_cannot_be_read_is_told_without_its_text(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {
            USER_FILES["cursor"]: '{ "geheim',
            USER_FILES["codex"]: "a = geheim",
            USER_FILES["goose"]: "a: [geheim",
            USER_FILES["zed"]: "[]",
            USER_FILES["gemini"]: " \n",
        },
    )
    servers, unread = look_around(machine_of(tmp_path), HOSTS)
    assert servers == []
    assert {place.place.host.name: place.reason for place in unread} == {
        "cursor": "not valid JSON: at line 1",
        "zed": "not valid JSON: expected a table",
        "codex": "not valid TOML: at line 1, column 5",
        "goose": "not valid YAML: at line 1, column 11",
    }


def test_a_hostile_folder_costs_neither_time_nor_memory(tmp_path: Path) -> None:
    project = tmp_path / "project"
    for name in (".cursor", ".vscode", ".codex", ".gemini"):
        (project / name).mkdir(parents=True)
    os.mkfifo(project / ".mcp.json")
    (project / ".cursor/mcp.json").symlink_to("/dev/zero")
    (project / ".vscode/mcp.json").write_bytes(b" " * (CONFIG_BYTES + 1))
    (project / ".codex/config.toml").write_text(".".join("a" * 20_000) + " = 1")
    home = tmp_path / "home"
    (home / ".config/goose").mkdir(parents=True)
    aliases = "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9}]\n" for n in range(1, 12))
    (home / ".config/goose/config.yaml").write_text(f"a0: &a0 x\n{aliases}extensions: *a11\n")
    deep = '{"a":' * 900 + "1" + "}" * 900
    (home / ".claude.json").write_text(f'{{"mcpServers": {{"a": {{"command": "x", "env": {deep}}}}}}}')
    (project / ".gemini/settings.json").write_text('{"a": "' + '\\"' * 500_000)
    machine = Machine("linux", home, {}, project)
    servers, unread = look_around(machine, HOSTS)
    assert servers == []
    assert {
        place.place.path.relative_to(tmp_path).as_posix().removeprefix("project/"): place.reason
        for place in unread
    } == {
        "home/.claude.json": TOO_DEEP,
        "home/.config/goose/config.yaml": TOO_DEEP,
        ".mcp.json": "cannot read the file: it is no regular file",
        ".cursor/mcp.json": "cannot read the file: it is no regular file",
        ".vscode/mcp.json": f"cannot read the file: it has more than {CONFIG_BYTES} bytes",
        ".codex/config.toml": "not valid TOML: at line 1",
        ".gemini/settings.json": "not valid JSON: at line 1",
    }
