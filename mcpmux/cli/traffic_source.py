"""What the `traffic` commands read, and which part of it: files, folders and filters of a command line."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from mcpmux.cli.console import is_screen, show_bytes, tell
from mcpmux.cli.process import Mistake
from mcpmux.config.traffic import Capture
from mcpmux.printable import printable
from mcpmux.traffic.audit.chain import number_of
from mcpmux.traffic.capture.files import COMPRESSED, SUFFIX, BadLine, expand_paths, read_files
from mcpmux.traffic.reading.filter_language import KEYS, NAMES, OPERATORS, SORTS, FilterError, hint_for
from mcpmux.traffic.reading.filters import Filter, parse_filter
from mcpmux.traffic.reading.summary import ExchangeSummary, Summarizer, Targets, statuses_of
from mcpmux.traffic.record import Record, encode_record

F = TypeVar("F", bound=Callable[..., Any])

FOLDER = Capture().directory
TOLD_LIMIT = 5  # bad lines that are told one by one

where_argument = click.argument("where", nargs=-1, metavar="[FILES|DIR]... [FILTER]...")
by_option = click.option(
    "--by",
    type=click.Choice(["message", "exchange"]),
    default="message",
    show_default=True,
    help="A line for each message, or for each whole exchange.",
)


def filter_help() -> str:
    """The table of keys, for `--help`."""
    lines = ["\b", "Filter, in single quotes; all terms must hold; times are in UTC:"]
    for key in KEYS.values():
        operators = " ".join(SORTS[key.sort].operators)
        names = ", ".join((key.name, *key.aliases))
        lines.append(f"  {names:<23} {operators:<15}  {key.about}")
    lines += [
        "a|b: one of them. * stands for any text; ~ ignores case and is content with a part.",
        '"quotes": blanks, | and *. key= is absent, key!= is there. !term is its opposite.',
    ]
    return "\n".join(lines)


class Where:
    """What to read and what of it is wanted. Mistakes in it are told as such."""

    def __init__(
        self, words: Sequence[str], change: Callable[[Record], Record] = lambda record: record
    ) -> None:
        """`change` is made in every message before anything else. Raises Mistake."""
        self._change = change
        paths, terms = split_words(words)
        self.filter = read_filter(" ".join(terms), terms)
        self.paths = paths or [Path(FOLDER)]
        self._bad = 0
        self._unread: dict[Path, None] = {}  # files of which nothing could be read
        for path in self.paths:
            if not path.exists():
                raise Mistake(missing(path))

    def __repr__(self) -> str:
        return f"<Where {self.paths} {self.filter}>"

    def records(self) -> Iterator[Record]:
        """All wanted messages; answers have the target of their request."""
        wanted = self.filter.matches
        return (record for record in self.everything() if record.kind != "start" and wanted(record))

    def everything(self) -> Iterator[Record]:
        """All messages, and notes of the capture itself."""
        fill = Targets().fill
        for path in self.files():
            before, nothing = self._bad, True
            for record in read_files([path], self.on_bad):
                nothing = False
                yield fill(self._change(record))
            if nothing and self._bad > before:
                self._unread[path] = None
        self.tell_bad()

    def summaries(self) -> Iterator[ExchangeSummary]:
        """All wanted exchanges, as they end; those without an answer at the end."""
        summarizer = Summarizer(self.filter.body_tests)
        for record in self.everything():
            yield from filter(self.filter.matches, summarizer.add(record))
        yield from filter(self.filter.matches, summarizer.rest())

    def files(self) -> list[Path]:
        """The files to read. Raises Mistake."""
        try:
            files = expand_paths(self.paths)
        except OSError as error:
            raise Mistake(f"{error.filename}: {(error.strerror or str(error)).lower()}") from None
        if not files:
            raise Mistake(no_files(self.paths[0]))
        return files

    def on_bad(self, bad: BadLine) -> None:
        """What could not be read is told, and the rest is read."""
        self._bad += 1
        if self._bad <= TOLD_LIMIT:
            tell(f"not read: {bad}")

    def check_read(self) -> None:
        """Raises ClickException when there was a file that could not be read at all; the rest is done."""
        if self._unread:
            raise click.ClickException(f"nothing could be read of {', '.join(map(str, self._unread))}")

    def tell_bad(self) -> None:
        """How much more could not be read."""
        if self._bad > TOLD_LIMIT:
            tell(f"not read: {self._bad - TOLD_LIMIT} more lines")
        self._bad = 0


def split_words(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Files and folders, and the terms of a filter: what is there, or is called like a file, is a file."""
    paths = [Path(word) for word in words if _is_path(word)]
    return paths, [word for word in words if not _is_path(word)]


