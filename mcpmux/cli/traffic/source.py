"""Read capture files and filters for the `traffic` commands, and print one line a message."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import click

from mcpmux.cli.completion import Items, complete_file, offer
from mcpmux.cli.console import is_screen, show_bytes, show_reading, tell
from mcpmux.cli.options import load_config
from mcpmux.cli.process import Mistake
from mcpmux.config.traffic import Capture
from mcpmux.printable import printable
from mcpmux.traffic.audit.chain import number_of
from mcpmux.traffic.capture.files import COMPRESSED, SUFFIX, BadLine, expand_paths, read_files
from mcpmux.traffic.reading.filters import (
    KEYS,
    NAMES,
    SORTS,
    Filter,
    FilterError,
    Key,
    Sightings,
    may_be_term,
    parse_filter,
)
from mcpmux.traffic.reading.summary import Targets
from mcpmux.traffic.record import Record
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.transports.byte_stream import reason_of

FOLDER = Capture().directory
MESSAGES_EACH = 1000  # between two looks at the clock
TOLD_LIMIT = 5  # lines that cannot be read and are named one by one


def complete_filter(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Return keys of filters, and let the shell complete files."""
    files = complete_file(context, parameter, incomplete)
    return [*files, *offer(incomplete, lambda: (f"{key}=" for key in KEYS))]


where_argument = click.argument(
    "where", nargs=-1, metavar="[FILES|DIR]... [FILTER]...", shell_complete=complete_filter
)
redact_option = click.option(
    "--redact", metavar="CONFIG", help="Also redact output by the [redaction] of this configuration."
)


def read_redactor(config: str | None) -> Redactor:
    """Return the redactor for `--redact CONFIG`. Raises ConfigError."""
    return Redactor(load_config(config).redaction if config is not None else None)


def filter_help() -> str:
    """Return the table of filter keys, for `--help`."""
    lines = ["\b", "Filter, in single quotes. All terms must hold. Times are in UTC:"]
    for key in KEYS.values():
        operators = " ".join(SORTS[key.sort].operators)
        names = ", ".join((key.name, *key.aliases))
        lines.append(f"  {names:<23} {operators:<15}  {key.about}")
    lines += [
        "a|b: one of them. * stands for any text; ~ ignores case and also finds a part.",
        '"quotes": blanks, | and *. key= is absent, key!= is there. !term is its opposite.',
        "A word alone is searched for in bodies, methods, names and URIs. #17: exchange 17. -32602: a code.",
    ]
    return "\n".join(lines)


