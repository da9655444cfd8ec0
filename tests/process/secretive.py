"""A conversation with a secret in each place that it has, and everything that tells of it."""

from __future__ import annotations

import json
import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.process.running import WAIT_SECONDS, Running

SERVER = Path(__file__).with_name("secretive_server.py")
PLACES = (
    "config header",
    "admin token",
    "argument",
    "argument cookie",
    "client authorization",
    "client cookie",
    "elicitation answer",
    "error message",
    "log message",
    "request meta",
    "result cookie",
    "result member",
    "result meta",
    "result text",
    "server log",
    "uri password",
    "uri query",
    "key in argument",
    "path in argument",
    "path in result",
    "pattern in argument",
    "pattern in error",
    "pattern in result",
    "pattern in server log",
    "pattern in uri",
)
SECRETS = {
    place: f"{'ACME-' if place.startswith('pattern') else ''}zQ{number}x{'7hGk2Lp9' * 3}{number}"
    for number, place in enumerate(PLACES)
}
TOLD_THE_CLIENT = ("result member", "result meta", "result text", "error message", "path in result")
URI = (
    f"https://me:{SECRETS['uri password']}@host.example/{SECRETS['pattern in uri']}"
    f"?access_token={SECRETS['uri query']}"
)
REDACTION = {
    "keys": ["badge number"],
    "paths": ["params.arguments.pin", "result.structuredContent.pin"],
    "patterns": {"acme": "ACME-[0-9A-Za-z]+"},
}
REDACTED = b"[redacted:"


class Collector(ThreadingHTTPServer):
    """Keeps the bodies of all requests."""

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
        """Log no requests, as this log is not under test."""


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


def write_config(
    directory: Path, level: str, log_format: str, ports: tuple[int, int], url: str | None
) -> Path:
    """Write the configuration. `ports`: of admin listener and clients. `url`: of the collector, or None."""
    secrets, path = directory / "secrets.json", directory / "mcpmux.json"
    secrets.write_text(json.dumps(SECRETS))
    authorization = {"Authorization": f"Bearer {SECRETS['config header']}"}
    gone = {"url": f"{url}/mcp", "headers": authorization, "connect_timeout": 1, "enabled": url is not None}
    args = [str(SERVER), str(secrets)]
    config = {
        "upstreams": {
            "s": {"command": sys.executable, "args": args, "session": "per-client"},
            "gone": gone if url is not None else {**gone, "url": "http://127.0.0.1:9"},
        },
        "listeners": {"stdio": True, "http": [f"127.0.0.1:{ports[1]}"]},
        "redaction": REDACTION,
        "capture": {"level": level, "directory": str(directory / "capture")},
        "audit": {"directory": str(directory / "audit")},
        "admin": {"port": ports[0], "token": SECRETS["admin token"]},
        "tracing": {"enabled": url is not None, "endpoint": url or "http://127.0.0.1:9"},
        "logging": {"level": "debug", "format": log_format},
    }
    path.write_text(json.dumps(config))
    return path


class Mux(Running):
    """mcpmux with everything that watches, in front of the secretive server. Made by `open_mux`."""

    def __init__(
        self, directory: Path, level: str, log_format: str, ports: tuple[int, int], url: str
    ) -> None:
        self.admin, self.http = (f"http://127.0.0.1:{port}" for port in ports)
        self.capture, self.audit = directory / "capture", directory / "audit"
        self.secrets = directory / "secrets.json"
        self.config = write_config(directory, level, log_format, ports, url)
        super().__init__("serve", str(self.config))

    def command(self, *words: str) -> str:
        """Return the secretive server as a command line."""
        return shlex.join([sys.executable, str(SERVER), str(self.secrets), *words])

    def get(self, path: str) -> Request:
        """Return a request to the admin listener."""
        return Request(f"{self.admin}{path}", headers={"Authorization": f"Bearer {SECRETS['admin token']}"})

    def read(self, path: str) -> bytes:
        with urlopen(self.get(path), timeout=WAIT_SECONDS) as answer:
            body: bytes = answer.read()
            return body

    def pages(self) -> dict[str, bytes]:
        """Read the pages of the admin listener, by path."""
        paths = ["/metrics", "/api/exchanges", "/api/upstreams", "/api/stats", "/health/ready"]
        pages = {path: self.read(path) for path in paths}
        for row in json.loads(pages["/api/exchanges"])["rows"]:
            path = f"/api/exchanges/{row['row']}"
            pages[path] = self.read(path)
            for message in json.loads(pages[path])["messages"]:
                page = f"{path}/{message['record']['seq']}"
                pages[page] = self.read(page)
        return pages

    def files(self) -> dict[str, bytes]:
        """Read all files of the capture and the audit log, by path."""
        folders = (self.capture, self.audit)
        return {
            str(path): path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()
        }


