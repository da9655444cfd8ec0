"""Help, mistakes, and what needs no server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcpmux import __version__
from mcpmux.cli.main import SECTIONS, is_compiled
from tests.cli.invoking import Invoke

COMMANDS = [["serve"], ["demo"], ["check"], ["ls"], ["read"], ["call"], ["config"], ["config", "schema"]]
TRAFFIC = ["tail", "show", "grep", "stats", "export", "replay", "mock"]
COMMANDS += [["traffic"], *(["traffic", name] for name in TRAFFIC)]
COMMANDS += [["bench"], ["import"], ["add"], ["remove"], ["install"], ["uninstall"], ["completion"]]
COMMANDS += [["audit"], ["audit", "verify"], ["audit", "show"], ["audit", "head"]]


@pytest.mark.parametrize("command", [[], *COMMANDS], ids=" ".join)
def test_every_command_has_help_with_an_example(invoke: Invoke, command: list[str]) -> None:
    result = invoke(*command, "--help")
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert " ".join(["mcpmux", *command]) in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_version(invoke: Invoke) -> None:
    how = " (compiled)" if is_compiled() else ""
    assert invoke("--version").stdout == f"mcpmux {__version__}{how}\n"


def test_schema_is_json(invoke: Invoke) -> None:
    assert json.loads(invoke("config", "schema").stdout)["$schema"].startswith("https://json-schema.org/")


MISTAKES = {
    "no target": (["serve"], "in this folder:\n  mcpmux import --write  "),
    "no such file": (["ls", "nowhere.toml"], "nowhere.toml: there is no such file; expected"),
    "no name of a file": (["ls", "x" * 300], "there is no such file; expected"),
    "a command of others": (["init"], "No such command 'init'; `mcpmux import --write` and `mcpmux add"),
    "no scheme": (["ls", "localhost/mcp"], "expected a configuration file, a URL with http://"),
    "nothing": (["serve", ""], "CONFIG is empty; expected"),
    "no name": (["check", "--upstream", "=x"], "expected a name before ="),
    "no URL": (["ls", "http://"], "Error: expected"),
    "token for no URL": (
        ["ls", "echo x", "--token", "x"],
        "--token and --header are for a TARGET that is a URL",
    ),
    "two tokens": (
        ["read", "http://a", "x:y", "--token", "x", "--header", "Authorization: y"],
        "leave out one",
    ),
    "header": (["call", "http://a", "t", "--header", "x"], "--header: expected NAME=VALUE or 'NAME: VALUE'"),
    "no command": (["check", "--upstream", "a="], "expected [NAME=]URL"),
    "quotation marks": (["ls", "echo 'x"], "quotation marks do not match"),
    "name in use": (["check", "--upstream", "a=x", "--upstream", "a=y"], "Error: --upstream a: another"),
    "address twice": (
        ["serve", "--upstream", "x", "--http", "127.0.0.1:1", "--listen", "tcp://127.0.0.1:1"],
        "two listeners have the address 127.0.0.1:1",
    ),
    "address": (["serve", "--upstream", "x", "--http", "localhost"], 'expected "HOST:PORT"'),
    "demo address": (["demo", "--http", "x:99999"], 'expected "HOST:PORT"'),
    "listen": (["serve", "--upstream", "x", "--listen", "8484"], "expected http://HOST:PORT, ws://"),
    "listen to wss": (["serve", "--upstream", "x", "--listen", "wss://a:1"], "needs a certificate"),
    "argument": (["call", "http://127.0.0.1:1", "t", "x"], "expected key=text or key:=JSON"),
    "level": (["ls", "x", "--log-level", "loud"], "'loud' is not one of"),
    "stdin twice": (["serve", "-", "--stdio"], "CONFIG is read from standard input already"),
    "command": (["server"], "No such command 'server'. Did you mean 'serve'?"),
    "command of a group": (["traffic", "tial"], "Did you mean 'tail'?"),
    "command of another group": (["ctl", "reloda"], "Did you mean 'reload'?"),
    "command that is like none": (["audit", "xyz"], "No such command 'xyz'.\n"),
}


@pytest.mark.parametrize(("args", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_told_on_stderr_with_exit_code_2(invoke: Invoke, args: list[str], words: str) -> None:
    result = invoke(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["serve", "check", "ls"])
def test_every_mistake_in_a_file_is_listed(invoke: Invoke, tmp_path: Path, command: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text('[upstreams.a]\ncomand = "x"\n\n[listeners]\nhttp = ["x"]\n')
    result = invoke(command, str(file))
    assert result.exit_code == 2
    first, *problems = result.stderr.splitlines()
    assert first == f"Error: {len(problems)} mistakes:"
    lines = ("2: upstreams.a.comand: unknown key; did you mean `command`?", "5: listeners.http[0]: ")
    assert all(problem.startswith(f"  {file}:{line}") for problem, line in zip(problems, lines, strict=True))


@pytest.mark.parametrize("command", [["serve"], ["check"], ["ctl", "status"]])
def test_a_file_of_the_current_folder_is_taken_when_none_is_given(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    (tmp_path / "mcpmux.toml").write_text("mistake = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MCPMUX_ADMIN_URL", raising=False)
    assert "mcpmux.toml:1: mistake" in invoke(*command).stderr


@pytest.mark.process
def test_a_file_of_the_current_folder_is_not_added_to_upstreams(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mcpmux.toml").write_text("mistake = 1\n")
    monkeypatch.chdir(tmp_path)
    assert "not found in PATH" in invoke("check", "--upstream", "a=no-such-program").stdout


def test_configuration_on_stdin_has_to_be_utf8(invoke: Invoke) -> None:
    result = invoke("check", "-", stdin=b"\xff")
    assert result.exit_code == 2
    assert result.stderr == "Error: standard input: not UTF-8 at byte 1\n"


FAILURES = {
    "nobody there": (["ls", "http://127.0.0.1:1/mcp"], "cannot connect to 127.0.0.1:1"),
    "nobody to read from": (["read", "http://127.0.0.1:1/mcp", "a:b"], "cannot connect to 127.0.0.1:1"),
    "nobody to call": (["call", "http://127.0.0.1:1/mcp", "t"], "cannot connect to 127.0.0.1:1"),
    "no such program": (["ls", "no-such-program --at-all"], "not found in PATH"),
}


@pytest.mark.process
@pytest.mark.parametrize(("args", "words"), FAILURES.values(), ids=FAILURES)
def test_failure_is_one_sentence_with_exit_code_1(invoke: Invoke, args: list[str], words: str) -> None:
    result = invoke(*args)
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_help_is_a_command_too(invoke: Invoke) -> None:
    assert invoke("help", "traffic", "tail").stdout == invoke("traffic", "tail", "--help").stdout
    shown = invoke("help").stdout
    assert all(f"\n{heading}:\n" in shown for heading in SECTIONS)
    assert invoke("help", "tial").exit_code == 2


@pytest.mark.parametrize("group", ["traffic", "ctl", "auth", "audit", "access", "config", ""])
def test_a_group_describes_its_commands_by_whole_sentences(invoke: Invoke, group: str) -> None:
    shown = invoke(*group.split(), "--help").stdout.replace("ARGS]...", "")
    assert "..." not in shown


def test_without_a_file_each_way_to_get_one_is_named(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("serve", "check", "ls", "view"):
        result = invoke(command)
        assert result.exit_code == 2
        assert "mcpmux import --write" in result.stderr