class CaptureFiles:
    """Capture files and folders, and a filter for their messages.

    Lines that cannot be read are named on stderr, the rest is read. `change` is applied to messages first.
    `prints`: the command prints while it reads, so that on a terminal there is no room for a progress bar.
    """

    def __init__(
        self,
        words: Sequence[str | Path],
        change: Callable[[Record], Record] = lambda record: record,
        *,
        prints: bool = False,
    ) -> None:
        """`words` are files, folders and terms of a filter. Without any path it is the default folder.

        Raises Mistake for a path that does not exist.
        """
        terms = [str(word) for word in words if not is_path(word)]
        self.filter = read_filter(" ".join(terms), terms)
        self.paths = [Path(word) for word in words if word not in terms] or [Path(FOLDER)]
        self._change = change
        self._has_bar = not (prints and is_screen())
        self._sightings = Sightings(self.filter)
        self._bad = 0
        self._unread: list[Path] = []  # files without a readable line
        for path in self.paths:
            if not path.exists():
                hint = "`capture.level` in the configuration makes mcpmux write them"
                problem = f"{path}: there is no such file or folder; name a capture file or folder; {hint}"
                raise Mistake(problem + self._no_paths())

    def files(self) -> list[Path]:
        """Return the files to read. Raises Mistake."""
        try:
            files = expand_paths(self.paths)
        except OSError as error:
            raise Mistake(f"{error.filename}: {reason_of(error)}") from None
        if not files:
            raise Mistake(no_files(self.paths[0]))
        return files

    def records(self) -> Iterator[Record]:
        """Yield all messages, and notes about the capture itself."""
        files, count = self.files(), 0
        with show_reading(self._has_bar) as report:
            for number, path in enumerate(files):
                bad, nothing = self._bad, True
                for record in read_files([path], self.on_bad):
                    count += 1
                    if not count % MESSAGES_EACH:
                        report(number, len(files), f"reading {path.name}, {count:,} messages so far")
                    nothing = False
                    self._sightings.add(record)
                    yield record
                if nothing and self._bad > bad:
                    self._unread.append(path)
        self.tell_bad()

    def everything(self) -> Iterator[Record]:
        """Yield all messages and notes. Responses have the target of their request."""
        fill = Targets().fill
        return (fill(self._change(record)) for record in self.records())

    def wanted(self) -> Iterator[Record]:
        """Yield the messages that the filter wants. Responses have the target of their request."""
        matches = self.filter.matches
        return (record for record in self.everything() if record.kind != "start" and matches(record))

    def on_bad(self, bad: BadLine) -> None:
        """Name a line that cannot be read, unless there were many."""
        self._bad += 1
        if self._bad <= TOLD_LIMIT:
            tell(f"not read: {bad}")

    def tell_bad(self) -> None:
        if self._bad > TOLD_LIMIT:
            tell(f"not read: {self._bad - TOLD_LIMIT} more lines")
        self._bad = 0

    def tell_nothing_fits(self) -> None:
        """Report that no message fits the filter, if there is one, and suggest other names."""
        if self.filter:
            tell(f"no message fits the filter{self._sightings.advice()}{self._no_paths()}")

    def _no_paths(self) -> str:
        """Return a hint that words of the filter are no files, as one may have been meant as such."""
        words = ", ".join(map(printable, self.filter.searched))
        return f"; there is no file or folder {words} either" if words else ""

    def check_read(self) -> None:
        """Raise ClickException at the end if a file had no readable line."""
        if self._unread:
            raise click.ClickException(f"nothing could be read of {', '.join(map(str, self._unread))}")


def is_path(word: str | Path) -> bool:
    """Return whether a word is a file or folder: it exists, or its name looks like that of a file."""
    if isinstance(word, Path):
        return True
    with suppress(OSError, ValueError):  # too long, or with a NUL
        if word.endswith((SUFFIX, COMPRESSED)) or (word and Path(word).exists()):
            return True
    return not may_be_term(word)


def no_files(folder: Path) -> str:
    """Return the message about a folder without a capture."""
    others = sorted(path for path in folder.iterdir() if path.name.endswith((SUFFIX, COMPRESSED)))
    hint = ""
    if any(number_of(path) is not None for path in others):
        hint = ", but an audit log: `mcpmux audit show` reads that"
    elif others:
        hint = f": they are called mcpmux-….jsonl; name files of other names one by one, such as {others[0]}"
    return f"{folder}: there are no capture files in this folder{hint}"


def read_filter(text: str, words: Sequence[str] = (), names: Mapping[str, Key] = NAMES) -> Filter:
    """Return the filter in `text`. Raises Mistake that shows the place. `words` may have been meant as files.

    `names`: see `parse_filter`.
    """
    try:
        return parse_filter(text, datetime.now(UTC), names)
    except FilterError as error:
        wrong = error.text[error.start : error.end]
        nor = f"\nNor is there a file or folder of that name: {printable(wrong)}" if wrong in words else ""
        raise Mistake(show_place(error) + nor) from None


def show_place(error: FilterError) -> str:
    """Return the problem, and the filter with the wrong place marked."""
    parts = (error.text[: error.start], error.text[error.start : error.end], error.text[error.end :])
    left, wrong, after = map(printable, parts)
    return f"{error.problem}\n  {left}{wrong}{after}\n  {' ' * len(left)}{'^' * max(1, len(wrong))}"


def show_lines(lines: Collection[str]) -> None:
    if lines:
        show_bytes(("\n".join(lines) + "\n").encode("utf-8", "replace"))


def format_time(time: str) -> str:
    """Return the time of a record in UTC, up to milliseconds, as filters take it."""
    return printable(time[:23])
