"""Shell completion: the scripts, and what they offer with and without a mcpmux that is running."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from mcpmux.cli import completion
from mcpmux.cli.client.listing import find_running
from mcpmux.cli.completion import VARIABLE
from mcpmux.cli.main import SECTIONS, cli
from tests.cli.invoking import Invoke
from tests.cli.test_ctl import TOKEN
from tests.cli.test_ctl import config as config
from tests.cli.test_ctl import running as running
from tests.process.running import WAIT_SECONDS, Running


def offered(*args: str) -> list[str]:
    """Return the completions of the last word."""
    *words, incomplete = args
    items = BashComplete(cli, {}, "mcpmux", VARIABLE).get_completions(words, incomplete)
    return [f"<{item.type}>" if item.type != "plain" else item.value for item in items]


def test_commands_and_options_are_offered() -> None:
    assert offered("") == [name for places in SECTIONS.values() for name in places]
    assert offered("un") == ["uninstall"]
    assert offered("traffic", "t") == ["tail"]
    assert offered("import", "--host", "c") == ["claude-desktop", "claude-code", "cursor", "codex", "cline"]
    assert offered("install", "z") == ["zed"]
    assert offered("add", "--he") == ["--header", "--help"]


@pytest.mark.parametrize(
    "args",
    [
        *(
            ["serve"],
            ["check"],
            ["ls"],
            ["read"],
            ["call"],
            ["view"],
            ["import", "--write"],
            ["add", "--file"],
        ),
        *(["ctl", "status", "-c"], ["top", "-c"], ["auth", "login", "x", "-c"], ["install", "zed"]),
    ],
    ids=" ".join,
)
def test_files_are_left_to_the_shell(args: list[str]) -> None:
    assert offered(*args, "mu") == ["<file>"]


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["check"], ["<file>", "notes", "news"]),
        (["check", "mcpmux.toml"], ["notes", "news"]),
        (["remove"], ["notes", "news"]),
        (["remove", "--file", "other.toml"], []),
        (["view", "mcpmux.toml"], ["nights"]),
    ],
    ids=str,
)
def test_names_come_from_the_configuration_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], names: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    servers = "".join(f'[upstreams.{name}]\nurl = "http://x.test"\n' for name in ("notes", "news", "time"))
    views = "".join(f'[views.{name}]\nexclude = [{{ upstream = "time" }}]\n' for name in ("nights", "days"))
    (tmp_path / "mcpmux.toml").write_text(f"{servers}{views}")
    assert offered(*args, "n") == names


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine take longer for names than a person would wait."""
    monkeypatch.setattr(completion, "PATIENCE_SECONDS", WAIT_SECONDS)


@pytest.mark.usefixtures("patient")
def test_tools_and_uris_come_from_the_url(demo_url: str) -> None:
    assert offered("call", demo_url, "clock") == ["clock__now"]
    assert offered("read", demo_url, "notes+note:///we") == ["notes+note:///welcome"]
    assert offered("prompt", demo_url, "") == ["notes__explain"]
    assert offered("prompt", demo_url, "notes__explain", "") == ["name="]
    assert offered("call", demo_url, "notes__add_note", "") == ["name=", "text="]
    assert offered("call", demo_url.removeprefix("http://"), "notes__add_note", "name:=1", "t") == ["text="]
    assert offered("call", demo_url, "none", "") == []


def test_keys_of_filters_are_offered_beside_files() -> None:
    assert offered("traffic", "tail", "met") == ["<file>", "method="]
    assert offered("top", "dur") == ["<file>", "duration="]


@pytest.mark.usefixtures("patient")
@pytest.mark.process
def test_upstreams_come_from_the_admin_listener(config: Path, running: Running) -> None:
    assert offered("ctl", "drain", "-c", str(config), "o") == ["other"]
    port = config.read_text().partition("port = ")[2].partition("\n")[0]
    url = f"http://127.0.0.1:{port}"
    assert offered("ctl", "restart", "--url", url, "--token", TOKEN, "") == ["clock", "other"]
    assert offered("ctl", "restart", "--url", url, "--token", "wrong", "") == []


