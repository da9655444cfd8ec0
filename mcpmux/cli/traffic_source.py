"""What the `traffic` commands read, and how they print it: capture files, filters, and one line a message."""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click

from mcpmux.cli.console import is_screen, paint, show_bytes, tell
from mcpmux.cli.options import load_config
from mcpmux.cli.process import Mistake
from mcpmux.config.traffic import Capture
from mcpmux.printable import printable
from mcpmux.traffic.audit.chain import number_of
from mcpmux.traffic.capture.files import COMPRESSED, SUFFIX, BadLine, expand_paths, read_files
from mcpmux.traffic.reading.filters import (
    KEYS,
    NAMES,
    OPERATORS,
    SORTS,
    Filter,
    FilterError,
    body_texts,
    hint_for,
    parse_filter,
)
from mcpmux.traffic.reading.summary import ExchangeSummary, Summarizer, Targets, statuses_of
from mcpmux.traffic.record import Record, encode_record, reason_of
from mcpmux.traffic.redaction.redactor import Redactor

FOLDER = Capture().directory
TOLD_LIMIT = 5  # lines that cannot be read and are named one by one

where_argument = click.argument("where", nargs=-1, metavar="[FILES|DIR]... [FILTER]...")
by_option = click.option(
    "--by",
    type=click.Choice(["message", "exchange"]),
    default="message",
    help="Print a line for each message, or for each whole exchange.",
)
messages_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the messages as they are in the capture, one on each line."
)
redact_option = click.option(
    "--redact", metavar="CONFIG", help="Also redact output by the [redaction] of this configuration."
)


def read_redactor(config: str | None) -> Redactor:
    """The redactor for `--redact CONFIG`. Raises ConfigError."""
    return Redactor(load_config(config).redaction if config is not None else None)


def filter_help() -> str:
    """The table of filter keys, for `--help`."""
    lines = ["\b", "Filter, in single quotes. All terms must hold. Times are in UTC:"]
    for key in KEYS.values():
        operators = " ".join(SORTS[key.sort].operators)
        names = ", ".join((key.name, *key.aliases))
        lines.append(f"  {names:<23} {operators:<15}  {key.about}")
    lines += [
        "a|b: one of them. * stands for any text; ~ ignores case and also finds a part.",
        '"quotes": blanks, | and *. key= is absent, key!= is there. !term is its opposite.',
    ]
    return "\n".join(lines)


class CaptureFiles:
    """Capture files and folders, and a filter for what is wanted of them.

    Lines that cannot be read are named on stderr, the rest is read. `change` is applied to messages first.
    """

    def __init__(
        self, words: Sequence[str | Path], change: Callable[[Record], Record] = lambda record: record
    ) -> None:
        """`words` are files, folders and terms of a filter. Without any path it is the default folder.

        Raises Mistake for a path that does not exist.
        """
        terms = [str(word) for word in words if not _is_path(word)]
        self.filter = read_filter(" ".join(terms), terms)
        self.paths = [Path(word) for word in words if word not in terms] or [Path(FOLDER)]
        self._change = change
        self._bad = 0
        self._unread: list[Path] = []  # files of which nothing could be read
        for path in self.paths:
            if not path.exists():
                hint = "`capture.level` in the configuration makes mcpmux write them"
                problem = f"{path}: there is no such file or folder; name a capture file or folder; {hint}"
                raise Mistake(problem)

    def files(self) -> list[Path]:
        """The files to read. Raises Mistake."""
        try:
            files = expand_paths(self.paths)
        except OSError as error:
            raise Mistake(f"{error.filename}: {reason_of(error)}") from None
        if not files:
            raise Mistake(no_files(self.paths[0]))
        return files

    def records(self) -> Iterator[Record]:
        """All messages, and notes about the capture itself."""
        for path in self.files():
            before, nothing = self._bad, True
            for record in read_files([path], self.on_bad):
                nothing = False
                yield record
            if nothing and self._bad > before:
                self._unread.append(path)
        self.tell_bad()

    def everything(self) -> Iterator[Record]:
        """All messages and notes. Responses have the target of their request."""
        fill = Targets().fill
        return (fill(self._change(record)) for record in self.records())

    def wanted(self) -> Iterator[Record]:
        """The messages that the filter wants. Responses have the target of their request."""
        matches = self.filter.matches
        return (record for record in self.everything() if record.kind != "start" and matches(record))

    def on_bad(self, bad: BadLine) -> None:
        """Name a line that cannot be read, unless there were many."""
        self._bad += 1
        if self._bad <= TOLD_LIMIT:
            tell(f"not read: {bad}")

    def tell_bad(self) -> None:
        """Say how many more lines could not be read."""
        if self._bad > TOLD_LIMIT:
            tell(f"not read: {self._bad - TOLD_LIMIT} more lines")
        self._bad = 0

    def check_read(self) -> None:
        """Raises ClickException at the end if nothing could be read of one of the files."""
        if self._unread:
            raise click.ClickException(f"nothing could be read of {', '.join(map(str, self._unread))}")


