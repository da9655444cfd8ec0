"""`mcpmux traffic tail`, `grep` and `show`: messages as they pass, some of them, one exchange or message."""

from __future__ import annotations

import difflib
import re
import select
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext, suppress
from functools import partial
from heapq import nlargest
from itertools import islice
from pathlib import Path
from typing import Any

import click
import msgspec
import trio

from mcpmux.cli.admin.client import ca_option, find_admin, running_option, token_option
from mcpmux.cli.console import is_screen, paint, tell
from mcpmux.cli.options import json_option, quiet_option
from mcpmux.cli.process import Mistake, run, until_interrupted
from mcpmux.cli.traffic.source import (
    FOLDER,
    CaptureFiles,
    filter_help,
    format_time,
    is_path,
    no_files,
    read_filter,
    show_lines,
    show_place,
    where_argument,
)
from mcpmux.errors import ConfigError
from mcpmux.format import bytes_text, time_text
from mcpmux.printable import printable
from mcpmux.protocol.envelope import members_of, raw
from mcpmux.traffic.capture.files import Follower
from mcpmux.traffic.outcome import statuses_of
from mcpmux.traffic.reading.filters import Filter, FilterError, body_texts
from mcpmux.traffic.reading.summary import (
    ExchangeSummary,
    Passage,
    Summarizer,
    Targets,
    passages,
)
from mcpmux.traffic.record import ANSWERS, Record, cut, encode_record
from mcpmux.transports.byte_stream import reason_of

by_option = click.option(
    "--by",
    type=click.Choice(["message", "exchange"]),
    default="message",
    help="Print a line for each message, or for each whole exchange.",
)
messages_json_option = json_option(help="Print the messages as they are in the capture, one on each line.")

TOGETHER_SECONDS = 0.05  # that a line may wait for others


def json_line(record: Record) -> str:
    """Return a message in its form in a capture; on a terminal without control characters."""
    line = encode_record(record).decode("utf-8", "replace").rstrip("\n")
    return printable(line) if is_screen() else line


def stream_lines(lines: Iterable[str]) -> int:
    """Write lines as they come, several together if there are many. Returns how many there were."""
    number, last = 0, 0.0
    waiting: list[str] = []
    for number, line in enumerate(lines, 1):  # noqa: B007 - the last one is returned
        waiting.append(line)
        if time.monotonic() - last >= TOGETHER_SECONDS:
            show_lines(waiting)
            waiting.clear()
            last = time.monotonic()
    show_lines(waiting)
    return number


class Lines:
    """Turns messages into lines, by `message` or by `exchange`.

    `own`: requests of mcpmux itself are wanted, too. `find`: only what it is found in, with the place.
    """

    def __init__(
        self, wanted: Filter, by: str, as_json: bool, own: bool = True, find: re.Pattern[str] | None = None
    ) -> None:
        """Raises Mistake when `by` and `as_json` cannot be combined."""
        if as_json and by == "exchange":
            raise Mistake("--json shows messages; leave out --by exchange")
        self._own = own
        self._by = by
        self._as_json = as_json
        self._hit: re.Match[str] | None = None
        self._wanted = wanted if find is None else wanted.with_body_test(partial(self._is_hit, find))
        self._targets = Targets()
        self._summarizer = Summarizer(self._wanted.body_tests)

    def of(self, records: Iterable[Record], *, to_end: bool = False) -> Iterator[str]:
        """Yield the lines for the next messages. `to_end`: also for exchanges without a response."""
        return map(self._line, self._find(records, to_end))

    def last(self, records: Iterable[Record], count: int) -> list[str]:
        """Return the last lines for all messages. The last exchanges are those that began last."""
        items = self._find(records, to_end=True)
        if self._by == "message":
            return list(map(self._line, deque(items, maxlen=count)))
        return list(map(self._line, reversed(nlargest(count, items, key=lambda exchange: exchange.time))))

    def _find(self, records: Iterable[Record], to_end: bool) -> Iterator[Record | ExchangeSummary]:
        for record in map(self._targets.fill, records):
            if self._by == "exchange":
                yield from filter(self._wanted.matches, self._summarizer.add(record))
            elif record.kind != "start" and (self._own or not record.own) and self._wanted.matches(record):
                yield record
        if to_end:
            yield from filter(self._wanted.matches, self._summarizer.rest())

    def _line(self, item: Record | ExchangeSummary) -> str:
        if isinstance(item, ExchangeSummary):
            return summary_line(item)
        return json_line(item) if self._as_json else message_line(item) + excerpt(self._hit)

    def _is_hit(self, expression: re.Pattern[str], record: Record) -> bool:
        texts = filter(None, (*body_texts(record), record.method, record.target))
        self._hit = next(filter(None, map(expression.search, (*texts, ""))), None)
        return self._hit is not None


