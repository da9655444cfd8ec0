"""Requests of benchmarks in both eras, and a client that sends one at a time and checks each answer."""

from __future__ import annotations

import socket
import time
from collections.abc import Container, Sequence
from http.client import HTTPException, HTTPResponse
from urllib.parse import urlsplit

import msgspec

from benchmarks.process import MeasurementFailed
from benchmarks.upstream import LEGACY, MODERN, TEXT_BYTES
from mcpmux.protocol import method as m
from mcpmux.protocol.call import CLIENT_CAPABILITIES, CLIENT_INFO, META, VERSION
from mcpmux.protocol.envelope import encode_notification, encode_request, raw
from mcpmux.protocol.headers import method_headers, name_headers
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import NEWEST, NEWEST_LEGACY

SILENCE_SECONDS = 30  # after which a measurement is given up
SHOWN_BYTES = 500  # of a wrong answer
PAGE_LIMIT = 10_000  # of a list that is walked
CLIENT = {"name": "mcpmux-benchmark", "version": "1"}
SUBJECTS = {m.RESOURCES_READ: "uri", m.TOOLS_CALL: "name", m.RESOURCES_LIST: "cursor"}
"""Method -> the parameter that says what is asked for."""

Headers = Sequence[tuple[str, str]]


class Content(msgspec.Struct):
    """A member of `contents` or `content`."""

    text: str


class Result(msgspec.Struct):
    """The members of results that a benchmark looks at."""

    contents: list[Content] = []
    content: list[Content] = []
    resources: list[dict[str, str]] = []
    nextCursor: str | None = None  # noqa: N815 - the protocol's spelling
    protocolVersion: str = NEWEST_LEGACY  # noqa: N815


class Response(msgspec.Struct):
    """A JSON-RPC response."""

    id: int
    result: Result


def params_of(method: str, subject: str) -> Fields:
    """Return the parameters of a request; an empty subject is left out."""
    return {SUBJECTS[method]: raw(subject)} if subject else {}


def encode(era: str, method: str, params: Fields, number: int = 1) -> bytes:
    """Encode a request with the id `number`."""
    if era == MODERN:
        meta = {VERSION: NEWEST, CLIENT_INFO: CLIENT, CLIENT_CAPABILITIES: {}}
        params = {**params, META: raw(meta)}
    return encode_request(number, method, params)


def decode(data: bytes, numbers: Container[int] = (1,)) -> Response:
    """Decode the answer to one of the requests with these ids. Raises MeasurementFailed if it is none."""
    try:
        response = msgspec.json.decode(data, type=Response)
    except msgspec.DecodeError:
        raise MeasurementFailed(f"not an answer: {data[:SHOWN_BYTES]!r}") from None
    if response.id not in numbers:
        raise MeasurementFailed(f"an answer to {response.id}, which was not asked: {data[:SHOWN_BYTES]!r}")
    return response


def check_text(result: Result, size: int) -> None:
    """Raise MeasurementFailed unless a result has one text of `size` characters."""
    texts = [len(part.text) for part in (*result.contents, *result.content)]
    if texts != [size]:
        raise MeasurementFailed(f"texts of {texts} characters came, not one of {size}")


class Client:
    """A connection over HTTP, with one request at a time. It opens a session if its era has them."""

    def __init__(self, url: str, era: str = MODERN) -> None:
        parts = urlsplit(url)
        self._era = era
        self._target = parts
        self._session: Headers = ()
        self.socket = socket.create_connection((parts.hostname, parts.port), SILENCE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __repr__(self) -> str:
        return f"<Client of {self._target.netloc}>"

    def open(self) -> Client:
        """Do what must come before the first request."""
        if self._era == LEGACY:
            params = {"protocolVersion": NEWEST_LEGACY, "capabilities": {}, "clientInfo": CLIENT}
            self._send(encode_request(1, m.INITIALIZE, params))
            response, body = self._receive()
            session = response.headers["Mcp-Session-Id"]
            version = ("MCP-Protocol-Version", decode(body).result.protocolVersion)
            self._session = (version, ("Mcp-Session-Id", session)) if session else (version,)
            self._send(encode_notification(m.INITIALIZED))
            self._receive()
        return self

    def close(self) -> None:
        """Close the connection. A session stays."""
        self.socket.close()

    def frame(self, method: str, subject: str, number: int = 1, headers: Headers = ()) -> bytes:
        """Return a request of this client as bytes of HTTP."""
        return self._frame_of(method, params_of(method, subject), number, headers)

    def send(self, method: str, subject: str) -> None:
        """Send a request."""
        self.post(method, params_of(method, subject))

    def post(self, method: str, params: Fields) -> None:
        """Send a request with these parameters."""
        self.socket.sendall(self._frame_of(method, params))

    def get_stream(self) -> None:
        """Open the stream of the session, whose events come to the `socket`."""
        self.socket.sendall(self._message("GET", (("Accept", "text/event-stream"),)))

    def receive(self) -> Result:
        """Receive the answer to the last request. Raises MeasurementFailed, OSError."""
        return decode(self._receive()[1]).result

    def read(self, uri: str) -> None:
        """Read a small resource and check it. Raises MeasurementFailed, OSError."""
        self.send(m.RESOURCES_READ, uri)
        check_text(self.receive(), TEXT_BYTES)

    def _frame_of(self, method: str, params: Fields, number: int = 1, headers: Headers = ()) -> bytes:
        if self._era == MODERN:
            headers = (*method_headers(method, NEWEST), *name_headers(method, params), *headers)
        return self._post(encode(self._era, method, params, number), headers)

    def _post(self, body: bytes, headers: Headers = ()) -> bytes:
        fields = (
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
            ("Content-Length", str(len(body))),
        )
        return self._message("POST", (*fields, *headers)) + body

    def _message(self, method: str, headers: Headers) -> bytes:
        fields = (("Host", self._target.netloc), *headers, *self._session)
        head = "".join(f"{name}: {value}\r\n" for name, value in fields)
        return f"{method} {self._target.path} HTTP/1.1\r\n{head}\r\n".encode()

    def _send(self, body: bytes) -> None:
        self.socket.sendall(self._post(body))

    def _receive(self) -> tuple[HTTPResponse, bytes]:
        """Return a response, and the message in its body or in the last event of its body."""
        response = HTTPResponse(self.socket, method="POST")
        try:
            response.begin()
            body = response.read()
        except HTTPException as error:
            raise MeasurementFailed(f"no HTTP: {error!r}") from None
        if response.status not in (200, 202):
            raise MeasurementFailed(f"status {response.status}: {body[:SHOWN_BYTES]!r}")
        if response.headers.get_content_type() == "text/event-stream":
            body = [line[5:] for line in body.splitlines() if line.startswith(b"data:")][-1]
        return response, body


def first_answer(url: str, uri: str) -> float:
    """Read a resource, and return when the answer was there."""
    client = Client(url)
    client.read(uri)
    client.close()
    return time.perf_counter()


def timed_walk(url: str, expected: int) -> float:
    """Return the seconds that listing all resources takes. Raises MeasurementFailed if some are missing."""
    client = Client(url)
    began = time.perf_counter()
    count, cursor = 0, ""
    for _ in range(PAGE_LIMIT):
        client.send(m.RESOURCES_LIST, cursor)
        page = client.receive()
        count += len(page.resources)
        if page.nextCursor is None:
            break
        cursor = page.nextCursor
    seconds = time.perf_counter() - began
    client.close()
    if count != expected:
        raise MeasurementFailed(f"{count} resources are listed, not {expected}")
    return seconds
