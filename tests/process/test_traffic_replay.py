"""`mcpmux traffic replay` and `mock` with a capture of real servers and real clients."""

from __future__ import annotations

import gzip
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcpmux.cli.serve import SERVERS
from mcpmux.traffic.capture.files import find_files
from tests.cli.invoking import Invoke
from tests.process.running import COMMAND, Running
from tests.traffic.made import Play, write

LEGACY = "2025-11-25"
INFO = {"name": "c", "version": "1"}
DEMO = [sys.executable, "-m"]


@pytest.fixture(scope="session")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record a folder of captures: of a modern client over HTTP, then of a legacy one on stdio."""
    folder = tmp_path_factory.mktemp("replay")
    servers = {name: {"command": DEMO[0], "args": ["-m", f"mcpmux.demo.{name}"]} for name in SERVERS}
    where = {"level": "full", "directory": str(folder / "capture")}
    config = folder / "mux.json"
    config.write_text(json.dumps({"upstreams": servers, "capture": where}))
    with Running("serve", str(config), "--http", "127.0.0.1:0") as mux:
        url = mux.line().strip()
        visits = [["ls", url], ["read", url, "notes+note:///welcome"], ["read", url, "library+book:///all"]]
        visits += [["call", url, "library__build_index", "seconds:=0.1"]]
        for visit in visits:
            with Running(*visit) as command:
                assert command.wait() == 0, command.stderr
        assert mux.stop() == 0, mux.stderr
    with Running("serve", str(config), "--stdio") as mux:
        live(mux)
        mux.close_stdin()
        assert mux.wait() == 0, mux.stderr
    return folder / "capture"


def live(server: Running) -> None:
    """Make the requests of a legacy client."""
    ask = _Asking(server)
    ask("initialize", {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": INFO})
    server.send_json({"method": "notifications/initialized"})
    ask("tools/list", {})
    ask("resources/read", {"uri": "notes+note:///client"})
    ask("resources/read", {"uri": "notes+note:///nothing"})
    prompt = {"type": "ref/prompt", "name": "notes__explain"}
    ask("completion/complete", {"ref": prompt, "argument": {"name": "name", "value": "c"}})
    counting = {"name": "library__build_index", "arguments": {"seconds": 0.1}}
    ask("tools/call", {**counting, "_meta": {"progressToken": "p"}})


def modern_part(capture: Path, folder: Path) -> Path:
    """Return the capture of the modern clients, not compressed."""
    [first, _] = find_files(capture)
    data = first.read_bytes()
    plain = folder / "modern.jsonl"
    plain.write_bytes(gzip.decompress(data) if first.suffix == ".gz" else data)
    return plain


class _Asking:
    def __init__(self, server: Running) -> None:
        self._server = server
        self._number = 0

    def __call__(self, method: str, params: dict[str, Any]) -> None:
        self._number += 1
        self._server.send_json({"id": self._number, "method": method, "params": params})
        while (message := self._server.receive_json()).get("id") != self._number:
            assert message["method"].startswith("notifications/")


@pytest.fixture(scope="session")
def mock_url(capture: Path) -> Iterator[str]:
    with Running("traffic", "mock", str(capture), "--listen", "127.0.0.1:0") as mock:
        yield mock.line().strip()
        assert mock.stop() == 0, mock.stderr


def replayed(invoke: Invoke, *args: str) -> dict[str, Any]:
    result = invoke("traffic", "replay", *args, "--speed", "max", "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == (0 if report["clean"] else 1), result.stderr
    assert isinstance(report, dict)
    return report


def test_replayed_to_the_same_servers_nothing_is_different(
    invoke: Invoke, capture: Path, demo_url: str
) -> None:
    report = replayed(invoke, str(capture), "--to", demo_url, "--with-tools")
    assert report["exchanges"] == []
    assert report["counts"]["same"] == sum(report["counts"].values()) > 15
    assert report["methods"]["initialize"]["same"] == 1
    assert report["methods"]["tools/call"]["same"] == 2
    assert report["latencyMs"]["resources/read"]["count"] == 4


def test_replayed_to_its_mock_nothing_is_different(invoke: Invoke, capture: Path, mock_url: str) -> None:
    report = replayed(invoke, str(capture), "--to", mock_url, "--with-tools")
    assert report["exchanges"] == []
    assert report["counts"]["same"] == sum(report["counts"].values())


@pytest.mark.parametrize("name", ["notes", "clock"])
def test_a_mock_of_an_upstream_stands_for_it_on_stdio(invoke: Invoke, capture: Path, name: str) -> None:
    command = shlex.join([*COMMAND, "traffic", "mock", str(capture), "--stdio", "--upstream", name])
    report = replayed(invoke, str(capture), "--to", command, "--upstream", name)
    assert report["exchanges"] == []


def test_differences_are_shown_where_they_are(invoke: Invoke, capture: Path, tmp_path: Path) -> None:
    first = modern_part(capture, tmp_path)
    changed = tmp_path / "changed.jsonl"
    changed.write_bytes(first.read_bytes().replace(b"found out which revision", b"guessed which revision"))
    command = shlex.join([*COMMAND, "traffic", "mock", str(changed), "--stdio"])
    result = invoke("traffic", "replay", str(first), "--to", command, "--speed", "max")
    assert result.exit_code == 1
    assert "resources/read notes+note:///welcome (exchange" in result.stdout
    assert "result.contents[0].text: " in result.stdout
    assert result.stdout.rstrip().splitlines()[-1].endswith("1 different, 1 skipped")
    assert "skipped: 1: it calls a tool; --with-tools sends it" in result.stderr
    ignore = ["--ignore", "result.contents[*].text"]
    ignored = invoke("traffic", "replay", str(first), "--to", command, "--speed", "max", *ignore)
    assert ignored.exit_code == 0


def test_a_server_that_is_not_there_is_told(invoke: Invoke, capture: Path) -> None:
    result = invoke("traffic", "replay", str(capture), "--to", "tcp://127.0.0.1:1", "--speed", "max")
    assert result.exit_code == 1
    assert "connection refused" in result.stderr


def test_a_cut_capture_is_replayed_up_to_the_cut(invoke: Invoke, capture: Path, tmp_path: Path) -> None:
    first = modern_part(capture, tmp_path)
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(first.read_bytes()[:-40])
    command = shlex.join([*COMMAND, "traffic", "mock", str(first), "--stdio"])
    result = invoke("traffic", "replay", str(cut), "--to", command, "--speed", "max")
    assert result.exit_code == 0
    assert "the file was cut in the middle of this line" in result.stderr
    assert " same" in result.stdout


def bad_captures(folder: Path) -> dict[str, list[str]]:
    """Write bad captures. Map each problem to the arguments that replay it."""
    (folder / "empty.jsonl").write_bytes(b"")
    (folder / "nonsense.jsonl").write_bytes(b"{}\n\x00\xff\n")
    (folder / "future.jsonl").write_bytes(b'{"v":2,"run":"a","time":"","kind":"request"}\n')
    (folder / "none").mkdir()
    play = Play()
    play.call()
    write(folder / "tools.jsonl", play.records)
    play.read()
    play.read(upstream="web")
    write(folder / "two.jsonl", play.records)
    play = Play()
    play.put(None, id=1, method="resources/read")
    write(folder / "metadata.jsonl", play.records)
    return {
        "there is no such file": [f"{folder}/missing.jsonl"],
        "there are no capture files in this folder": [f"{folder}/none"],
        "there is no message in this capture": [f"{folder}/empty.jsonl"],
        "not read: ": [f"{folder}/nonsense.jsonl"],
        "capture format version 2": [f"{folder}/future.jsonl"],
        "it calls a tool; --with-tools sends it": [f"{folder}/tools.jsonl"],
        "the request is without its message": [f"{folder}/metadata.jsonl"],
        "choose one with --upstream: docs, web": [f"{folder}/two.jsonl", "--leg", "upstream"],
        "`nobody` is not in the capture; there are: docs": [f"{folder}/two.jsonl", "--upstream", "nobody"],
        "is on another machine: --allow-remote": [f"{folder}/two.jsonl", "--to", "https://example.com/mcp"],
        "--to: expected": [f"{folder}/two.jsonl", "--to", "http://"],
        "expected a factor such as": [f"{folder}/two.jsonl", "--speed", "fast"],
        "--ignore: expected a path": [f"{folder}/two.jsonl", "--ignore", "a..[x"],
    }


def test_mistakes_and_bad_captures_are_told_in_clear_words(
    invoke: Invoke, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for words, args in bad_captures(tmp_path).items():
        with subtests.test(words):
            result = invoke("traffic", "replay", "--to", "http://127.0.0.1:1/mcp", *args)
            assert (result.exit_code, result.stdout) == (2, "")
            assert words in " ".join(result.stderr.split())
            assert "Traceback" not in result.stderr


def test_a_capture_without_answers_cannot_be_served(invoke: Invoke, tmp_path: Path) -> None:
    bad_captures(tmp_path)
    result = invoke("traffic", "mock", f"{tmp_path}/metadata.jsonl")
    assert result.exit_code == 2
    assert "nothing in this capture can be served: 1 no answer" in result.stderr
