"""The admin listener of a running mcpmux, as `mcpmux ctl`, `top` and `traffic tail --url` use it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

import trio

from mcpmux.cli.console import tell
from mcpmux.cli.process import Mistake
from mcpmux.config import ClientTls
from mcpmux.errors import ConfigError, ConnectFailed, McpmuxError, RemoteProtocolError
from mcpmux.printable import printable
from mcpmux.protocol.envelope import decode_any, decode_fields, value_of
from mcpmux.traffic.record import Record, decode_record
from mcpmux.transports.http.route import HttpOrigin
from mcpmux.transports.sse import SseDecoder, SseEvent

if TYPE_CHECKING:
    from mcpmux.transports.web_client import WebResponse

PATIENCE_SECONDS = 60.0  # for an answer; a reload reads a file, everything else is done at once
EVENT_BYTES = 512 * 2**20  # as long as a line of a capture may be
ANSWER_SHOWN = 300  # characters of an answer that is none of mcpmux
NO_ENTRY = "give its token: in the URL or the file, with --token, or in MCPMUX_ADMIN_TOKEN"


class NotDone(McpmuxError):
    """mcpmux has refused, or there is none; the text says why."""


class AdminClient(NamedTuple):
    """One admin listener. `ca`: file of the authorities to trust."""

    origin: HttpOrigin
    token: str | None
    ca: str | None = None

    @classmethod
    def at(cls, url: str, token: str | None, ca: str | None = None) -> AdminClient:
        """Return the listener at `url`, which may have the token in it, too. Raises Mistake."""
        try:
            origin = HttpOrigin.from_url(url)
            token = parse_qs(urlsplit(url).query).get("token", [token])[0]
        except (ValueError, UnicodeError):
            example = "http://127.0.0.1:8490"
            raise Mistake(f"--url: expected the URL of an admin listener, such as {example}") from None
        if token is not None and (not token.isascii() or not token.isprintable()):
            raise Mistake("--token: expected the token that mcpmux printed when it started")
        return cls(origin, token, ca)

    async def ask(self, method: str, path: str) -> dict[str, Any]:
        """Return the answer, an object; that of a broken configuration has `problems`. Raises McpmuxError.

        It is a ConfigError if what the path names is not there.
        """
        return (await self.ask_text(method, path))[0]

    async def ask_text(self, method: str, path: str) -> tuple[dict[str, Any], bytes]:
        """Return the answer as `ask` does, and its bytes, with numbers as they were written."""
        with trio.move_on_after(PATIENCE_SECONDS):
            async with self._open(method, path, "application/json") as response:
                body, answer = await response.read(), None
                with suppress(ValueError):
                    answer = decode_any(body)
                is_fine = response.status == 200
                if not isinstance(answer, dict) or not (is_fine or isinstance(answer.get("error"), str)):
                    raise self._stranger(response.status, body)
                if "error" in answer and "problems" not in answer:
                    if response.status == 404:  # what was named is not there, as a mistyped upstream
                        raise ConfigError([str(answer["error"])])
                    raise NotDone(str(answer["error"]))
                return answer, body
        raise NotDone(f"{self.origin.url} does not answer within {PATIENCE_SECONDS:g} s")

    @asynccontextmanager
    async def watch(self, *, own: bool = False) -> AsyncIterator[AsyncIterator[list[Record]]]:
        """Yield the messages that pass from now on, in lists that are empty now and then.

        `own`: also what mcpmux asks by itself. Leaving closes the connection. Raises McpmuxError.
        """
        path = "/api/traffic/stream" + ("?own=true" if own else "")
        async with self._events(path) as events, aclosing(self._records(events)) as records:
            yield records

    @asynccontextmanager
    async def watch_exchanges(self, wanted: str, since: int) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Yield the events `rows` of the exchanges that fit a filter; `since`: `messages` of their list.

        Leaving closes the connection. Raises McpmuxError.
        """
        query = urlencode({"filter": wanted, "since": since})
        async with self._events(f"/api/exchanges/stream?{query}") as events, aclosing(_rows(events)) as rows:
            yield rows

    @asynccontextmanager
    async def _events(self, path: str) -> AsyncIterator[AsyncIterator[list[SseEvent]]]:
        async with self._open("GET", path, "text/event-stream") as response:
            if response.status != 200:
                raise self._stranger(response.status, await response.read())
            async with aclosing(self._decoded(response)) as events:
                yield events

    @asynccontextmanager
    async def _open(self, method: str, path: str, accept: str) -> AsyncIterator[WebResponse]:
        from mcpmux.transports.web_client import WebClient  # httpx is large

        headers = [("Accept", accept), ("Content-Type", "application/json")]
        if self.token is not None:
            headers.append(("Authorization", f"Bearer {self.token}"))
        body = b"{}" if method == "POST" else b""
        client = WebClient(ClientTls(ca=self.ca))
        try:
            async with client.open(method, self.origin.url + path, tuple(headers), body) as response:
                if response.status in (401, 403):
                    refusal = f"{self.origin.url} does not let us in (HTTP {response.status})"
                    raise NotDone(f"{refusal}; {NO_ENTRY}")
                yield response
        except ConnectFailed as error:
            raise NotDone(f"no mcpmux answers at {self.origin.url}: {error}; is it running?") from None

    def _stranger(self, status: int, body: bytes) -> RemoteProtocolError:
        answer = printable(body.decode("utf-8", "replace").strip()[:ANSWER_SHOWN])
        hint = "is it the admin listener of mcpmux?"
        return RemoteProtocolError(f"{self.origin.url} answers HTTP {status}: {answer}; {hint}")

    async def _decoded(self, response: WebResponse) -> AsyncGenerator[list[SseEvent], None]:
        decoder = SseDecoder(EVENT_BYTES)
        async for chunk in response:
            yield decoder.feed(chunk)
        raise RemoteProtocolError(f"{self.origin.url} has ended the stream; mcpmux was stopped")

    async def _records(self, source: AsyncIterator[list[SseEvent]]) -> AsyncGenerator[list[Record], None]:
        async for events in source:
            records = []
            for event in events:
                try:
                    if event.event == "missed":
                        count = value_of(decode_fields(event.data).get("missed"))
                        tell(f"missed {count} messages: there were more than could be shown")
                    else:
                        records.append(decode_record(event.data))
                except ValueError as error:
                    tell(f"not read: {error}")
            yield records


async def _rows(source: AsyncIterator[list[SseEvent]]) -> AsyncGenerator[dict[str, Any], None]:
    async for events in source:
        for event in events:
            try:
                yield decode_any(event.data)
            except ValueError as error:
                raise RemoteProtocolError(f"an event of the admin listener cannot be read: {error}") from None