def _is_path(word: str) -> bool:
    if word.endswith((SUFFIX, COMPRESSED)) or _exists(word):
        return True
    if any(operator in word for operator in OPERATORS) or " " in word or hint_for(word) is not None:
        return False
    return not difflib.get_close_matches(word.lstrip("!").lower(), NAMES, n=1)


def _exists(word: str) -> bool:
    try:
        return bool(word) and Path(word).exists()
    except (OSError, ValueError):  # too long, or with a NUL
        return False


def no_files(folder: Path) -> str:
    """What to say of a folder without a capture in it."""
    found = f"{folder}: there are no capture files in this folder"
    others = sorted(path for path in folder.iterdir() if path.name.endswith((SUFFIX, COMPRESSED)))
    if not others:
        return found
    if any(number_of(path) is not None for path in others):
        return f"{found}, but an audit log: `mcpmux audit show` reads that"
    hint = f"name files of other names one by one, such as {others[0]}"
    return f"{found}: they are called mcpmux-….jsonl; {hint}"


def missing(path: Path) -> str:
    """What to say of a path where nothing is."""
    hint = "name a capture file or folder; `capture.level` in the configuration makes mcpmux write them"
    return f"{path}: there is no such file or folder; {hint}"


def read_filter(text: str, words: Sequence[str] = ()) -> Filter:
    """Raises Mistake, which shows the place. `words` may have been meant as files."""
    try:
        return parse_filter(text, datetime.now(UTC))
    except FilterError as error:
        wrong = error.text[error.start : error.end]
        nor = f"\nNor is there a file or folder of that name: {printable(wrong)}" if wrong in words else ""
        raise Mistake(show_place(error) + nor) from None


def show_place(error: FilterError) -> str:
    """The problem, and the filter with the wrong place marked."""
    before, wrong = (
        printable(part) for part in (error.text[: error.start], error.text[error.start : error.end])
    )
    after = printable(error.text[error.end :])
    return f"{error.problem}\n  {before}{wrong}{after}\n  {' ' * len(before)}{'^' * max(1, len(wrong))}"


# Lines to stdout: the first one at once, of very many several together.

TOGETHER_SECONDS = 0.05  # that a line may wait for others
TOGETHER_LINES = 500


def json_line(record: Record) -> str:
    """A message as it is in a capture; on a terminal without what would move it about."""
    line = encode_record(record).decode("utf-8", "replace").rstrip("\n")
    return printable(line) if is_screen() else line


def show_lines(lines: list[str]) -> None:
    """Write them at once."""
    if lines:
        show_bytes(("\n".join(lines) + "\n").encode("utf-8", "replace"))


def stream_lines(lines: Iterable[str]) -> int:
    """Write them as they come; how many there were."""
    number = 0
    for part in _together(lines):
        show_lines(part)
        number += len(part)
    return number


def _together(lines: Iterable[str]) -> Iterator[list[str]]:
    waiting: list[str] = []
    last = 0.0
    for line in lines:
        waiting.append(line)
        now = time.monotonic()
        if len(waiting) >= TOGETHER_LINES or now - last >= TOGETHER_SECONDS:
            yield waiting
            waiting, last = [], now
    yield waiting


# Messages and exchanges as lines for people.
#
#     2026-11-21 12:44:59.123    #17      c1 →            resources/read docs+file:///a.md  66 B
#     2026-11-21 12:44:59.124    #17         → docs       resources/read file:///a.md  61 B
#     2026-11-21 12:44:59.135    #17         ← docs       resources/read file:///a.md  ok  11.0 ms
#     2026-11-21 12:44:59.136    #17      c1 ←            resources/read docs+file:///a.md  ok  12.9 ms
#
# Clients are left, upstreams right, mcpmux is between them. Whatever strangers wrote is made printable: it
# can neither steer a terminal nor make up a line.