def excerpt(found: re.Match[str] | None) -> str:
    """Return the match and the text around it, to follow a message's line."""
    if found is None or not found[0]:
        return ""
    start, end = found.span()
    left, after = found.string[max(0, start - AROUND) : start], found.string[end : end + AROUND]
    middle = paint(printable(found[0][: 10 * AROUND]), "bold red")
    return f"  {paint('|', 'dim')} {printable(left)}{middle}{printable(after)}"


# Messages and exchanges as lines: clients on the left, mcpmux in the middle, upstreams on the right.
#
#     2026-11-21T12:44:59.123    #17      c1 →            resources/read docs+file:///a.md  66 B
#     2026-11-21T12:44:59.124    #17         → docs       resources/read file:///a.md  61 B
#     2026-11-21T12:44:59.135    #17         ← docs       resources/read file:///a.md  ok  11.0 ms
#     2026-11-21T12:44:59.136    #17      c1 ←            resources/read docs+file:///a.md  ok  12.9 ms
#
# All untrusted text is made printable. It can neither control a terminal nor forge a line.

AROUND = 30  # characters of a body to show on both sides of a match
TARGET_LIMIT = 201  # characters of a URI to show, with the mark of a cut
NAME_LIMIT = 40

STATUS_STYLES = {"ok": "green", "open": "yellow", "cancelled": "yellow"}


def message_line(record: Record) -> str:
    peer = printable((record.peer or "?")[:NAME_LIMIT])
    is_client = record.leg == "client"
    client, upstream = (peer, "") if is_client else ("", peer)
    flow = f"{client:>6} {'→' if is_client is (record.direction == 'in') else '←'} {upstream:<10} "
    what = _what(record.method or record.kind, record.target)
    return _line(record, flow + what, statuses_of(record), bytes_text(record.size))


def summary_line(summary: ExchangeSummary) -> str:
    who = printable((summary.client or "")[:NAME_LIMIT]) or ", ".join(map(printable, summary.peer[:1]))
    what = _what(summary.method or "?", summary.target[0] if summary.target else None)
    if summary.upstream:
        what += "  " + paint(f"→ {printable(', '.join(summary.upstream))}", "dim")
    sizes = [bytes_text(size) for size in (summary.size, summary.answer_size) if size is not None]
    return _line(summary, f" {who}  {what}", summary.statuses, " / ".join(sizes))


def _line(subject: Record | ExchangeSummary, what: str, statuses: tuple[str, ...], sizes: str) -> str:
    number = f"#{subject.exchange}" if subject.exchange is not None else "-"
    parts = [f"{paint(format_time(subject.time), 'dim')} {number:>6} {what}"]
    if statuses:
        text = " ".join(word for word in statuses if not word.endswith("xx"))
        if subject.code is not None:
            text = re.sub("^error", f"error {subject.code}", text)
        parts.append(paint(text, STATUS_STYLES.get(statuses[0], "red")))
    if subject.ms is not None:
        parts.append(time_text(subject.ms / 1000))
    return "  ".join([*parts, paint(sizes, "dim")])


def _what(method: str, target: str | None) -> str:
    what = paint(printable(method[:TARGET_LIMIT]), "bold")
    return what if target is None else f"{what} {printable(cut(target, TARGET_LIMIT))}"


LOOK_SECONDS = 0.1  # between two reads of files that did not grow


