"""`mcpmux install` and `mcpmux uninstall`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mcpmux.cli.main import cli
from mcpmux.cli.moving import find_command
from mcpmux.hosts.document import parse
from tests.cli.homes import home as home
from tests.cli.invoking import Invoke
from tests.hosts.machines import write_files
from tests.process.running import Running

HOST_FILE = '{\n  // mine\n  "mcpServers": { "x": { "command": "x", "env": { "KEY": "geheim" } } },\n}\n'


@pytest.fixture
def mux(home: Path) -> Path:
    write_files(
        home, {".cursor/mcp.json": HOST_FILE, "work/mcpmux.toml": '[upstreams.a]\ncommand = "${RUN}"\n'}
    )
    return home / "work/mcpmux.toml"


def test_it_is_installed_and_uninstalled(home: Path, mux: Path, invoke: Invoke) -> None:
    file = home / ".cursor/mcp.json"
    done = invoke("install", "cursor", "--yes")
    assert done.exit_code == 0, done.output
    assert "added mcpmux to Cursor" in done.stdout
    assert done.stderr == (
        "the file as it was: ~/.cursor/mcp.json.before-mcpmux\n"
        "Cursor has to be started with these variables, or an `env_file` has them: RUN\n"
    )
    assert file.read_text().startswith('{\n  // mine\n  "mcpServers": { "x"')
    assert f'"serve", "{mux}", "--stdio", "--share"' in file.read_text()
    assert invoke("install", "cursor").stdout == "Cursor has mcpmux already\n"
    undone = invoke("uninstall", "cursor", "--yes")
    assert (undone.exit_code, undone.stderr) == (0, "")
    assert file.read_text() == HOST_FILE
    assert [path.name for path in file.parent.iterdir()] == ["mcp.json"]
    assert invoke("uninstall", "cursor").stdout == "Cursor does not have mcpmux\n"
    assert "geheim" not in done.output + undone.output


def test_the_servers_that_mcpmux_has_are_replaced(home: Path, invoke: Invoke) -> None:
    file = home / ".cursor/mcp.json"
    old_text = HOST_FILE.replace('{ "x": {', '{ "other": { "command": "other" }, "x": {')
    write_files(home, {".cursor/mcp.json": HOST_FILE})
    assert invoke("import", "--write").exit_code == 0
    file.write_text(old_text)
    beside = invoke("install", "cursor", "--yes")
    assert "Cursor starts these servers, too; --replace takes them out of its file: x\n" in beside.stderr
    assert invoke("uninstall", "cursor", "--yes").exit_code == 0
    done = invoke("install", "cursor", "--yes", "--replace")
    assert "- the server `x`, which mcpmux has\n" in done.stdout
    assert list(parse(file.read_text(), "json")["mcpServers"]) == ["other", "mcpmux"]
    undone = invoke("uninstall", "cursor", "--yes")
    assert "+ the server `x`, as it was\n" in undone.stdout
    assert file.read_text() == old_text
    assert "geheim" not in beside.output + done.output + undone.output


def test_a_dry_run_only_shows(home: Path, mux: Path, invoke: Invoke) -> None:
    shown = invoke("install", "cursor", "--dry-run")
    assert (shown.exit_code, '"mcpmux"' in shown.stdout) == (0, True)
    assert (home / ".cursor/mcp.json").read_text() == HOST_FILE


@pytest.mark.parametrize(("answer", "exit_code"), [("y\n", 0), ("n\n", 1), ("", 1)])
def test_it_asks_first(home: Path, mux: Path, answer: str, exit_code: int) -> None:
    done = CliRunner().invoke(cli, ["install", "cursor"], input=answer)
    assert (done.exit_code, "Change the file?" in done.output) == (exit_code, True)
    assert ((home / ".cursor/mcp.json").read_text() == HOST_FILE) == (exit_code == 1)


def test_a_backup_that_was_not_used_is_named(home: Path, mux: Path, invoke: Invoke) -> None:
    file = home / ".cursor/mcp.json"
    assert invoke("install", "cursor", "--yes").exit_code == 0
    file.write_text(file.read_text().replace("// mine", "// changed"))
    undone = invoke("uninstall", "cursor", "--yes")
    assert "its backup was not used: ~/.cursor/mcp.json.before-mcpmux" in undone.stderr
    assert file.read_text() == HOST_FILE.replace("// mine", "// changed")


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (
            ["install", "cursor", "none.toml"],
            "none.toml: there is no such file; `mcpmux import --write` makes",
        ),
        (["install", "nothing"], "'nothing' is not one of"),
        (["install", "zed"], "Zed was not found"),
        (["install", "windsurf", "--project", "."], "Windsurf has no file for a project"),
    ],
)
def test_mistakes(home: Path, mux: Path, invoke: Invoke, args: list[str], problem: str) -> None:
    refused = invoke(*args)
    assert (refused.exit_code, problem in refused.stderr) == (2, True), refused.output


def test_the_command_starts_mcpmux_from_anywhere() -> None:
    assert Path(find_command()[0]).is_absolute()


@pytest.mark.process
def test_the_host_app_can_start_what_was_installed(tmp_path: Path) -> None:
    """Import and install in an empty home folder, and open a session with the server that is installed."""
    clock = {"command": sys.executable, "args": ["-m", "mcpmux.demo.clock"]}
    write_files(tmp_path, {".cursor/mcp.json": json.dumps({"mcpServers": {"clock": clock}})})
    write_files(tmp_path, {".codex/config.toml": "# mine\n"})
    env, mux = {"HOME": str(tmp_path), "CODEX_HOME": ""}, str(tmp_path / "mcpmux.toml")
    for args in (["import", "--project", str(tmp_path), "--write", mux], ["install", "cursor", mux, "--yes"]):
        with Running(*args, env=env) as running:
            assert running.wait() == 0, running.stderr
    entry = json.loads((tmp_path / ".cursor/mcp.json").read_text())["mcpServers"]["mcpmux"]
    with Running("ls", shlex.join([sys.executable, "-m", "mcpmux", *entry["args"]]), env=env) as running:
        assert running.wait() == 0, running.stderr
        assert "clock+" in running.stdout