TARGET_LIMIT = 200  # characters of a URI that are worth a line
NAME_LIMIT = 40

_STYLES = {"ok": "green", "open": "yellow", "cancelled": "yellow"}


class Painter:
    """Colours on a terminal, none elsewhere."""

    def __init__(self, *, colour: bool) -> None:
        self.colour = colour

    def __call__(self, text: str, **style: Any) -> str:
        """The text in a style of click."""
        return click.style(text, **style) if self.colour else text


def message_line(record: Record, paint: Painter) -> str:
    """One message."""
    parts = [_what(record.method or record.kind, record.target, paint)]
    statuses = statuses_of(record)
    if statuses:
        parts.append(_status(statuses, record.code, paint))
    if record.ms is not None:
        parts.append(format_ms(record.ms))
    parts.append(paint(format_size(record.size), dim=True))
    head = f"{paint(format_time(record.time), dim=True)} {_number(record.exchange)} {_flow(record)}"
    return f"{head} {'  '.join(parts)}"


def summary_line(summary: ExchangeSummary, paint: Painter) -> str:
    """One exchange."""
    who = printable((summary.client or "")[:NAME_LIMIT]) or ", ".join(map(printable, summary.peer[:1]))
    what = _what(summary.method or "?", summary.target[0] if summary.target else None, paint)
    parts = [f"{who}  {what}"]
    if summary.upstream:
        parts.append(paint(f"→ {printable(', '.join(summary.upstream))}", dim=True))
    parts.append(_status(summary.statuses, summary.code, paint))
    if summary.ms is not None:
        parts.append(format_ms(summary.ms))
    sizes = format_size(summary.size)
    if summary.answer_size is not None:
        sizes += f" / {format_size(summary.answer_size)}"
    parts.append(paint(sizes, dim=True))
    head = f"{paint(format_time(summary.time), dim=True)} {_number(summary.exchange)}"
    return f"{head}  {'  '.join(parts)}"


def _number(exchange: int | None) -> str:
    return f"{f'#{exchange}' if exchange is not None else '-':>6}"


def _flow(record: Record) -> str:
    """Who to whom: the client, mcpmux in the middle, the upstream."""
    peer = printable((record.peer or "?")[:NAME_LIMIT])
    if record.leg == "client":
        return f"{peer:>6} {'→' if record.direction == 'in' else '←'} {'':<10}"
    return f"{'':>6} {'←' if record.direction == 'in' else '→'} {peer:<10}"


def _what(method: str, target: str | None, paint: Painter) -> str:
    said = paint(printable(method[:TARGET_LIMIT]), bold=True)
    if target is None:
        return said
    return f"{said} {printable(target[:TARGET_LIMIT])}{'…' if len(target) > TARGET_LIMIT else ''}"


def _status(statuses: tuple[str, ...], code: int | None, paint: Painter) -> str:
    words = [word for word in statuses if not word.endswith("xx")]
    text = " ".join(words)
    if code is not None and words[:1] == ["error"]:
        text = text.replace("error", f"error {code}", 1)
    return paint(text, fg=_STYLES.get(statuses[0], "red"))


def format_time(time: str) -> str:
    """A record's time up to milliseconds, in UTC."""
    return printable(time[:23].replace("T", " "))


def format_ms(ms: float) -> str:
    """A duration in the unit that fits."""
    if ms < 1000:
        return f"{ms:.1f} ms" if ms < 100 else f"{ms:.0f} ms"
    return f"{ms / 1000:.2f} s" if ms < 60_000 else f"{ms / 60_000:.1f} min"


def format_size(size: float) -> str:
    """Bytes in the unit that fits."""
    if size < 1024:
        return f"{size:.0f} B"
    units = ["KiB", "MiB", "GiB"]
    size /= 1024
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.1f} {units[0]}"
