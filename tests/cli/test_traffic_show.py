"""`mcpmux traffic show` omits changes of order and spelling, and cleans texts for a terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from mcpmux.cli.console import is_screen
from mcpmux.cli.traffic.messages import json_line
from mcpmux.protocol.raw_json import Raw
from tests.cli.invoking import Invoke
from tests.traffic.made import Play, record, write


def passed_on(tmp_path: Path, came: bytes, went: bytes) -> str:
    """Write a capture of a notification that came to mcpmux and went on, and return its path."""
    play = Play()
    play.call()
    here: dict[str, Any] = {"kind": "notification", "method": "notifications/progress", "exchange": 1}
    play.put(leg="upstream", peer="docs", message=Raw(came), size=len(came), **here)
    play.put(direction="out", message=Raw(went), size=len(went), **here)
    return str(write(tmp_path / "x.jsonl", play.records))


def test_where_jsonrpc_stands_is_no_change(invoke: Invoke, tmp_path: Path):
    came = b'{"method":"notifications/progress","params":{"a":1},"jsonrpc":"2.0"}'
    went = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"a":1}}'
    lines = invoke("traffic", "show", "1", passed_on(tmp_path, came, went)).stdout.splitlines()
    assert lines[-1] == "  the same but for order and spelling (68 B, 68 B)"


def test_what_was_changed_beside_that_is_shown(invoke: Invoke, tmp_path: Path):
    came = b'{"x":0,"params":{"a":1},"method":"notifications/progress","jsonrpc":"2.0"}'
    went = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"a":2},"x":0}'
    lines = invoke("traffic", "show", "1", passed_on(tmp_path, came, went)).stdout.splitlines()
    assert [line for line in lines if line.startswith(("  -", "  +"))] == ['  -    "a": 1', '  +    "a": 2']


def test_a_run_that_does_not_have_it_is_named(invoke: Invoke, tmp_path: Path):
    file = passed_on(tmp_path, b"{}", b"{}")
    for args in (["1"], ["--message", "1"]):
        result = invoke("traffic", "show", *args, "--run", "beef", file)
        assert result.exit_code == 1
        assert "1 of run beef in what was read" in result.stderr


def test_an_exchange_is_whole_although_the_files_of_two_runs_alternate(invoke: Invoke, tmp_path: Path):
    earlier, later = Play("earlier"), Play("later")
    for run in (earlier, later):
        run.read()
    file = write(tmp_path / "file.jsonl", [*earlier.records[:2], *later.records, *earlier.records[2:]])
    shown = invoke("traffic", "show", "1", str(file))
    assert "run later, 4 messages" in shown.stdout
    assert shown.stderr == "other runs have an exchange 1, too: --run earlier\n"
    assert "run earlier, 4 messages" in invoke("traffic", "show", "1", str(file), "--run", "earlier").stdout


def test_a_terminal_gets_no_text_that_moves_other_text(monkeypatch: pytest.MonkeyPatch):
    strange = record(client="a\u202eb\u009bc", body={})
    assert "\u202e" in json_line(strange)
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        shown, screen = json_line(strange), is_screen()
        monkeypatch.undo()
    os.close(ours)
    assert screen
    assert "\\u202e" in shown
    assert shown.isprintable()
