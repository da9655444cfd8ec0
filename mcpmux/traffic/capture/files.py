"""The folder of capture files: what they are called, in which order they are read, what is in them.

    mcpmux-20261121T120000Z-5f3a9c01-0001.jsonl      being written, or left as it was by a run that was killed
    mcpmux-20261121T120000Z-5f3a9c01-0001.jsonl.gz   complete and compressed

The names sort by time. A file belongs to one run and is locked while it is written, so that no other process
removes or compresses it. Readers take files as they are: cut, damaged, half of another version. What cannot
be read is reported and the rest is read.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, NamedTuple

from mcpmux.traffic.record import BadRecord, Record, decode_record

SUFFIX = ".jsonl"
COMPRESSED = ".jsonl.gz"
UNFINISHED = ".part"  # behind a name: being compressed; a leftover of that is worth nothing

LINE_LIMIT = 512 * 2**20  # bytes; a whole message in one record, with room to spare

_NAME = re.compile(r"mcpmux-\d{8}T\d{6}Z-[0-9a-z]+-\d{4,}\.jsonl(\.gz)?")


class BadLine(NamedTuple):
    """What could not be read. Line 0 is the file as a whole."""

    path: Path
    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem}" if self.line else f"{self.path}: {self.problem}"


OnBad = Callable[[BadLine], None]


def file_name(wall: float, run: str, number: int) -> str:
    """The name of a run's file, begun at `wall` (seconds since 1970)."""
    moment = datetime.fromtimestamp(wall, UTC)
    return f"mcpmux-{moment:%Y%m%dT%H%M%SZ}-{run}-{number:04}{SUFFIX}"


def find_files(directory: Path) -> list[Path]:
    """The capture files of a folder, oldest first; of a file and its compressed copy the file.

    Raises OSError when the folder cannot be read.
    """
    found: dict[str, Path] = {}
    for path in sorted(directory.iterdir()):  # a name stands before the same name with more behind it
        if _NAME.fullmatch(path.name):
            found.setdefault(path.name.removesuffix(".gz"), path)
    return list(found.values())


def expand_paths(paths: Sequence[Path]) -> list[Path]:
    """The same with each folder replaced by the capture files in it. Raises OSError for a folder."""
    return [file for path in paths for file in (find_files(path) if path.is_dir() else [path])]


def read_files(paths: Sequence[Path], on_bad: OnBad) -> Iterator[Record]:
    """Every record in files, plain or compressed, in the order of the files and their lines.

    `on_bad` is called with each line that is no record, with a file that ends in the middle of a line or of
    its compression, and with one that cannot be opened. Blocks; of a file one line at a time is in memory.
    """
    for path in paths:
        try:
            with path.open("rb") as raw:
                compressed = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                stream: IO[bytes] = gzip.GzipFile(fileobj=raw) if compressed else raw  # type: ignore[assignment]
                yield from _read_lines(path, stream, on_bad)
        except OSError as error:
            on_bad(BadLine(path, 0, f"cannot read the file: {(error.strerror or str(error)).lower()}"))


def _read_lines(path: Path, stream: IO[bytes], on_bad: OnBad) -> Iterator[Record]:
    number = 0
    try:
        while line := stream.readline(LINE_LIMIT):
            number += 1
            whole = line.endswith(b"\n")
            if not whole and len(line) == LINE_LIMIT:
                on_bad(BadLine(path, number, f"the line is longer than {LINE_LIMIT} bytes"))
                _skip_line(stream)
            elif line.strip():
                try:
                    record = decode_record(line)
                except BadRecord as error:
                    problem = str(error) if whole else "the file was cut in the middle of this line"
                    on_bad(BadLine(path, number, problem))
                else:
                    yield record
    except EOFError:
        on_bad(BadLine(path, number + 1, "the compressed file was cut here"))
    except (zlib.error, gzip.BadGzipFile):
        on_bad(BadLine(path, number + 1, "the compressed file is damaged from here on"))


def _skip_line(stream: IO[bytes]) -> None:
    while (piece := stream.readline(2**20)) and not piece.endswith(b"\n"):
        pass
