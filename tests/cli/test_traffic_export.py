"""Where `mcpmux traffic export` writes to: never over a device, a pipe or another format."""

from __future__ import annotations

import csv
import json
import os
import stat
import threading
from pathlib import Path

import pytest

from tests.cli.invoking import Invoke
from tests.process.test_process import run_on_terminal
from tests.traffic.made import Play, write

HARS, CSVS = "--har", "--csv"


@pytest.fixture
def capture(tmp_path: Path) -> str:
    """Write a capture of two messages of one exchange."""
    play = Play()
    play.read("docs+file:///a.md")
    return str(write(tmp_path / "in.jsonl", play.records))


@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_is_written_to_and_not_replaced(invoke: Invoke, capture: str, tmp_path: Path, linked: bool):
    pipe, name = tmp_path / "pipe", tmp_path / ("link" if linked else "pipe")
    os.mkfifo(pipe)
    if linked:
        name.symlink_to(pipe)
    contents: list[bytes] = []
    reader = threading.Thread(target=lambda: contents.append(pipe.read_bytes()), daemon=True)
    reader.start()
    result = invoke("traffic", "export", capture, CSVS, str(name))
    reader.join(10)
    assert result.exit_code == 0, result.stderr
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert name.is_symlink() == linked
    assert next(csv.reader(contents[0].decode().splitlines()))[0] == "time"
    assert f"4 messages, {len(contents[0])} B" in result.stderr


def test_a_link_to_a_file_stays_a_link(invoke: Invoke, capture: str, tmp_path: Path):
    file, link = tmp_path / "out.har", tmp_path / "link.har"
    link.symlink_to(file)
    assert invoke("traffic", "export", capture, HARS, str(link)).exit_code == 0
    assert link.is_symlink()
    assert json.loads(file.read_text())["log"]["version"] == "1.2"


@pytest.mark.parametrize("name", ["-", "same"])
def test_two_formats_do_not_go_to_the_same_place(
    invoke: Invoke, capture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.chdir(tmp_path)
    other = "-" if name == "-" else "./same"
    result = invoke("traffic", "export", capture, HARS, name, CSVS, other)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "two formats cannot go to the same place" in result.stderr
    assert not (tmp_path / "same").exists()


def test_what_cannot_be_finished_leaves_what_was_there(invoke: Invoke, capture: str, tmp_path: Path):
    folder = tmp_path / "out"
    folder.mkdir()
    result = invoke("traffic", "export", capture, CSVS, str(folder))
    assert (result.exit_code, "cannot write: is a directory" in result.stderr) == (1, True)
    assert list(folder.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


@pytest.mark.parametrize("command", [["export", "--csv", "-"], ["grep", ""], ["stats"], ["stats", "--json"]])
@pytest.mark.parametrize("content", [b"\x1f\x8b and no more", b"\x00\x01\n\xff\n", None])
def test_an_unreadable_file_is_a_failure_and_the_rest_is_exported(
    invoke: Invoke, capture: str, tmp_path: Path, command: list[str], content: bytes | None
):
    damaged = tmp_path / "damaged.jsonl"
    if content is None:
        damaged.symlink_to("/proc/self/mem")  # opens, and cannot be read from its beginning
    else:
        damaged.write_bytes(content)
    verb, *rest = command
    result = invoke("traffic", verb, *rest, str(damaged), capture)
    assert result.exit_code == 1, result.stdout
    assert f"Error: nothing could be read of {damaged}" in result.stderr.replace("\n", " ")
    assert "resources/read" in result.stdout


def test_a_file_that_was_cut_is_no_failure(invoke: Invoke, capture: str):
    """Accept a capture without its end, which a killed mcpmux leaves."""
    with Path(capture).open("ab") as file:
        file.write(b'{"v":1,"run":"a"')
    result = invoke("traffic", "export", capture, "--csv", "-")
    assert result.exit_code == 0, result.stderr
    assert "cut in the middle" in result.stderr


@pytest.mark.process
@pytest.mark.parametrize("format_", ["--har", "--csv", "--jsonl"])
def test_a_terminal_gets_no_control_characters(tmp_path: Path, invoke: Invoke, format_: str):
    play = Play()
    play.read("docs+file:///\x1b]0;owned\x07\x9b2J.md")
    capture = str(write(tmp_path / "in.jsonl", play.records))
    shown = run_on_terminal("traffic", "export", capture, format_, "-")
    assert "resources/read" in shown
    assert not set(shown) & {"\x1b", "\x07", "\x9b", "\r"}
    if format_ == CSVS:
        assert "\x1b]0;owned\x07\x9b2J" in invoke("traffic", "export", capture, format_, "-").stdout
