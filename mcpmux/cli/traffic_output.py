"""Lines to stdout: the first one at once, of very many several together."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from mcpmux.cli.console import is_screen, show_bytes
from mcpmux.printable import printable
from mcpmux.traffic.record import Record, encode_record

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