def _is_path(word: str | Path) -> bool:
    """Whether a word is a file or folder: it exists, or its name looks like that of a file."""
    if isinstance(word, Path):
        return True
    with suppress(OSError, ValueError):  # too long, or with a NUL
        if word.endswith((SUFFIX, COMPRESSED)) or (word and Path(word).exists()):
            return True
    if any(operator in word for operator in OPERATORS) or " " in word or hint_for(word) is not None:
        return False
    return not difflib.get_close_matches(word.lstrip("!").lower(), NAMES, n=1)


def no_files(folder: Path) -> str:
    """The message about a folder without a capture."""
    others = sorted(path for path in folder.iterdir() if path.name.endswith((SUFFIX, COMPRESSED)))
    hint = ""
    if any(number_of(path) is not None for path in others):
        hint = ", but an audit log: `mcpmux audit show` reads that"
    elif others:
        hint = f": they are called mcpmux-….jsonl; name files of other names one by one, such as {others[0]}"
    return f"{folder}: there are no capture files in this folder{hint}"


def read_filter(text: str, words: Sequence[str] = ()) -> Filter:
    """The filter in `text`. Raises Mistake that shows the place. `words` may have been meant as files."""
    try:
        return parse_filter(text, datetime.now(UTC))
    except FilterError as error:
        wrong = error.text[error.start : error.end]
        nor = f"\nNor is there a file or folder of that name: {printable(wrong)}" if wrong in words else ""
        raise Mistake(show_place(error) + nor) from None


def show_place(error: FilterError) -> str:
    """The problem, and the filter with the wrong place marked."""
    parts = (error.text[: error.start], error.text[error.start : error.end], error.text[error.end :])
    before, wrong, after = map(printable, parts)
    return f"{error.problem}\n  {before}{wrong}{after}\n  {' ' * len(before)}{'^' * max(1, len(wrong))}"


# Lines on stdout. The first one is written at once. Of very many, several are written together.

TOGETHER_SECONDS = 0.05  # that a line may wait for others
TOGETHER_LINES = 500


def json_line(record: Record) -> str:
    """A message as it is in a capture; on a terminal without control characters."""
    line = encode_record(record).decode("utf-8", "replace").rstrip("\n")
    return printable(line) if is_screen() else line


def show_lines(lines: Collection[str]) -> None:
    """Write lines at once."""
    if lines:
        show_bytes(("\n".join(lines) + "\n").encode("utf-8", "replace"))


def stream_lines(lines: Iterable[str]) -> int:
    """Write lines as they come. Returns how many there were."""
    number, last = 0, 0.0
    waiting: list[str] = []
    for number, line in enumerate(lines, 1):  # noqa: B007 - the last one is returned
        waiting.append(line)
        if len(waiting) >= TOGETHER_LINES or time.monotonic() - last >= TOGETHER_SECONDS:
            show_lines(waiting)
            waiting.clear()
            last = time.monotonic()
    show_lines(waiting)
    return number


class Lines:
    """Turns messages into lines, by `message` or by `exchange`.

    `own`: requests of mcpmux itself are wanted, too. `expression`: only what it is found in, with the place.
    """

    def __init__(
        self,
        wanted: Filter,
        by: str,
        as_json: bool,
        *,
        own: bool = True,
        expression: re.Pattern[str] | None = None,
    ) -> None:
        """Raises Mistake when `by` and `as_json` do not go together."""
        if as_json and by == "exchange":
            raise Mistake("--json shows messages; leave out --by exchange")
        self._own = own
        self._by = by
        self._as_json = as_json
        self._hit: re.Match[str] | None = None
        if expression is not None:
            wanted = wanted.with_body_test(partial(self._is_hit, expression))
        self._wanted = wanted
        self._targets = Targets()
        self._summarizer = Summarizer(self._wanted.body_tests)

    def of(self, records: Iterable[Record]) -> Iterator[str]:
        """The lines for the next messages."""
        for record in map(self._targets.fill, records):
            if self._by == "exchange":
                yield from self._exchanges(self._summarizer.add(record))
            elif record.kind != "start" and (self._own or not record.own) and self._wanted.matches(record):
                yield json_line(record) if self._as_json else message_line(record) + excerpt(self._hit)

    def of_all(self, records: Iterable[Record]) -> Iterator[str]:
        """The lines for messages and, after them, for exchanges without a response."""
        yield from self.of(records)
        yield from self._exchanges(self._summarizer.rest())

    def _exchanges(self, ended: Iterable[ExchangeSummary]) -> Iterator[str]:
        return map(summary_line, filter(self._wanted.matches, ended))

    def _is_hit(self, expression: re.Pattern[str], record: Record) -> bool:
        self._hit = search(record, expression)
        return self._hit is not None