class Stream:
    """A stream of the admin listener, read until mcpmux ends it. It is there when this is made."""

    def __init__(self, mux: Mux, path: str) -> None:
        self.data = b""
        self._answer = urlopen(mux.get(path), timeout=WAIT_SECONDS)
        self.data += self._answer.readline()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with self._answer:
            while piece := self._answer.read1(65536):
                self.data += piece

    def whole(self) -> bytes:
        """Wait for the end, and return everything that came."""
        self._thread.join(WAIT_SECONDS)
        return self.data


def converse(party: Running) -> list[Any]:
    """Hold one client's session over stdio, with a secret in each of its places. Return the answers."""
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "c", "version": "1"},
    }
    answers = [ask(party, 1, "initialize", hello)]
    party.send_json({"method": "notifications/initialized"})
    answers.append(ask(party, 2, "tools/call", call_params()))
    answers.append(ask(party, 3, "resources/read", {"uri": f"s+{URI}"}))
    answers.append(ask(party, 4, "tools/call", {"name": "s__tell", "arguments": {"plain": "plain text"}}))
    return answers


def call_params() -> dict[str, Any]:
    meta = {"com.example/client_secret": SECRETS["request meta"], "progressToken": 1}
    arguments = {
        "password": SECRETS["argument"],
        "headers": {"Cookie": f"sid={SECRETS['argument cookie']}"},
        "badgeNumber": SECRETS["key in argument"],
        "pin": SECRETS["path in argument"],
        "note": f"of {SECRETS['pattern in argument']}",
        "plain": "plain text",
    }
    return {"name": "s__tell", "arguments": arguments, "_meta": meta}


def ask(party: Running, number: int, method: str, params: Any) -> Any:
    party.send_json({"id": number, "method": method, "params": params})
    while True:
        message = party.receive_json()
        if message.get("method") == "elicitation/create":
            content = {"password": SECRETS["elicitation answer"]}
            party.send_json({"id": message["id"], "result": {"action": "accept", "content": content}})
        elif message.get("id") == number and "method" not in message:
            return message


def ask_over_http(mux: Mux) -> bytes:
    """Make a modern client's request, with secrets in its headers and its parameters."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "h", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    uri = f"s+{URI}"
    body = {"jsonrpc": "2.0", "id": 9, "method": "resources/read", "params": {"uri": uri, "_meta": meta}}
    headers = {
        "Authorization": f"Bearer {SECRETS['client authorization']}",
        "Cookie": f"sid={SECRETS['client cookie']}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "resources/read",
        "Mcp-Name": uri,
    }
    request = Request(f"{mux.http}/mcp", data=json.dumps(body).encode(), headers=headers, method="POST")
    with urlopen(request, timeout=WAIT_SECONDS) as answer:
        content: bytes = answer.read()
        return content


def assert_clean(outputs: dict[str, bytes]) -> None:
    """Check that no output has a secret in it."""
    leaks = [
        (output, place)
        for output, data in outputs.items()
        for place in PLACES
        if SECRETS[place].encode() in data
    ]
    assert leaks == []
