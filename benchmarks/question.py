"""What the load generator asks, in both eras, and what the answer must be.

A request is encoded once; sending it again costs putting in another id. Every answer is decoded and compared,
so a fast wrong answer does not count as a fast answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from benchmarks.connection import Answer, Connection, WrongAnswer
from benchmarks.upstream import MODERN
from mcpmux.protocol import method as m
from mcpmux.protocol.call import CLIENT_CAPABILITIES, CLIENT_INFO, META, VERSION
from mcpmux.protocol.envelope import encode_notification, encode_request, raw
from mcpmux.protocol.headers import method_headers, name_headers
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import NEWEST, NEWEST_LEGACY

FIRST_ID = 1_000_000  # ids of one width keep the Content-Length
LAST_ID = 9_999_999
PAGE_LIMIT = 10_000  # of a list that is walked
CLIENT = {"name": "mcpmux-benchmark", "version": "1"}

Headers = Sequence[tuple[str, str]]


class Content(msgspec.Struct):
    """A member of `contents` or `content`; of the text only the length is compared."""

    text: msgspec.Raw
    uri: str | None = None


class Result(msgspec.Struct):
    """What is looked at in a result."""

    contents: list[Content] = []
    content: list[Content] = []
    resources: list[dict[str, str]] = []
    nextCursor: str | None = None  # noqa: N815 - the protocol's spelling
    protocolVersion: str = NEWEST_LEGACY  # noqa: N815


class Response(msgspec.Struct):
    """A JSON-RPC response, as far as it is looked at."""

    id: int
    result: Result


decode_response = msgspec.json.Decoder(Response).decode


class Subject(NamedTuple):
    """A URI or a tool that is asked for, and the URI that the answer must name."""

    name: str
    answered: str


class Question:
    """One request that is sent again and again."""

    def __init__(self, message: bytes, uri: str | None, size: int) -> None:
        """`message` has the id FIRST_ID. Its answer holds `size` characters of `uri` (None: of a tool)."""
        self._before, _, self._behind = message.rpartition(str(FIRST_ID).encode())
        self._uri = uri
        self._text_bytes = size + 2  # as JSON: the texts of the benchmark need no escapes

    def __repr__(self) -> str:
        return f"<Question {self._uri} in {self._text_bytes} bytes>"

    def encode(self, number: int) -> bytes:
        """The request with an id, FIRST_ID to LAST_ID."""
        return b"%b%d%b" % (self._before, number, self._behind)

    def check(self, number: int, body: bytes | memoryview) -> None:
        """Raises WrongAnswer unless `body` answers the request with that id."""
        try:
            response = decode_response(body)
        except msgspec.DecodeError:
            raise WrongAnswer(f"not the answer that was expected: {shown(body)}") from None
        parts = response.result.content if self._uri is None else response.result.contents
        if response.id != number or len(parts) != 1:
            raise WrongAnswer(f"another answer than was asked for: {shown(body)}")
        part = parts[0]
        if part.uri != self._uri or len(memoryview(part.text)) != self._text_bytes:
            raise WrongAnswer(f"another content than was asked for: {shown(body)}")


def shown(body: bytes | memoryview) -> str:
    """The beginning of an answer, for an error message."""
    return repr(bytes(body[:500]))


def encode_modern(method: str, params: Fields) -> bytes:
    """A modern request with the id FIRST_ID."""
    meta = {VERSION: NEWEST, CLIENT_INFO: CLIENT, CLIENT_CAPABILITIES: {}}
    return encode_request(FIRST_ID, method, {**params, META: meta})


def encode_initialize() -> bytes:
    """The first request of a legacy session."""
    params = {"protocolVersion": NEWEST_LEGACY, "capabilities": {}, "clientInfo": CLIENT}
    return encode_request(0, m.INITIALIZE, params)


def stdio_question(uri: str, size: int) -> Question:
    """A modern read as a line of a stdio pipe."""
    return Question(encode_modern(m.RESOURCES_READ, {"uri": raw(uri)}) + b"\n", uri, size)


class Client:
    """An MCP client as far as a benchmark needs one: it opens a session if its era has them, and asks."""

    def __init__(self, connection: Connection, era: str, headers: Headers = ()) -> None:
        """`headers`: of every request, besides those that it must have."""
        self.connection = connection
        self._headers = headers
        self._modern = era == MODERN
        self._session: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"<Client of {self.connection!r}>"

    def open(self) -> None:
        """Do what must come before the first request."""
        if self._modern:
            return
        answer = self._post((), encode_initialize())
        version = ("MCP-Protocol-Version", decode_response(answer.body).result.protocolVersion)
        self._session = (version, ("Mcp-Session-Id", answer.session)) if answer.session else (version,)
        self._post(self._session, encode_notification(m.INITIALIZED))

    def join(self, other: Client) -> None:
        """Take part in a session that another client has opened, which spares the server one more."""
        self._session = other._session

    def question(self, method: str, subject: str, size: int, answered: str | None = None) -> Question:
        """`resources/read` of a URI, or `tools/call` of a tool, whose answer has `size` characters.

        `answered`: the URI in the answer, where that is another one.
        """
        key = "uri" if method == m.RESOURCES_READ else "name"
        message = self._encode(method, {key: raw(subject)})
        return Question(message, (answered or subject) if method == m.RESOURCES_READ else None, size)

    def walk_resources(self) -> int:
        """How many resources there are, by walking every page of the list."""
        found = 0
        cursor: str | None = None
        for _ in range(PAGE_LIMIT):
            params = {} if cursor is None else {"cursor": raw(cursor)}
            answer = self.connection.exchange(self._encode(m.RESOURCES_LIST, params))
            result = decode_response(answer.body).result
            found += len(result.resources)
            cursor = result.nextCursor
            if cursor is None:
                return found
        raise WrongAnswer("the list does not end")

    def first_resources(self) -> bytes | memoryview:
        """The first page of the list of resources, not looked into. Raises WrongAnswer when there is none."""
        answer = self.connection.exchange(self._encode(m.RESOURCES_LIST, {}))
        if answer.status != 200 or b'"resources"' not in bytes(answer.body):
            raise WrongAnswer(f"status {answer.status}: {shown(answer.body)}")
        return answer.body

    def frame(self, message: bytes) -> bytes:
        """A message as an HTTP request of this client."""
        return self._frame(self._session, message)

    def _encode(self, method: str, params: Fields) -> bytes:
        if not self._modern:
            return self.frame(encode_request(FIRST_ID, method, params))
        return self._frame(
            (*method_headers(method, NEWEST), *name_headers(method, params)), encode_modern(method, params)
        )

    def _post(self, headers: Headers, body: bytes) -> Answer:
        answer = self.connection.exchange(self._frame(headers, body))
        if answer.status not in (200, 202):
            raise WrongAnswer(f"status {answer.status}: {shown(answer.body)}")
        return answer

    def _frame(self, headers: Headers, body: bytes) -> bytes:
        fields = [
            ("Host", self.connection.authority),
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
            ("Content-Length", str(len(body))),
            *self._headers,
            *headers,
        ]
        head = "".join(f"{name}: {value}\r\n" for name, value in fields)
        return f"POST {self.connection.path} HTTP/1.1\r\n{head}\r\n".encode() + body
