"""`mcpmux import` in a home folder with host apps in it."""

from __future__ import annotations

import json
import shlex
import stat
import sys
from pathlib import Path

import pytest

from mcpmux.hosts.configuration import read_config
from tests.cli.homes import home as home
from tests.cli.invoking import Invoke
from tests.hosts.machines import write_files
from tests.process.running import Running

SECRET = "Zq8-geheim-77"
CLOCK = json.dumps({"command": sys.executable, "args": ["-m", "mcpmux.demo.clock"]})
FILES = {
    ".cursor/mcp.json": f"""{{ "mcpServers": {{
        "clock": {CLOCK},
        "docs": {{ "command": "npx", "args": ["--token", "{SECRET}"],
                   "env": {{ "DOCS_KEY": "{SECRET}" }} }} }} }}""",
    ".claude.json": f"""{{ "mcpServers": {{ "clock": {CLOCK},
        "docs": {{ "type": "http", "url": "https://x.example/mcp?key={SECRET}",
                   "headers": {{ "Authorization": "Bearer {SECRET}" }} }} }} }}""",
    ".codex/config.toml": f"""
        [mcp_servers.off]
        command = "off"
        enabled = false
        env = {{ PASSWORD = "{SECRET}" }}
        """,
    ".config/Code/User/mcp.json": """{ "inputs": [{ "id": "k", "type": "promptString", "password": true }],
        "servers": { "asked": { "command": "a", "env": { "K": "${input:k}" } },
                     "lost": { "command": "${workspaceFolder}/a" } } }""",
    ".gemini/settings.json": "{ not json",
}


def test_it_shows_what_is_there_and_writes_nothing(home: Path, invoke: Invoke) -> None:
    write_files(home, FILES)
    shown = invoke("import", "--json")
    assert shown.exit_code == 0, shown.output
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    brief = [
        (row["host"], row.get("server"), row.get("upstream"), row["state"], row.get("details", []))
        for row in rows
    ]
    assert brief == [
        ("claude-code", "clock", "clock", "taken over", []),
        ("claude-code", "docs", "docs-claude-code", "taken over", []),
        ("cursor", "clock", "clock", "taken over", ["the same as in Claude Code"]),
        ("cursor", "docs", "docs-cursor", "taken over", []),
        ("vscode", "asked", "asked", "taken over", []),
        ("vscode", "lost", None, "not taken over", ["${workspaceFolder} is only known in a project"]),
        ("codex", "off", "off", "disabled", []),
        ("gemini", None, None, "not read", ["not valid JSON: at line 1"]),
    ]
    assert {row["file"] for row in rows} == {str(home / name) for name in FILES}
    assert list((home / "work").iterdir()) == []


def test_a_table_is_for_people(home: Path, invoke: Invoke) -> None:
    write_files(home, FILES)
    shown = invoke("import")
    assert "docs-claude-code" in shown.stdout
    assert "${DOCS_CURSOR_TOKEN}, which you have to set" in shown.stderr
    assert "set these variables first: K" in shown.stderr


def test_no_host_app_is_told(home: Path, invoke: Invoke) -> None:
    shown = invoke("import")
    assert (shown.exit_code, "no host app on this machine" in shown.stderr) == (0, True)
    assert invoke("import", "--write").exit_code == 1


def test_only_the_host_apps_that_are_wanted_count(home: Path, invoke: Invoke) -> None:
    write_files(home, FILES)
    shown = invoke("import", "--json", "--host", "codex", "--host", "vscode")
    assert {json.loads(line)["host"] for line in shown.stdout.splitlines()} == {"codex", "vscode"}


@pytest.mark.parametrize("secrets", [False, True])
def test_nothing_of_a_secret_is_printed_or_in_the_file(home: Path, invoke: Invoke, secrets: bool) -> None:
    write_files(home, FILES)
    options = ["--secrets", "../kept"] if secrets else []
    for more in ([], ["--json"]):
        for write in ([], ["--write", "--force", *options]):
            done = invoke("import", *more, *write)
            assert done.exit_code == 0
            assert SECRET not in done.output
    assert SECRET not in (home / "work/mcpmux.toml").read_text()
    kept = sorted((home / "kept").iterdir()) if secrets else []
    assert [path.read_text() for path in kept] == [SECRET] * (5 if secrets else 0)
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} <= {0o600}
    assert not secrets or stat.S_IMODE((home / "kept").stat().st_mode) == 0o700


