"""Interrupts, broken pipes, colours and tracebacks, which need a real process and a real terminal."""

from __future__ import annotations

import os
import pty
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.process.running import COMMAND, WAIT_SECONDS, Running, demo_command, is_alive
from tests.traffic.made import record, write

HOSTILE = """
from mcpmux.demo import server
about = server.describe("clock")
about["resources"][0]["title"] = "\\x1b]0;owned\\x07[bold]not bold[/bold]"
read = lambda uri: [{"uri": uri, "text": "one\\r\\n\\ttwo\\x1b[2Jthree"}]
server.run_server(server.DemoServer("hostile", about, read, {}))
"""


def run_on_terminal(*args: str, command: Sequence[str] = COMMAND, **variables: str) -> str:
    """Run a command on a terminal, with `variables` in its environment. Return its stdout and stderr."""
    controller, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    environment.pop("NO_COLOR", None)
    environment |= variables
    process = subprocess.Popen([*command, *args], stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    shown = b""
    try:
        while select.select([controller], [], [], WAIT_SECONDS)[0]:
            shown += os.read(controller, 65536)
    except OSError:  # EIO: no process has the terminal open any more
        pass
    finally:
        os.close(controller)
        process.wait(WAIT_SECONDS)
    return shown.decode().replace("\r\n", "\n")


IMPATIENT = """
import mcpmux.cli.console, mcpmux.cli.traffic.source
from mcpmux.__main__ import main
mcpmux.cli.console.PATIENCE_SECONDS = -1.0
mcpmux.cli.traffic.source.MESSAGES_EACH = 1
main()
"""


def test_reading_a_capture_shows_progress_unless_lines_are_printed_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    write(file, [record(kind="request"), record(kind="response")])
    command = [sys.executable, "-c", IMPATIENT]
    shown = run_on_terminal("traffic", "stats", str(file), command=command)
    assert "reading a.jsonl, " in shown
    assert "reading" not in run_on_terminal("traffic", "grep", "x", str(file), command=command)


def test_interrupted_command_exits_130_without_noise_and_without_orphans(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    silent = shlex.join(
        ["sh", "-c", f"echo $$ > {shlex.quote(str(pid_file))}; echo up >&2; exec cat >/dev/null"]
    )
    with Running("ls", silent, "--log-level", "info") as command:
        command.line("stderr", containing="up")
        assert command.stop(signal.SIGINT) == 130
        assert (command.stdout, command.stderr) == ("", "")
    assert not is_alive(int(pid_file.read_text()))


def test_a_command_that_runs_until_ctrl_c_exits_0(demo_url: str) -> None:
    with Running("subscribe", demo_url) as command:
        command.line("stderr", containing="waiting")
        assert command.stop() == 0, command.stderr


def test_broken_pipe_is_silent() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        for command, *rest in (["ls"], ["read", "clock:///utc"], ["check"]):
            finished = subprocess.run(
                [*COMMAND, command, demo_command("clock"), *rest],
                stdout=gone,
                stderr=subprocess.PIPE,
                timeout=WAIT_SECONDS,
                check=False,
            )
            assert finished.stderr == b"", command


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize(
    ("streams", "words", "code"),
    [
        ("<&-", "config schema", 0),
        ("2>&-", "config schema", 0),
        ("<&- >&- 2>&-", "ps", 0),
        ("<&- 2>&-", "serve {file} --stdio", 0),  # the end of the input
        (">&-", "serve {file} --stdio </dev/null", 0),
        ("", "bench {clock} --clients 1 --warm-up 0 --duration 0.1s", 0),  # its first line has a `…`
        ("", "call {clock} x `printf 'a=\\351'`", 2),
        (">/dev/full", "--version", 1),
        (">/dev/full", "config schema", 1),  # more than a buffer has
        (">/dev/full", "check --help", 1),
        ("2>/dev/full", "ps", 1),
        (">/dev/full", "config show no-such-file", 2),
    ],
)
def test_standard_streams_may_be_closed_full_or_ascii(
    tmp_path: Path, streams: str, words: str, code: int
) -> None:
    file = tmp_path / "mux.toml"
    file.write_text('upstreams.x.url = "http://127.0.0.1:9/mcp"')
    clock = shlex.quote(demo_command("clock"))
    line = f"{shlex.join(COMMAND)} {words.format(file=shlex.quote(str(file)), clock=clock)} {streams}"
    done = subprocess.run(
        ["sh", "-c", line],
        env={**os.environ, **ASCII, "XDG_STATE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert all(word not in done.stderr for word in ("Traceback", "bug", "Exception ignored"))
    if streams == ">/dev/full" and code == 1:
        assert done.stderr == "Error: the output: cannot write: no space left on device\n"


def test_strangers_text_cannot_steer_a_terminal() -> None:
    server = shlex.join([sys.executable, "-c", HOSTILE])
    listed = run_on_terminal("ls", server)
    assert "\\x1b]0;owned\\x07[bold]not bold[/bold]" in listed
    assert "\x1b]0;" not in listed
    assert "\x1b[1mResources (1)" in listed
    shown = run_on_terminal("read", server, "clock:///utc")
    # Where the server is slow to start, there is a spinner before; its line is cleared.
    assert shown.rpartition("\x1b[2K")[2] == "one\n\ttwo\\x1b[2Jthree\n"


def test_colours_are_on_a_terminal_only_and_not_where_nobody_wants_them(tmp_path: Path) -> None:
    hostile = record(1, method="tools/call", target="x\x1b[2J\nfake line", leg="client")
    capture = str(write(tmp_path / "a.jsonl", [hostile]))
    command = ["traffic", "grep", "", capture]
    coloured = run_on_terminal(*command)
    assert "\x1b[1mtools/call\x1b[0m x\\x1b[2J\\nfake line" in coloured
    for variables in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain = run_on_terminal(*command, **variables)
        assert "\x1b" not in plain
        assert "tools/call x\\x1b[2J\\nfake line" in plain


def test_blob_is_named_and_not_written_to_a_terminal() -> None:
    shown = run_on_terminal("read", demo_command("library"), "book:///all")
    assert "book:///chapter/1  text/plain" in shown
    assert "[image/png, " in shown
    assert "-o FILE writes it to a file" in shown


def test_progress_is_shown_on_a_terminal_and_gone_at_the_end() -> None:
    shown = run_on_terminal("call", demo_command("library"), "build_index", "seconds:=0.3")
    assert "page 20 of 20" in shown
    assert shown.endswith("2 × every\n")
