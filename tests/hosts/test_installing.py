"""mcpmux in the file of each host app, and out again."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.errors import ConfigError
from mcpmux.hosts.document import parse
from mcpmux.hosts.entry import find_servers
from mcpmux.hosts.host import HOSTS, Machine, Place
from mcpmux.hosts.installing import (
    NAME,
    Change,
    backup_of,
    describe,
    describe_entry,
    find_place,
    make,
    plan_install,
    plan_uninstall,
)
from mcpmux.protocol.envelope import value_at
from tests.hosts.machines import USER_FILES, machine_of, write_files
from tests.hosts.test_document import jsonc_texts, toml_texts, yaml_texts

COMMAND = ["/opt/mcpmux", "serve", "/home/you/mux.toml", "--stdio"]
OTHER = ["/opt/mcpmux", "serve", "/home/you/other.toml", "--stdio"]

WRITTEN = {
    "claude-desktop": {"command": COMMAND[0], "args": COMMAND[1:]},
    "claude-code": {"type": "stdio", "command": COMMAND[0], "args": COMMAND[1:]},
    "vscode": {"type": "stdio", "command": COMMAND[0], "args": COMMAND[1:]},
    "codex": {"command": COMMAND[0], "args": COMMAND[1:]},
    "goose": {
        "enabled": True,
        "type": "stdio",
        "name": "mcpmux",
        "description": "All MCP servers behind mcpmux",
        "cmd": COMMAND[0],
        "args": COMMAND[1:],
        "envs": {},
        "env_keys": [],
        "timeout": 300,
    },
}


def place_of(folder: Path, host: str) -> Place:
    (folder / USER_FILES[host]).parent.mkdir(parents=True, exist_ok=True)
    return find_place(machine_of(folder), host)


@pytest.mark.parametrize("host", HOSTS)
def test_an_entry_with_a_url_is_what_the_importer_reads(tmp_path: Path, host: str) -> None:
    url = "http://127.0.0.1:8484/mcp"
    text = describe_entry(HOSTS[host], url)
    if host == "claude-desktop":
        assert text is None
        return
    assert text is not None
    place = Place(HOSTS[host], tmp_path / "file")
    (server,) = find_servers(place, parse(text, place.host.format), machine_of(tmp_path))
    assert (server.name, server.table["url"], server.reason, server.notes) == (NAME, url, None, ())


@pytest.mark.parametrize("host", HOSTS)
def test_a_file_that_was_not_there_is_made_and_removed(tmp_path: Path, host: str) -> None:
    place = place_of(tmp_path, host)
    assert place.path == tmp_path / USER_FILES[host]
    make(plan_install(place, COMMAND))
    text = place.path.read_text()
    assert stat.S_IMODE(place.path.stat().st_mode) == 0o600
    entry = value_at(parse(text, place.host.format), (*place.host.servers, NAME))
    assert entry == WRITTEN.get(host, WRITTEN["claude-desktop"])
    assert plan_install(place, COMMAND).is_none
    make(plan_install(place, OTHER))
    make(plan_uninstall(place))
    assert list(place.path.parent.iterdir()) == []
    assert plan_uninstall(place).is_none


FORMATS = {"cursor": jsonc_texts(), "codex": toml_texts(), "goose": yaml_texts()}
texts = st.one_of(*(st.tuples(st.just(host), made) for host, made in FORMATS.items()))


@given(texts, st.booleans())
def test_installing_and_uninstalling_gives_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, made: tuple[str, str], twice: bool
) -> None:
    host, text = made
    place = place_of(tmp_path_factory.mktemp("home"), host)
    place.path.write_bytes(text.encode())
    place.path.chmod(0o640)
    make(plan_install(place, COMMAND))
    if twice:
        make(plan_install(place, OTHER))
    assert place.path.read_bytes() != text.encode()
    assert backup_of(place.path).read_bytes() == text.encode()
    assert stat.S_IMODE(backup_of(place.path).stat().st_mode) == 0o640
    make(plan_uninstall(place))
    assert place.path.read_bytes() == text.encode()
    assert stat.S_IMODE(place.path.stat().st_mode) == 0o640
    assert list(place.path.parent.iterdir()) == [place.path]


CHANGED = {
    "cursor": ('{\n  // mine\n  "a": 1\n}\n', '"a": 1', '"a": 2, "b": {}'),
    "codex": ("# mine\na = 1\n\n[b]\n", "a = 1", "a = 2"),
    "goose": ("# mine\nmode: auto\nextensions:\n  x: { type: builtin }\n", "auto", "chat"),
}


@pytest.mark.parametrize("host", CHANGED)
def test_only_the_entry_goes_when_something_else_has_changed(tmp_path: Path, host: str) -> None:
    text, old, new = CHANGED[host]
    place = place_of(tmp_path, host)
    place.path.write_text(text)
    make(plan_install(place, COMMAND))
    place.path.write_text(place.path.read_text().replace(old, new))
    change = plan_uninstall(place)
    make(change)
    after = place.path.read_text()
    assert not change.is_restored
    assert parse(after, place.host.format) in (
        parse(text.replace(old, new), place.host.format),
        {**parse(text.replace(old, new), place.host.format), place.host.servers[0]: {}},
    )
    assert "mine" in after
    assert backup_of(place.path).read_text() == text


MOVED = {
    "cursor": '{\n  // mine\n  "mcpServers": {\n    "x": { "env": { "A": "geheim" } },\n    "y": {}\n  }\n}',
    "codex": '# mine\n[mcp_servers.x]\nenv = { A = "geheim" }\n\n[mcp_servers.y]\ncommand = "y"\n',
    "goose": "# mine\nextensions:\n  x: { type: stdio, env: { A: geheim } }\n  y: { type: builtin }\n",
}


@pytest.mark.parametrize("host", MOVED)
def test_moved_servers_come_back_with_the_same_bytes(tmp_path: Path, host: str) -> None:
    place = place_of(tmp_path, host)
    place.path.write_text(MOVED[host])
    make(plan_install(place, COMMAND))
    change = plan_install(place, OTHER, ["x"])
    assert "- the server `x`, which mcpmux has" in lines(change)
    assert "geheim" not in "".join(describe(change))
    make(change)
    servers = value_at(parse(place.path.read_text(), place.host.format), place.host.servers)
    assert set(servers) == {"y", NAME}
    change = plan_uninstall(place)
    assert lines(change)[-1] == "+ the server `x`, as it was"
    assert "geheim" not in "".join(describe(change))
    make(change)
    assert place.path.read_text() == MOVED[host]
    assert list(place.path.parent.iterdir()) == [place.path]


@pytest.mark.parametrize("host", MOVED)
def test_moved_servers_come_back_into_a_file_that_has_changed(tmp_path: Path, host: str) -> None:
    place = place_of(tmp_path, host)
    place.path.write_text(MOVED[host])
    make(plan_install(place, COMMAND, ["x", "y"]))
    place.path.write_text(place.path.read_text().replace("mine", "changed"))
    change = plan_uninstall(place)
    make(change)
    assert change.returned == ("x", "y")
    assert parse(place.path.read_text(), place.host.format) == parse(MOVED[host], place.host.format)
    assert "changed" in place.path.read_text()
    assert backup_of(place.path).read_text() == MOVED[host]


def test_a_backup_that_is_of_no_use_is_replaced(tmp_path: Path) -> None:
    place = place_of(tmp_path, "cursor")
    place.path.write_text('{ "a": 1 }')
    backup_of(place.path).write_text("{ broken")
    make(plan_install(place, COMMAND))
    assert backup_of(place.path).read_text() == '{ "a": 1 }'


def lines(change: Change) -> list[str]:
    return list(describe(change))[1:]


def test_what_changes_is_shown_and_nothing_else(tmp_path: Path) -> None:
    place = place_of(tmp_path, "cursor")
    text = '{\n  "mcpServers": {\n    "x": { "env": { "A": "geheim" } } // geheim\n  }\n}\n'
    place.path.write_text(text)
    change = plan_install(place, COMMAND[:2])
    shown = list(describe(change))
    entry = ['"mcpmux": {', '  "command": "/opt/mcpmux",', '  "args": [', '    "serve"', "  ]", "}"]
    assert shown == [f"{place.path}:", *(f"+ {line}" for line in entry)]
    make(change)
    assert list(describe(plan_uninstall(place))) == [f"{place.path}:", *(f"- {line}" for line in entry)]


@pytest.mark.parametrize("host", FORMATS)
def test_another_command_is_shown_as_lines_between_those_that_stay(tmp_path: Path, host: str) -> None:
    place = place_of(tmp_path, host)
    make(plan_install(place, ["/opt/mcpmux", "serve"]))
    shown = lines(plan_install(place, ["/opt/mcpmux", "--stdio"]))
    assert {line[:2] for line in shown} == {"  ", "- ", "+ "}
    assert [("serve" in line, "--stdio" in line) for line in shown if line[0] in "-+"] == [
        (True, False),
        (False, True),
    ]
    assert any("/opt/mcpmux" in line and line[0] == " " for line in shown)


@pytest.mark.parametrize("moved", [(), (NAME, "y")])
def test_a_manual_entry_is_not_shown_and_comes_back(tmp_path: Path, moved: tuple[str, ...]) -> None:
    place = place_of(tmp_path, "cursor")
    entry = '"mcpmux": { "command": "x", "env": { "A": "geheim" } }'
    place.path.write_text(text := f'{{ "mcpServers": {{ {entry}, "y": {{}}, "z": {{}} }} }}')
    change = plan_install(place, COMMAND, moved)
    assert "geheim" not in "".join(describe(change))
    assert lines(change)[0] == "- an entry `mcpmux` that mcpmux did not make"
    make(change)
    make(plan_uninstall(place))
    assert place.path.read_text() == text


def test_a_file_that_was_changed_in_the_meantime_stays(tmp_path: Path) -> None:
    place = place_of(tmp_path, "cursor")
    place.path.write_text("{}")
    change = plan_install(place, COMMAND)
    place.path.write_text('{ "new": 1 }')
    with pytest.raises(ConfigError, match="changed in the meantime"):
        make(change)
    assert place.path.read_text() == '{ "new": 1 }'
    assert {path.name for path in place.path.parent.iterdir()} <= {"mcp.json", "mcp.json.before-mcpmux"}


def test_a_link_still_leads_to_the_file(tmp_path: Path) -> None:
    place = place_of(tmp_path, "cursor")
    write_files(tmp_path, {"dotfiles/mcp.json": "{}"})
    place.path.symlink_to(tmp_path / "dotfiles/mcp.json")
    make(plan_install(place, COMMAND))
    assert place.path.is_symlink()
    make(plan_uninstall(place))
    assert (tmp_path / "dotfiles/mcp.json").read_text() == "{}"


def test_a_host_app_that_is_not_there_is_no_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Zed was not found: there is no folder"):
        find_place(machine_of(tmp_path), "zed")


def test_a_project_has_a_file_of_its_own(tmp_path: Path) -> None:
    machine = Machine("linux", tmp_path, {}, tmp_path / "work")
    place = find_place(machine, "vscode")
    make(plan_install(place, COMMAND))
    assert parse((tmp_path / "work/.vscode/mcp.json").read_text(), "json")["servers"].keys() == {NAME}
    with pytest.raises(ConfigError, match="Windsurf has no file for a project"):
        find_place(machine, "windsurf")


def test_cline_has_mcpmux_where_it_has_its_servers(tmp_path: Path) -> None:
    older = f".config/Code/User/globalStorage/saoudrizwan.claude-dev/{HOSTS['cline'].user_files[0][1]}"
    write_files(tmp_path, {older: "{}"})
    assert find_place(machine_of(tmp_path), "cline").path == tmp_path / older


@pytest.mark.parametrize("text", ["{", "[]", '{"mcpServers": []}'])
def test_a_file_with_mistakes_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    place = place_of(tmp_path, "cursor")
    place.path.write_text(text)
    with pytest.raises(ConfigError, match=str(place.path)):
        plan_install(place, COMMAND)