def test_the_file_says_where_each_server_is_from(home: Path, invoke: Invoke) -> None:
    write_files(home, FILES)
    assert invoke("import", "--write", "mine.toml").exit_code == 0
    text = (home / "work/mine.toml").read_text()
    assert f"# Claude Code, clock: {home}/.claude.json\n# Cursor, clock: {home}/.cursor/mcp.json\n" in text
    assert "[upstreams.off]\nenabled = false\n" in text
    environ = dict.fromkeys(["K", "DOCS_CURSOR_TOKEN", "DOCS_CURSOR_DOCS_KEY", "DOCS_CLAUDE_CODE_KEY"], "x")
    environ |= {"DOCS_CLAUDE_CODE_AUTHORIZATION": "x", "OFF_PASSWORD": "x"}
    config = read_config(str(home / "work/mine.toml"), environ, lambda: b"")
    assert list(config.enabled) == ["clock", "docs-claude-code", "docs-cursor", "asked"]


@pytest.mark.parametrize("text", ["mine", "upstreams = {}\n", '{ "upstreams": {} }'])
def test_a_file_that_cannot_be_added_to_is_overwritten_by_force(
    home: Path, invoke: Invoke, text: str
) -> None:
    write_files(home, FILES)
    (home / "work/mcpmux.toml").write_text(text)
    refused = invoke("import", "--write")
    assert (refused.exit_code, "--force" in refused.stderr) == (2, True)
    assert (home / "work/mcpmux.toml").read_text() == text
    assert invoke("import", "--write", "--force").exit_code == 0


@pytest.mark.parametrize("options", [[], ["--secrets", "../kept"]])
def test_a_file_gets_only_the_servers_that_it_lacks(home: Path, invoke: Invoke, options: list[str]) -> None:
    write_files(home, FILES)
    file = home / "work/mcpmux.toml"
    assert "5 upstreams written" in invoke("import", "--write", *options).stderr
    text = file.read_text().replace("# Written by", "# Mine, written by") + '\n[capture]\nlevel = "full"\n'
    file.write_text(text)
    assert "0 upstreams added; 5 are in it already" in invoke("import", "--write", *options).stderr
    assert file.read_text() == text
    write_files(home, {".codeium/windsurf/mcp_config.json": '{"mcpServers": {"off": {"command": "on"}}}'})
    added = invoke("import", "--write", *options)
    assert "1 upstreams added; 5 are in it already" in added.stderr
    assert file.read_text().startswith(text)
    assert '[upstreams.off-windsurf]\ncommand = "on"\n' in file.read_text()


def test_another_secret_is_only_overwritten_by_force(home: Path, invoke: Invoke) -> None:
    write_files(home, FILES)
    write_files(home, {"kept/off-password": "another"})
    refused = invoke("import", "--write", "--secrets", "../kept")
    assert (refused.exit_code, "there is another secret already" in refused.stderr) == (2, True)
    assert not (home / "work/mcpmux.toml").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [(["--secrets", "x"], "needs --write"), (["--write", "--secrets", "a}b"], "cannot have ${ or }")],
)
def test_mistakes(home: Path, invoke: Invoke, options: list[str], problem: str) -> None:
    refused = invoke("import", *options)
    assert (refused.exit_code, problem in refused.stderr) == (2, True)


@pytest.mark.process
def test_check_accepts_what_was_imported(home: Path, invoke: Invoke) -> None:
    write_files(home, {name: FILES[name] for name in (".cursor/mcp.json", ".claude.json")})
    both = json.dumps({"mcpServers": {"clock": json.loads(CLOCK), "off": {"command": "x", "disabled": True}}})
    write_files(home, {".cursor/mcp.json": both, ".claude.json": both})
    assert invoke("import", "--write").exit_code == 0
    checked = invoke("check", "mcpmux.toml", "--json")
    assert checked.exit_code == 0, checked.output
    states = {row["name"]: row["state"] for row in map(json.loads, checked.stdout.splitlines())}
    assert states == {"clock": "ready", "off": "disabled"}


@pytest.mark.process
def test_the_real_command_line_in_an_empty_home_folder(tmp_path: Path) -> None:
    write_files(tmp_path, {".cursor/mcp.json": json.dumps({"mcpServers": {"clock": json.loads(CLOCK)}})})
    env = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": ""}
    target = tmp_path / "mcpmux.toml"
    with Running("import", "--project", str(tmp_path), "--write", str(target), env=env) as running:
        assert running.wait() == 0, running.stderr
    with Running("check", str(target), env=env) as running:
        assert running.wait() == 0, running.stderr
        assert shlex.split(running.stdout.splitlines()[1])[:2] == ["clock", "ready"]
