"""A secret that is planted wherever one can be is in no output: no file, stream, page, span or log line."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.cli.conftest import Invoke
from tests.cli.running import WAIT_SECONDS, Running
from tests.real.web_server import find_free_port

SERVER = Path(__file__).with_name("secretive_server.py")
PLACES = (
    "config header",
    "admin token",
    "argument",
    "elicitation answer",
    "error message",
    "log message",
    "request meta",
    "result member",
    "result meta",
    "result text",
    "server log",
    "uri password",
    "uri query",
)
SECRETS = {place: f"zQ{number}x{'7hGk2Lp9' * 3}{number}" for number, place in enumerate(PLACES)}
URI = f"https://me:{SECRETS['uri password']}@host.example/a?access_token={SECRETS['uri query']}"
REDACTED = b"[redacted:"


class Collector(ThreadingHTTPServer):
    """Takes whatever is sent to it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taking)
        self.bodies: list[bytes] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Taking(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Nothing: it is not what is tested."""


@contextmanager
def open_collector() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()


def write_config(directory: Path, level: str, log_format: str, port: int, collector: str) -> Path:
    authorization = {"Authorization": f"Bearer {SECRETS['config header']}"}
    notes = {"url": f"{collector}/mcp", "headers": authorization, "connect_timeout": 1}
    secretive = {"command": sys.executable, "args": [str(SERVER), "${SECRETS}"], "session": "per-client"}
    config = {
        "upstreams": {"s": secretive, "gone": notes},
        "capture": {"level": level, "directory": str(directory / "capture")},
        "audit": {"directory": str(directory / "audit")},
        "admin": {"port": port, "token": SECRETS["admin token"]},
        "tracing": {"enabled": True, "endpoint": collector},
        "logging": {"level": "debug", "format": log_format},
    }
    path = directory / "mcpmux.json"
    path.write_text(json.dumps(config))
    return path


def converse(mux: Running) -> list[Any]:
    """One client's session, with a secret in each place that it has: the answers."""
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "c", "version": "1"},
    }
    answers = [ask(mux, 1, "initialize", hello)]
    mux.send_json({"method": "notifications/initialized"})
    meta = {"com.example/client_secret": SECRETS["request meta"], "progressToken": 1}
    arguments = {"password": SECRETS["argument"], "plain": "plain text"}
    answers.append(ask(mux, 2, "tools/call", {"name": "s__tell", "arguments": arguments, "_meta": meta}))
    answers.append(ask(mux, 3, "resources/read", {"uri": f"s+{URI}"}))
    return answers


def ask(mux: Running, number: int, method: str, params: Any) -> Any:
    mux.send_json({"id": number, "method": method, "params": params})
    while True:
        message = mux.receive_json()
        if message.get("method") == "elicitation/create":
            content = {"password": SECRETS["elicitation answer"]}
            mux.send_json({"id": message["id"], "result": {"action": "accept", "content": content}})
        elif message.get("id") == number and "method" not in message:
            return message


def pages_of(port: int) -> dict[str, bytes]:
    """What the admin listener tells."""
    paths = ["/metrics", "/api/exchanges", "/api/upstreams", "/api/stats"]
    told = {path: get(port, path) for path in paths}
    for row in json.loads(told["/api/exchanges"])["rows"]:
        path = f"/api/exchanges/{row['row']}"
        told[path] = get(port, path)
        for message in json.loads(told[path])["messages"]:
            one = f"{path}/{message['record']['seq']}"
            told[one] = get(port, one)
    return told


def get(port: int, path: str) -> bytes:
    token = {"Authorization": f"Bearer {SECRETS['admin token']}"}
    with urlopen(Request(f"http://127.0.0.1:{port}{path}", headers=token), timeout=WAIT_SECONDS) as answer:
        body: bytes = answer.read()
        return body


def readings(invoke: Invoke, capture: Path, directory: Path) -> dict[str, bytes]:
    """What the commands say about the capture."""
    exported = {name: directory / f"exported.{name}" for name in ("har", "csv", "jsonl")}
    for name, path in exported.items():
        assert invoke("traffic", "export", str(capture), f"--{name}", str(path)).exit_code == 0
    told = {name: path.read_bytes() for name, path in exported.items()}
    for words in (["show", "2"], ["show", "3"], ["grep", "."], ["stats"], ["stats", "--json"]):
        result = invoke("traffic", *words, str(capture))
        told[" ".join(words)] = result.output.encode()
    return told


def assert_clean(outputs: dict[str, bytes]) -> None:
    found = [
        (output, place)
        for output, data in outputs.items()
        for place in PLACES
        if SECRETS[place].encode() in data
    ]
    assert found == []


@pytest.mark.parametrize(
    ("level", "log_format"), [("full", "console"), ("truncated", "json"), ("metadata", "json")]
)
def test_a_planted_secret_is_in_no_output(tmp_path: Path, invoke: Invoke, level: str, log_format: str):
    port = find_free_port()
    with open_collector() as collector:
        config = write_config(tmp_path, level, log_format, port, collector.url)
        secrets = json.dumps({place: SECRETS[place] for place in PLACES})
        with Running("serve", str(config), "--stdio", env={"SECRETS": secrets}) as mux:
            answers = converse(mux)
            pages = pages_of(port)
            mux.close_stdin()
            assert mux.wait() == 0, mux.stderr
        spans = b"\n".join(body for body in collector.bodies if b"tools/call" in body)
    for place in ("result member", "result meta", "result text", "error message"):
        assert SECRETS[place] in json.dumps(answers), f"the client must have it: {place}"
    files = {
        str(path): path.read_bytes()
        for folder in ("capture", "audit")
        for path in (tmp_path / folder).rglob("*")
        if path.is_file()
    }
    assert len(files) >= 2
    assert spans
    told = readings(invoke, tmp_path / "capture", tmp_path)
    assert_clean({"stderr": mux.stderr.encode(), "spans": spans, **files, **pages, **told})
    assert REDACTED in b"".join(pages.values())
    if level == "full":
        assert REDACTED in told["show 2"]
        assert b"plain text" in told["jsonl"]