@click.command(epilog=filter_help())
@where_argument
@click.option(
    "-n", "--lines", type=click.IntRange(0, 100_000), default=10, help="Begin with this number of last lines."
)
@by_option
@click.option("--once", is_flag=True, help="Print the last lines and end.")
@click.option("--own", is_flag=True, help="Also show requests of mcpmux itself: to connect, health checks.")
@messages_json_option
@running_option
@click.option("--url", metavar="URL", help="Watch the admin listener of a running mcpmux in place of files.")
@token_option
@ca_option
@quiet_option
def tail(
    where: tuple[str, ...],
    lines: int,
    once: bool,
    own: bool,
    config: str | None,
    url: str | None,
    token: str | None,
    ca: str | None,
    **how: Any,
) -> None:
    """Show messages as they pass, until Ctrl-C.

    Follows files and folders of captures as they grow and rotate. The default is the folder mcpmux-capture.
    The last lines come from the ends of the newest files; with --once and a filter all files are searched.
    With -c or --url, or without that folder, it watches a running mcpmux: it begins with the next message.

    \b
    Examples:
      mcpmux traffic tail
      mcpmux traffic tail captures/ 'method=tools/call status!=ok' --by exchange
      mcpmux traffic tail -c mcpmux.toml 'duration>200ms'
    """
    is_named = config is not None or url is not None
    if is_named and once:
        raise Mistake("--once goes with files; a running mcpmux is watched from now on")
    admin = find_admin(config, url, token, ca) if is_named else None
    if not (is_named or once or Path(FOLDER).exists() or any(map(is_path, where))):
        with suppress(Mistake, ConfigError):  # without a mcpmux of this user the message is about the folder
            admin = find_admin(None, None, token, ca)
    with until_interrupted() if not once else nullcontext():
        if admin is not None:
            shown = Lines(read_filter(" ".join(where)), own=own, **how)
            run(_follow, admin.watch(own=own), shown)
        else:
            files = CaptureFiles(where)
            _tail_files(files, Lines(files.filter, own=own, **how), lines, once)


def _tail_files(where: CaptureFiles, lines: Lines, count: int, once: bool) -> None:
    if once and where.filter:
        last = lines.last(where.records(), count)
        show_lines(last)
        if not last:
            where.tell_nothing_fits()
        return
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
        if once:
            show_lines(lines.last(follower.recent(), count))
            where.tell_bad()
        elif count:
            recent = deque(lines.of(follower.recent()), maxlen=count)
            show_lines(recent)
            where.tell_bad()
            if len(recent) < count and follower.left_out:
                tell("older messages were not searched; --once searches all for a filter, as `grep` does")
        else:
            follower.skip()
        if not once:
            run(_follow, aclosing(_look(follower)), lines)


async def _follow(source: AbstractAsyncContextManager[AsyncIterator[list[Record]]], lines: Lines) -> None:
    """Show messages until cancelled, or until stdout is no longer read."""
    async with source as batches:
        async for records in batches:
            show_lines(list(lines.of(records)))
            if not records and is_abandoned():
                return


async def _look(follower: Follower) -> AsyncGenerator[list[Record], None]:
    """Yield the messages that come, and an empty list from time to time."""
    while True:
        records = await trio.to_thread.run_sync(follower.read)
        yield records
        if not records:
            await trio.sleep(LOOK_SECONDS)


def is_abandoned() -> bool:
    """Return whether stdout is a pipe that is no longer read."""
    if sys.platform != "win32":
        with suppress(OSError, ValueError, AttributeError):  # no file, or a system without poll
            poll = select.poll()
            poll.register(sys.stdout.fileno(), 0)
            return any(event & select.POLLERR for _, event in poll.poll(0))
    return sys.stdout.closed