@pytest.mark.parametrize(
    "args",
    [
        ["call", "http://127.0.0.1:9/mcp", ""],
        ["read", "echo x", ""],
        ["read", "nowhere.toml", ""],
        ["ctl", "drain", ""],
        ["ctl", "drain", "-c", "nowhere.toml", ""],
        ["ctl", "drain", "--url", "http://127.0.0.1:9", ""],
        ["ctl", "drain", "--url", "nonsense", ""],
    ],
    ids=" ".join,
)
def test_nothing_is_offered_and_nothing_said_when_nothing_runs(
    args: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # where no other mcpmux of this user is found
    assert offered(*args) == []
    assert capfd.readouterr() == ("", "")


def test_a_server_that_does_not_answer_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert offered("call", f"{address}/mcp", "") == []
        assert offered("ctl", "drain", "--url", address, "") == []


@pytest.mark.process
def test_what_a_shell_would_take_apart_is_not_offered(tmp_path: Path) -> None:
    names = ["good", "a b", "$(x)", "`x`", "a;b", "a\nplain,b", "-x", "~", "a&b", "a'b", "é", "g/:@%+=,.-_1"]
    server = tmp_path / "server.py"
    server.write_text(SERVER.format(names=names))
    with Running("serve", "--upstream", f"{sys.executable} {server}", "--http", "127.0.0.1:0") as mux:
        url = mux.line().strip()
        mux.line("stderr", containing="upstream ready")
        assert offered("call", url, "") == ["good", "g/:@%+=,.-_1"]


SERVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {{"error": {{"code": -32601, "message": "no"}}}}
    if asked["method"] == "initialize":
        answer = {{"result": {{"protocolVersion": "2025-06-18", "capabilities": {{"tools": {{}}}},
                              "serverInfo": {{"name": "x", "version": "1"}}}}}}
    elif asked["method"] == "tools/list":
        answer = {{"result": {{"tools": [{{"name": name, "inputSchema": {{}}}} for name in {names!r}]}}}}
    print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], **answer}}), flush=True)
"""


@pytest.mark.parametrize(
    ("listeners", "url"),
    [
        ("", "http://127.0.0.1:8484/mcp"),
        ('[listeners]\nhttp = ["0.0.0.0:1234"]\n', "http://127.0.0.1:1234/mcp"),
        ('[listeners]\nhttp = ["[::]:1234"]\n', "http://[::1]:1234/mcp"),
        ('[listeners]\nunix = ["x.sock"]\n', None),
        ('[listeners]\nhttp = ["127.0.0.1:0"]\n', None),
    ],
)
def test_a_file_says_where_its_mcpmux_answers(tmp_path: Path, listeners: str, url: str | None) -> None:
    file = tmp_path / "mux.toml"
    file.write_text(f'[upstreams.a]\ncommand = "x"\n{listeners}')
    if url is not None:
        assert find_running(str(file)) == url
    else:
        with pytest.raises(LookupError):
            find_running(str(file))


# The scripts.


@pytest.fixture
def complete_in_bash(tmp_path: Path) -> Callable[[str], list[str]]:
    program = tmp_path / "mcpmux"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mcpmux "$@"\n')
    program.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def complete(line: str) -> list[str]:
        script = f"""
            source <(mcpmux completion bash)
            compopt() {{ echo "files"; }}
            [[ $COMP_WORDBREAKS == *:* ]] && echo "words end at colons"
            IFS=' ' read -ra COMP_WORDS <<< {line + "|"!r}
            COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
            COMP_WORDS[COMP_CWORD]=${{COMP_WORDS[COMP_CWORD]%|}}
            _mcpmux_completion mcpmux
            printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        command = ["bash", "--norc", "-c", script]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=True, env=env
        )
        assert done.stderr == ""
        return done.stdout.split()

    return complete


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_words_with_colons(
    complete_in_bash: Callable[[str], list[str]], demo_url: str
) -> None:
    assert complete_in_bash("mcpmux unin") == ["uninstall"]
    assert complete_in_bash("mcpmux serve mu") == ["files"]
    assert complete_in_bash(f"mcpmux read {demo_url} notes+note:///we") == ["notes+note:///welcome"]
    assert complete_in_bash(f"mcpmux call {demo_url} ")[0] == "notes__add_note"


@pytest.mark.process
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(invoke: Invoke, shell: str) -> None:
    done = invoke("completion", shell)
    assert (done.exit_code, f"{VARIABLE}={shell}_complete" in done.stdout) == (0, True)
    program = shutil.which(shell)
    if program is not None:
        checked = subprocess.run(
            [program, "-n"], input=done.stdout, text=True, capture_output=True, check=False
        )
        assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.process
def test_completing_a_command_imports_no_command(tmp_path: Path) -> None:
    script = """
import sys
from mcpmux.cli.main import cli
try:
    cli(prog_name="mcpmux")
finally:
    sys.stderr.write("\\n".join(sys.modules))
"""
    env = {**os.environ, VARIABLE: "bash_complete", "COMP_WORDS": "mcpmux se", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=True,
        env=env,
    )
    assert done.stdout == "plain,serve\n"
    modules = done.stderr.split()
    ours = [name for name in modules if name.startswith("mcpmux.")]
    assert ours == ["mcpmux.cli", "mcpmux.cli.main"]
    assert "trio" not in modules
