"""Messages from the admin listener of a running mcpmux, as they pass."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from urllib.parse import parse_qs, urlsplit

from mcpmux.cli.console import tell
from mcpmux.cli.wall import Mistake
from mcpmux.errors import RemoteProtocolError, TransportError
from mcpmux.printable import printable
from mcpmux.protocol.envelope import decode_fields, value_of
from mcpmux.traffic.record import BadRecord, Record, decode_record
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.client_response import HttpResponse
from mcpmux.transports.http.route import HttpOrigin
from mcpmux.transports.sse import SseDecoder, SseEvent

STREAM_PATH = "/api/traffic/stream"
EVENT_BYTES = 512 * 2**20  # as long as a line of a capture may be
ANSWER_SHOWN = 300  # characters of an answer that is no stream


@asynccontextmanager
async def open_stream(
    url: str, token: str | None, *, own: bool = False
) -> AsyncIterator[AsyncIterator[list[Record]]]:
    """The messages from now on, in lists that are empty now and then. `token` may be in the URL, too.

    `own`: also what mcpmux asks by itself.

    Raises Mistake for the URL, TransportError and RemoteProtocolError for what is there. Leaving closes the
    connection.
    """
    origin, token = read_url(url, token)
    headers = [("Accept", "text/event-stream")]
    if token is not None:
        headers.append(("Authorization", f"Bearer {token}"))
    with HttpPool(origin) as pool:
        path = f"{STREAM_PATH}?own=true" if own else STREAM_PATH
        async with pool.request("GET", path, headers, b"", idempotent=True) as response:
            if response.status != 200:
                raise TransportError(await _refusal(origin, response))
            async with aclosing(_read(origin, response)) as records:
                yield records


def read_url(url: str, token: str | None) -> tuple[HttpOrigin, str | None]:
    """Where to connect, and the token. Raises Mistake."""
    try:
        origin = HttpOrigin.from_url(url)
        shown = parse_qs(urlsplit(url).query).get("token", [token])[0]
    except (ValueError, UnicodeError):
        raise Mistake("--url: expected the URL of an admin listener, such as http://127.0.0.1:8490") from None
    if shown is not None and (not shown.isascii() or not shown.isprintable()):
        raise Mistake("--token: expected the token that mcpmux printed when it started")
    return origin, shown


async def _refusal(origin: HttpOrigin, response: HttpResponse) -> str:
    if response.status in (401, 403):
        hint = "give the token that mcpmux printed when it started: --token, or the whole URL with it"
        return f"{origin.url} does not let us in (HTTP {response.status}); {hint}"
    said = (await response.read()).decode("utf-8", "replace").strip()[:ANSWER_SHOWN]
    hint = "is it the admin listener of mcpmux?"
    return f"{origin.url} answers HTTP {response.status}: {printable(said)}; {hint}"


async def _read(origin: HttpOrigin, response: HttpResponse) -> AsyncGenerator[list[Record], None]:
    decoder = SseDecoder(EVENT_BYTES)
    async for chunk in response:
        yield [record for event in decoder.feed(chunk) if (record := _record_of(event)) is not None]
    raise RemoteProtocolError(f"{origin.url} has ended the stream; mcpmux was stopped")


def _record_of(event: SseEvent) -> Record | None:
    if event.event == "missed":
        count = value_of(decode_fields(event.data).get("missed"))
        tell(f"missed {count} messages: there were more than could be shown")
        return None
    try:
        return decode_record(event.data)
    except BadRecord as error:
        tell(f"not read: {error}")
        return None