@click.command(epilog=filter_help())
@click.argument("pattern")
@where_argument
@click.option("-i", "--ignore-case", is_flag=True, help="Do not distinguish upper and lower case.")
@click.option("-F", "--fixed", is_flag=True, help="PATTERN is text, not a regular expression.")
@click.option("-c", "--count", is_flag=True, help="Print only how many there are.")
@by_option
@messages_json_option
@quiet_option
def grep(
    pattern: str, where: tuple[str, ...], ignore_case: bool, fixed: bool, count: bool, **how: Any
) -> None:
    """Find messages by a regular expression in their body, method or target.

    An empty PATTERN finds every message that fits the filter. The exit code is 1 if there is none.

    \b
    Examples:
      mcpmux traffic grep 'timed? out' captures/ 'upstream=docs'
      mcpmux traffic grep '' 'status!=ok duration>200ms'
      mcpmux traffic grep -F 'file:///a.md' --by exchange
    """
    source = CaptureFiles(where, prints=True)
    try:
        expression = re.compile(re.escape(pattern) if fixed else pattern, re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        problem, place = f"{error.msg}; -F looks for the text as it is", error.pos or 0
        raise Mistake(show_place(FilterError(problem, pattern, place, place))) from None
    lines = Lines(source.filter, find=expression, **how).of(source.records(), to_end=True)
    number = sum(1 for _ in lines) if count else stream_lines(lines)
    if count:
        click.echo(number)
    source.check_read()
    if not number:
        source.tell_nothing_fits()
        raise click.exceptions.Exit(1)


MESSAGES_LIMIT = 1000  # of an exchange; a listen may have any number
BYTES_LIMIT = 64 * 2**20  # of their bodies
BODY_LINES = 400  # of a body that is shown or compared without --full
CONTEXT_LINES = 2
ENVELOPE = ("jsonrpc", "id", "method", "params", "result", "error")


@click.command()
@click.argument("number", required=False, metavar="[EXCHANGE]")
@click.argument("where", nargs=-1, metavar="[FILES|DIR]...")
@click.option(
    "--message", "seq", type=click.IntRange(1), metavar="SEQ", help="Show only this message, in full."
)
@click.option("--run", metavar="RUN", help="Look in this run of mcpmux. Default: the newest that has it.")
@click.option("--full", is_flag=True, help="Show long bodies in full.")
@messages_json_option
@quiet_option
def show(
    number: str | None, where: tuple[str, ...], seq: int | None, run: str | None, full: bool, as_json: bool
) -> None:
    """Show one exchange: when each message passed, and what mcpmux changed in it.

    Each message that mcpmux sent on is compared with the message that it received. Lines with - are as
    received, lines with + are as sent. What is the same is left out. `tail` and `grep` show the numbers of
    exchanges. --json prints the numbers of messages as `seq`.

    \b
    Examples:
      mcpmux traffic show 17
      mcpmux traffic show 17 captures/ --full
      mcpmux traffic show --message 102 captures/
    """
    digits = (number or "").removeprefix("#")
    if seq is not None:
        where = where if number is None else (number, *where)  # with --message the first argument is a file
    elif number is None:
        raise Mistake("name an exchange by its number, or a message by --message SEQ")
    elif not re.fullmatch(r"\d{1,15}", digits, re.ASCII):
        raise Mistake(f"expected the number of an exchange, such as 17, got {printable(number)!r}")
    source = CaptureFiles(where)
    if source.filter:
        raise Mistake("show takes files and folders only; `mcpmux traffic grep` knows filters")
    records = find_exchange(source, int(digits), run) if seq is None else find_message(source, seq, run)
    if not records:
        what = f"exchange {int(digits)}" if seq is None else f"message {seq}"
        where_in = "" if run is None else f" of run {printable(run)}"
        raise click.ClickException(f"there is no {what}{where_in} in what was read")
    if as_json:
        show_lines(list(map(json_line, records)))
    else:
        show_lines(list(exchange_lines(records, full) if seq is None else message_lines(records[0])))
    source.check_read()


def find_message(source: CaptureFiles, seq: int, run: str | None) -> list[Record]:
    """Return the newest message of that number, if there is one."""
    fits = (r for r in source.everything() if r.seq == seq and r.kind != "start" and run in (None, r.run))
    return list(deque(fits, maxlen=1))


def find_exchange(source: CaptureFiles, number: int, run: str | None) -> list[Record]:
    """Return the messages of an exchange of one run, in order: of the last run that has begun it."""
    records: list[Record] = []
    others: set[str] = set()
    left_out = size = 0
    for record in source.everything():
        if record.exchange != number or run not in (None, record.run) or record.run in others:
            continue
        if records and records[-1].run != record.run:
            others.add(records[-1].run)
            records, left_out, size = [], 0, 0
        if len(records) >= MESSAGES_LIMIT or size > BYTES_LIMIT:
            left_out += 1
            continue
        size += record.size
        records.append(record)
    if left_out:
        tell(f"{left_out} more messages of this exchange are left out; grep exchange={number} shows them")
    if others:
        tell(f"other runs have an exchange {number}, too: --run {', '.join(sorted(others))}")
    return records


def exchange_lines(records: list[Record], full: bool) -> Iterator[str]:
    """Yield the exchange on one line, its timeline, and what was changed."""
    summarizer = Summarizer()
    ended = [summary for record in records for summary in summarizer.add(record)] + summarizer.rest()
    yield from map(summary_line, ended[:1])
    first = records[0]
    yield paint(f"run {printable(first.run)}, {len(records)} messages", "dim")
    yield ""
    for record in records:
        after = time_text(record.at - first.at)
        yield f"{'+' + after:>11}  {message_line(record)}  {paint(f'message {record.seq}', 'dim')}"
    for passage in passages(records):
        yield ""
        yield from passage_lines(passage, full)


def passage_lines(passage: Passage, full: bool) -> Iterator[str]:
    """Yield a message that was sent on, compared with the one that was received."""
    (origin, *others), after = passage
    if others:
        seqs = ", ".join(str(record.seq) for record in passage[0])
        peers = ", ".join(printable(record.peer or "?") for record in passage[0])
        yield paint(f"message {after.seq} merges {seqs} of {peers}", "bold")
        yield f"  --message {after.seq} shows it"
        return
    where = f"{printable(origin.peer or '?')} → {printable(after.peer or '?')}"
    word = "answered" if after.kind in ANSWERS else after.kind
    what = f"{printable(after.method or after.kind)} {word}"
    yield paint(f"{where}: {what}, messages {origin.seq} and {after.seq}", "bold")
    if origin.size == after.size and body_of(origin) == body_of(after):
        yield "  not changed" if body_of(origin) is not None else "  without bodies"
        return
    came, went = (body_lines(_ordered(body_of(record)), full) for record in (origin, after))
    lines = list(islice(difflib.unified_diff(came, went, n=CONTEXT_LINES, lineterm=""), 3, None))
    for line in lines:
        is_gap = line.startswith("@@")
        yield "  …" if is_gap else "  " + paint(line, {"-": "red", "+": "green"}.get(line[:1], ""))
    if not lines and not full and len(came) > BODY_LINES:
        yield f"  the same in the first {BODY_LINES} lines; --full compares all"
    elif not lines:
        yield f"  the same but for order and spelling ({bytes_text(origin.size)}, {bytes_text(after.size)})"


def _ordered(body: bytes | str | None) -> bytes | str | None:
    """Return a message with the members of its envelope in a fixed order: their order is no change."""
    members = members_of(body)
    ordered = {name: members[name] for name in ENVELOPE if name in members}
    return bytes(raw(ordered | members)) if members else body


def message_lines(record: Record) -> Iterator[str]:
    yield message_line(record)
    yield paint(f"run {printable(record.run)}, message {record.seq}", "dim")
    yield ""
    yield from body_lines(body_of(record), full=True)


def body_of(record: Record) -> bytes | str | None:
    return bytes(record.message) if record.message is not None else record.text


def body_lines(body: bytes | str | None, full: bool) -> list[str]:
    """Return the body with a line for each member, or as text if it is no JSON."""
    if body is None:
        return ["(the body was not captured)"]
    pretty = body if isinstance(body, str) else msgspec.json.format(body, indent=2).decode("utf-8", "replace")
    lines = [printable(line) for line in pretty.split("\n")]
    return lines if full or len(lines) <= BODY_LINES else [*lines[:BODY_LINES], "… more; --full shows it"]
