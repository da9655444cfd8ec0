"""Clients without an event loop that hide no byte: they send any message, and keep every one.

Standard library only, so that no mistake of mcpmux's own parsers can hide in them.
"""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse
from urllib.parse import urlsplit

from tests.peers.revision import MODERN, Json, make_fields, make_greeting, make_meta
from tests.real.mux import START_SECONDS, Mux

NO_FIELDS: Mapping[str, str] = {}


class RawClient(ABC):
    """One client of one revision."""

    def __init__(self, revision: str) -> None:
        self.revision = revision
        self._ids = itertools.count()

    @property
    def modern(self) -> bool:
        """Whether it states its revision with every request and opens no session."""
        return self.revision == MODERN

    def hello(self) -> list[Json]:
        """Say hello as the revision has it: the messages that came back, the answer last."""
        if self.modern:
            return self.ask("server/discover")
        messages = self.ask("initialize", make_greeting(self.revision))
        self.tell({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return messages

    def ask(self, method: str, params: Json | None = None) -> list[Json]:
        """Send a request: what came until its answer, which is the last."""
        messages = []
        for message in self.start(method, params):
            messages.append(message)
            if "method" not in message:
                return messages
        raise AssertionError(f"no answer to {method}, only {messages}")

    def start(self, method: str, params: Json | None = None) -> Generator[Json, None, None]:
        """Send a request: messages as they come, of which one should be its answer."""
        request: Json = {"jsonrpc": "2.0", "id": next(self._ids), "method": method}
        params = dict(params or {})
        if self.modern:
            params["_meta"] = {**make_meta(), **params.get("_meta", {})}
        if params:
            request["params"] = params
        for message in self.exchange(request):
            assert "method" in message or message.get("id") == request["id"], f"not for {request}: {message}"
            yield message

    @abstractmethod
    def tell(self, notification: Json) -> None:
        """Send a notification."""

    @abstractmethod
    def exchange(self, request: Json) -> Iterator[Json]:
        """Send a request: messages as they come, of which one should be its answer."""

    @abstractmethod
    def heard(self) -> Iterator[Json]:
        """Messages that come of the server's own accord, as they come."""


class StdioClient(RawClient):
    """On the standard input and output of a mux."""

    def __init__(self, mux: Mux, revision: str) -> None:
        super().__init__(revision)
        self._mux = mux

    def tell(self, notification: Json) -> None:
        self._mux.send_json(notification)

    def exchange(self, request: Json) -> Iterator[Json]:
        self._mux.send_json(request)
        return self.heard()

    def heard(self) -> Iterator[Json]:
        while True:
            yield self._mux.receive_json()


class HttpClient(RawClient):
    """One connection for each request. `session`: its id; `fields`: more header fields of each request."""

    def __init__(self, url: str, revision: str, fields: Mapping[str, str] = NO_FIELDS) -> None:
        super().__init__(revision)
        self._fields = fields
        parts = urlsplit(url)
        self._host, self._port, self._path = parts.hostname or "", parts.port, parts.path
        self.session: str | None = None

    def tell(self, notification: Json) -> None:
        with closing(self._connect()) as connection:
            assert self._send(connection, "POST", notification).status == 202

    def exchange(self, request: Json) -> Iterator[Json]:
        with closing(self._connect()) as connection:
            response = self._send(connection, "POST", request)
            self.session = response.headers.get("Mcp-Session-Id", self.session)
            if response.headers.get_content_type() == "text/event-stream":
                yield from self._events(response)
            else:
                yield json.loads(response.read())

    def heard(self) -> Generator[Json, None, None]:
        """Yield the messages on the stream of the session."""
        connection = self._connect()
        response = self._send(connection, "GET", None)
        assert response.status == 200, response.read()
        return self._hear(connection, response)

    def _hear(self, connection: HTTPConnection, response: HTTPResponse) -> Generator[Json, None, None]:
        with closing(connection):
            yield from self._events(response)

    def _connect(self) -> HTTPConnection:
        return HTTPConnection(self._host, self._port, timeout=START_SECONDS)

    def _send(self, connection: HTTPConnection, verb: str, message: Json | None) -> HTTPResponse:
        body = None if message is None else json.dumps(message)
        fields = make_fields(self.revision, message, self.session)
        connection.request(verb, self._path, body, {**fields, **self._fields})
        return connection.getresponse()

    def _events(self, response: HTTPResponse) -> Iterator[Json]:
        """Yield the messages in an event stream. Events without data only carry an id."""
        data = b""
        while line := response.readline():
            field, _, value = line.rstrip(b"\r\n").partition(b":")
            if field == b"data":
                data += value.removeprefix(b" ")
            elif not field and not value and data:
                yield json.loads(data)
                data = b""
