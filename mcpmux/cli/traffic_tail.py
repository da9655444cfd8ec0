"""`mcpmux traffic tail`: show messages as they pass."""

from __future__ import annotations

import os
import select
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import click
import trio

from mcpmux.cli.console import tell
from mcpmux.cli.options import quiet_option
from mcpmux.cli.process import Mistake, run
from mcpmux.cli.traffic_source import (
    FilteredCapture,
    Lines,
    by_option,
    filter_help,
    messages_json_option,
    no_files,
    read_filter,
    show_lines,
    where_argument,
)
from mcpmux.errors import RemoteProtocolError, TransportError
from mcpmux.printable import printable
from mcpmux.protocol.envelope import decode_fields, value_of
from mcpmux.traffic.reading.following import Follower
from mcpmux.traffic.record import BadRecord, Record, decode_record, reason_of
from mcpmux.transports.http.route import HttpOrigin
from mcpmux.transports.sse import SseDecoder

if TYPE_CHECKING:
    from mcpmux.transports.web_client import WebResponse

# Messages from the admin listener of a running mcpmux, as they pass.

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
    from mcpmux.transports.web_client import WebClient  # httpx is large

    origin, token = read_url(url, token)
    headers = [("Accept", "text/event-stream")]
    if token is not None:
        headers.append(("Authorization", f"Bearer {token}"))
    path = f"{STREAM_PATH}?own=true" if own else STREAM_PATH
    async with WebClient().open("GET", origin.url + path, tuple(headers)) as response:
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


async def _refusal(origin: HttpOrigin, response: WebResponse) -> str:
    if response.status in (401, 403):
        hint = "give the token that mcpmux printed when it started: --token, or the whole URL with it"
        return f"{origin.url} does not let us in (HTTP {response.status}); {hint}"
    said = (await response.read()).decode("utf-8", "replace").strip()[:ANSWER_SHOWN]
    hint = "is it the admin listener of mcpmux?"
    return f"{origin.url} answers HTTP {response.status}: {printable(said)}; {hint}"


async def _read(origin: HttpOrigin, response: WebResponse) -> AsyncGenerator[list[Record], None]:
    decoder = SseDecoder(EVENT_BYTES)
    async for chunk in response:
        records = []
        for event in decoder.feed(chunk):
            try:
                if event.event == "missed":
                    count = value_of(decode_fields(event.data).get("missed"))
                    tell(f"missed {count} messages: there were more than could be shown")
                else:
                    records.append(decode_record(event.data))
            except BadRecord as error:
                tell(f"not read: {error}")
        yield records
    raise RemoteProtocolError(f"{origin.url} has ended the stream; mcpmux was stopped")


LOOK_SECONDS = 0.1  # between two reads of files that did not grow


@click.command(epilog=filter_help())
@where_argument
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0, 100_000),
    default=10,
    show_default=True,
    help="Begin with this number of last lines.",
)
@by_option
@click.option("--once", is_flag=True, help="Print the last lines and end.")
@click.option("--own", is_flag=True, help="Also show requests of mcpmux itself: to connect, health checks.")
@messages_json_option
@click.option("--url", metavar="URL", help="Watch the admin listener of a running mcpmux in place of files.")
@click.option("--token", envvar="MCPMUX_ADMIN_TOKEN", help="Its token, or MCPMUX_ADMIN_TOKEN.")
@quiet_option
def tail(
    where: tuple[str, ...],
    lines: int,
    by: str,
    once: bool,
    own: bool,
    as_json: bool,
    url: str | None,
    token: str | None,
) -> None:
    """Show messages as they pass, until Ctrl-C.

    Follows files and folders of captures as they grow and rotate. The default is the folder mcpmux-capture.
    The last lines come from the ends of the newest files. With --url it begins with the next message and
    needs no capture.

    \b
    Examples:
      mcpmux traffic tail
      mcpmux traffic tail captures/ 'method=tools/call status!=ok' --by exchange
      mcpmux traffic tail --url 'http://127.0.0.1:8490/?token=…' 'duration>200ms'
    """
    if url is not None and once:
        raise Mistake("--once goes with files; what comes from --url begins now")
    try:
        if url is not None:
            shown = Lines(read_filter(" ".join(where)), by, as_json, own=own)
            run(_follow, open_stream(url, token, own=own), shown)
        else:
            found = FilteredCapture(where)
            _tail_files(found, Lines(found.filter, by, as_json, own=own), lines, once)
    except KeyboardInterrupt:
        raise click.exceptions.Exit(0) from None


def _tail_files(where: FilteredCapture, lines: Lines, count: int, once: bool) -> None:
    try:
        follower = Follower(where.paths, where.on_bad)
    except OSError as error:
        raise Mistake(f"{error.filename}: {reason_of(error)}") from None
    with follower:
        if follower.found_nothing:
            reason = no_files(where.paths[0])
            if once:
                raise Mistake(reason)
            tell(f"{reason}; waiting for the first one")
        if count or once:
            read_lines = lines.of_all if once else lines.of
            show_lines(deque(read_lines(follower.recent()), maxlen=count))
            where.tell_bad()
        else:
            follower.skip()
        if not once:
            run(_follow, aclosing(_look(follower)), lines)


async def _follow(source: AbstractAsyncContextManager[AsyncIterator[list[Record]]], lines: Lines) -> None:
    """Show what comes until cancelled, or until nobody reads stdout."""
    async with source as batches:
        async for records in batches:
            show_lines(list(lines.of(records)))
            if not records and is_abandoned():
                return


async def _look(follower: Follower) -> AsyncGenerator[list[Record], None]:
    """Yields the messages that come, and an empty list from time to time."""
    while True:
        records = await trio.to_thread.run_sync(follower.read)
        yield records
        if not records:
            await trio.sleep(LOOK_SECONDS)


def is_abandoned() -> bool:
    """Whether stdout is a pipe that nobody reads any more."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (OSError, ValueError, AttributeError):  # no file, or a system without poll
        return os.name == "nt" and sys.stdout.closed