def search(record: Record, expression: re.Pattern[str]) -> re.Match[str] | None:
    """Where the expression was found in a message."""
    for text in (*body_texts(record), record.method, record.target, ""):
        if text is not None and (found := expression.search(text)) is not None:
            return found
    return None


def excerpt(found: re.Match[str] | None) -> str:
    """What was found and the text around it, to follow a message's line."""
    start, end = found.span() if found is not None else (0, 0)
    if found is None or start == end:
        return ""
    before, after = found.string[max(0, start - AROUND) : start], found.string[end : end + AROUND]
    middle = paint(printable(found.string[start:end][: 10 * AROUND]), fg="red", bold=True)
    return f"  {paint('|', dim=True)} {printable(before)}{middle}{printable(after)}"


# Messages and exchanges as lines: clients on the left, mcpmux in the middle, upstreams on the right.
#
#     2026-11-21 12:44:59.123    #17      c1 →            resources/read docs+file:///a.md  66 B
#     2026-11-21 12:44:59.124    #17         → docs       resources/read file:///a.md  61 B
#     2026-11-21 12:44:59.135    #17         ← docs       resources/read file:///a.md  ok  11.0 ms
#     2026-11-21 12:44:59.136    #17      c1 ←            resources/read docs+file:///a.md  ok  12.9 ms
#
# All untrusted text is made printable. It can neither control a terminal nor forge a line.

AROUND = 30  # characters of a body to show on both sides of a match
TARGET_LIMIT = 200  # characters of a URI to show
NAME_LIMIT = 40

_STYLES = {"ok": "green", "open": "yellow", "cancelled": "yellow"}


def message_line(record: Record) -> str:
    """One message."""
    parts = [_what(record.method or record.kind, record.target)]
    parts += _outcome(record, statuses_of(record), format_size(record.size))
    peer = printable((record.peer or "?")[:NAME_LIMIT])
    is_client = record.leg == "client"
    client, upstream = (peer, "") if is_client else ("", peer)
    flow = f"{client:>6} {'→' if is_client is (record.direction == 'in') else '←'} {upstream:<10}"
    return f"{_head(record)} {flow} {'  '.join(parts)}"


def summary_line(summary: ExchangeSummary) -> str:
    """One exchange."""
    who = printable((summary.client or "")[:NAME_LIMIT]) or ", ".join(map(printable, summary.peer[:1]))
    parts = [who, _what(summary.method or "?", summary.target[0] if summary.target else None)]
    if summary.upstream:
        parts.append(paint(f"→ {printable(', '.join(summary.upstream))}", dim=True))
    answer_size = "" if summary.answer_size is None else f" / {format_size(summary.answer_size)}"
    parts += _outcome(summary, summary.statuses, format_size(summary.size) + answer_size)
    return f"{_head(summary)}  {'  '.join(parts)}"


def _outcome(subject: Record | ExchangeSummary, statuses: tuple[str, ...], sizes: str) -> list[str]:
    parts = [_status(statuses, subject.code)] if statuses else []
    parts += [format_ms(subject.ms)] if subject.ms is not None else []
    return [*parts, paint(sizes, dim=True)]


def _head(subject: Record | ExchangeSummary) -> str:
    number = f"#{subject.exchange}" if subject.exchange is not None else "-"
    return f"{paint(format_time(subject.time), dim=True)} {number:>6}"


def _what(method: str, target: str | None) -> str:
    said = paint(printable(method[:TARGET_LIMIT]), bold=True)
    if target is None:
        return said
    return f"{said} {printable(target[:TARGET_LIMIT])}{'…' if len(target) > TARGET_LIMIT else ''}"


def _status(statuses: tuple[str, ...], code: int | None) -> str:
    words = [word for word in statuses if not word.endswith("xx")]
    text = " ".join(words)
    if code is not None and words[:1] == ["error"]:
        text = text.replace("error", f"error {code}", 1)
    return paint(text, fg=_STYLES.get(statuses[0], "red"))


def format_time(time: str) -> str:
    """The time of a record in UTC, up to milliseconds."""
    return printable(time[:23].replace("T", " "))


def format_ms(ms: float) -> str:
    """A duration in a fitting unit."""
    if ms < 1000:
        return f"{ms:.1f} ms" if ms < 100 else f"{ms:.0f} ms"
    return f"{ms / 1000:.2f} s" if ms < 60_000 else f"{ms / 60_000:.1f} min"


def format_seconds(seconds: float | None) -> str:
    """The same of seconds, or a dash."""
    return "-" if seconds is None else format_ms(seconds * 1000)


def format_size(size: float) -> str:
    """A number of bytes in a fitting unit."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} GiB"
