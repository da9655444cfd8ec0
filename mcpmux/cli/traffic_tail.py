"""`mcpmux traffic tail`: show messages as they pass."""

from __future__ import annotations

import os
import select
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing

import click
import trio

from mcpmux.cli.admin_client import AdminClient
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
from mcpmux.traffic.reading.following import Follower
from mcpmux.traffic.record import Record, reason_of

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
            run(_follow, AdminClient.at(url, token).watch(own=own), shown)
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
