"""A secret that is planted wherever one can be is in no output: no file, stream, page, span or log line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.process import free_port
from tests.cli.invoking import Invoke
from tests.process.running import Running
from tests.process.secretive import (
    REDACTED,
    SECRETS,
    TOLD_THE_CLIENT,
    URI,
    Mux,
    Stream,
    ask,
    ask_over_http,
    assert_clean,
    call_params,
    converse,
    open_collector,
    write_config,
)

STREAMS = ("/api/exchanges/stream", "/api/traffic/stream")
CLIENT_COMMANDS = (
    ("check",),
    ("read", f"s+{URI}"),
    ("call", "s__tell", f"password={SECRETS['argument']}", f"pin={SECRETS['path in argument']}"),
)


def readings(invoke: Invoke, capture: Path, directory: Path) -> dict[str, bytes]:
    """Return the outputs of the commands that read the capture."""
    exported = {name: directory / f"exported.{name}" for name in ("har", "csv", "jsonl")}
    for name, path in exported.items():
        assert invoke("traffic", "export", str(capture), f"--{name}", str(path)).exit_code == 0
    outputs = {name: path.read_bytes() for name, path in exported.items()}
    for words in (
        ["show", "2"],
        ["show", "3"],
        ["show", "2", "--full", "--json"],
        ["grep", "."],
        ["grep", ".", "--by", "exchange"],
        ["grep", ".", "--json"],
        ["tail", "--once", "-n", "1000"],
        ["tail", "--once", "-n", "1000", "--json"],
        ["stats"],
        ["stats", "--json"],
    ):
        result = invoke("traffic", *words, str(capture))
        assert result.exit_code == 0, result.output
        outputs[" ".join(words)] = result.output.encode()
    return outputs


@pytest.mark.parametrize(("level", "log_format"), [("full", "console"), ("metadata", "json")])
def test_a_planted_secret_is_in_no_output(tmp_path: Path, invoke: Invoke, level: str, log_format: str):
    ports = (free_port(), free_port())
    with open_collector() as collector:
        with Mux(tmp_path, level, log_format, ports, collector.url) as mux:
            mux.line("stderr", containing=f":{ports[1]}")
            mux.line("stderr", containing=f":{ports[0]}")
            streams = {path: Stream(mux, path) for path in STREAMS}
            answers = converse(mux)
            answers.append(json.loads(ask_over_http(mux)))
            pages = mux.pages()
            mux.close_stdin()
            assert mux.wait() == 0, mux.stderr
        outputs = {path: stream.whole() for path, stream in streams.items()}
        outputs["spans"] = b"\n".join(body for body in collector.bodies if b"tools/call" in body)
        outputs["all that was sent"] = b"\n".join(collector.bodies)
    for place in TOLD_THE_CLIENT:
        assert SECRETS[place] in json.dumps(answers), f"the client must have it: {place}"
    for path in STREAMS:
        assert b"resources/read" in outputs[path]
    assert outputs["spans"]
    files = mux.files()
    assert len(files) >= 2
    outputs |= {"stderr": mux.stderr.encode(), **files, **pages, **readings(invoke, mux.capture, tmp_path)}
    assert_clean(outputs)
    assert REDACTED in b"".join(pages.values())
    assert REDACTED in outputs["stderr"]
    if level == "full":
        assert REDACTED in outputs["show 2"]
        assert REDACTED in outputs["/api/traffic/stream"]
        assert b"plain text" in outputs["jsonl"]
        assert_clean(replay_and_mock(mux))


def test_a_planted_secret_is_in_nothing_that_is_told_live(tmp_path: Path):
    ports = (free_port(), free_port())
    token = {"MCPMUX_ADMIN_TOKEN": SECRETS["admin token"]}
    with open_collector() as collector, Mux(tmp_path, "full", "console", ports, collector.url) as mux:
        mux.line("stderr", containing=f":{ports[0]}")
        commands = {
            "url": ("--url", mux.admin),
            "url, json": ("--url", mux.admin, "--json"),
            "files": (str(mux.capture), "-n", "0"),
            "files, by exchange": (str(mux.capture), "-n", "0", "--by", "exchange"),
        }
        outputs = {}
        tails = {
            name: Running("traffic", "tail", *words, "--log-level", "debug", env=token)
            for name, words in commands.items()
        }
        try:
            for tail in tails.values():
                until_it_tells(tail, lambda: ask(mux, 0, "ping", {}))
            converse(mux)
            for name, tail in tails.items():
                lines = [tail.line(containing="read")]
                tail.stop()
                outputs[name] = "".join([*lines, tail.stdout, tail.stderr]).encode()
        finally:
            for tail in tails.values():
                tail.__exit__(None, None, None)
        mux.close_stdin()
        assert mux.wait() == 0, mux.stderr
    assert all(b"read" in text for text in outputs.values())
    assert_clean(outputs)


def until_it_tells(tail: Running, ping: Callable[[], object]) -> None:
    """Have something pass until the tail shows it: then it has begun."""
    for _ in range(600):
        ping()
        if tail.says_something(0.1):
            return
    raise AssertionError(f"it tells nothing: {tail.stderr}")


def replay_and_mock(mux: Mux) -> dict[str, bytes]:
    """Return the report of a replay to a server with other answers, and the log of a mock."""
    redact = ("--redact", str(mux.config), "--log-level", "debug")
    replay = ("traffic", "replay", str(mux.capture), "--upstream", "s", "--with-tools", "--speed", "max")
    outputs = {}
    for name, more in {"replay": (), "replay, json": ("--json",)}.items():
        with Running(*replay, "--to", mux.command("otherwise "), *redact, *more) as replaying:
            assert replaying.wait() == 1, replaying.stderr
            outputs[name] = (replaying.stdout + replaying.stderr).encode()
        assert b"otherwise" in outputs[name], outputs[name]
    with Running("traffic", "mock", str(mux.capture), "--stdio", *redact) as mock:
        converse(mock)
        ask(mock, 5, "resources/read", {"uri": f"other+{URI}"})
        ask(mock, 6, "tools/call", {**call_params(), "name": SECRETS["pattern in argument"]})
        mock.close_stdin()
        mock.wait()
        outputs["log of the mock"] = mock.stderr.encode()
    assert b"not in the capture" in outputs["log of the mock"]
    return outputs


@pytest.mark.parametrize("words", CLIENT_COMMANDS, ids=lambda words: words[0])
def test_a_planted_secret_is_in_no_log_of_a_client(tmp_path: Path, words: tuple[str, ...]):
    config = write_config(tmp_path, "off", "console", (8490, 8484), None)
    command, *arguments = words
    with Running(command, str(config), *arguments, "--log-level", "debug") as client:
        client.wait()
        log = [line for line in client.stderr.splitlines() if line[:2] == "20"]
    assert "upstream says" in "".join(log)
    assert_clean({"log": "\n".join(log).encode()})
