"""Name, read, write, compress and remove the files in a capture folder.

    mcpmux-20261121T120000Z-5f3a9c01-0001.jsonl      being written, or left behind by a run that was killed
    mcpmux-20261121T120000Z-5f3a9c01-0001.jsonl.gz   complete and compressed

The names sort by time. A file belongs to one run and is locked while it is written, so that no other process
removes or compresses it. Readers take files in any state: cut, damaged, half of another version. Unreadable
lines are reported and the rest is read.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mcpmux import __version__
from mcpmux.config.traffic import Capture
from mcpmux.traffic.record import VERSION, BadRecord, Record, Run, decode_record, encode_record
from mcpmux.transports.byte_stream import reason_of
from mcpmux.transports.file_lock import BINARY, lock_file

try:
    from isal.igzip import GzipFile
except ImportError:  # it is not made for this kind of processor
    from gzip import GzipFile

SUFFIX = ".jsonl"
COMPRESSED = ".jsonl.gz"
UNFINISHED = ".part"  # behind a name: being compressed; a leftover of that is useless

LINE_LIMIT = 512 * 2**20  # bytes; a whole message in one record, with room to spare

_NAME = re.compile(r"mcpmux-\d{8}T\d{6}Z-[0-9a-z]+-\d{4,}\.jsonl(\.gz)?")


class BadLine(NamedTuple):
    """An unreadable line. Line 0 is the file as a whole."""

    path: Path
    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem}" if self.line else f"{self.path}: {self.problem}"


OnBad = Callable[[BadLine], None]


def file_name(wall: float, run: str, number: int) -> str:
    """Return the name of a run's file, begun at `wall` (seconds since 1970)."""
    return f"mcpmux-{datetime.fromtimestamp(wall, UTC):%Y%m%dT%H%M%SZ}-{run}-{number:04}{SUFFIX}"


def find_files(directory: Path) -> list[Path]:
    """Return the capture files of a folder, oldest first; of a file and its compressed copy the file.

    Raises OSError when the folder cannot be read.
    """
    files: dict[str, Path] = {}
    for path in sorted(directory.iterdir()):  # so `x.jsonl` comes before `x.jsonl.gz`, and stays
        if _NAME.fullmatch(path.name):
            files.setdefault(path.name.removesuffix(".gz"), path)
    return list(files.values())


def expand_paths(paths: Sequence[Path]) -> list[Path]:
    """Return the paths with each folder replaced by its capture files. Raises OSError for a folder."""
    return [file for path in paths for file in (find_files(path) if path.is_dir() else [path])]


def read_files(paths: Sequence[Path], on_bad: OnBad) -> Iterator[Record]:
    """Yield every record in files, plain or compressed, in the order of the files and their lines.

    `on_bad` is called with each line that is no record, with a file that ends in the middle of a line or of
    its compression, and with one that cannot be opened. Blocks; holds one line in memory at a time.
    """
    for path in paths:
        yield from _read_file(path, on_bad)


def _read_file(path: Path, on_bad: OnBad) -> Iterator[Record]:
    number = 0
    try:
        with path.open("rb") as raw:
            stream = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
            while line := stream.readline(LINE_LIMIT):
                number += 1
                whole = line.endswith(b"\n")
                if not whole and len(line) == LINE_LIMIT:
                    on_bad(BadLine(path, number, f"the line is longer than {LINE_LIMIT} bytes"))
                    while (piece := stream.readline(2**20)) and not piece.endswith(b"\n"):
                        pass
                elif line.strip():
                    try:
                        yield decode_record(line)
                    except BadRecord as error:
                        problem = str(error) if whole else "the file was cut in the middle of this line"
                        on_bad(BadLine(path, number, problem))
    except EOFError:
        on_bad(BadLine(path, number + 1, "the compressed file was cut here"))
    except (zlib.error, gzip.BadGzipFile):
        on_bad(BadLine(path, number + 1, "the compressed file is damaged from here on"))
    except OSError as error:
        on_bad(BadLine(path, 0, f"cannot read the file: {reason_of(error)}"))


# Complete files are compressed, and files beyond the limits of number, size and age removed. This blocks.
# A file that a process is still writing is locked, and left alone.

CHUNK = 64 * 2**10  # bytes that are compressed at a time, in half a millisecond or so
LEVEL = 1  # of gzip: the quickest that makes files small; ISA-L has 0 to 3


def sweep(directory: Path, config: Capture, rest: Callable[[float], None], now: float) -> None:
    """Sweep the folder once. `now`: seconds since 1970. Raises OSError.

    `rest` waits for a number of seconds; an exception of it ends the work.
    """
    leftovers = directory.glob(f"mcpmux-*{COMPRESSED}{UNFINISHED}")
    for path in _unlocked([leftover.with_suffix("").with_suffix("") for leftover in leftovers]):
        path.with_name(path.name + ".gz" + UNFINISHED).unlink(missing_ok=True)
    if config.compress:
        for path in _unlocked(file for file in find_files(directory) if file.name.endswith(SUFFIX)):
            compress(path, rest)
    remove_surplus(directory, config, now)


def compress(path: Path, rest: Callable[[float], None]) -> None:
    """Replace a file by its `.gz`, with the same time. Rests half of the time: traffic goes first."""
    whole = path.with_name(path.name + ".gz")
    part = whole.with_name(whole.name + UNFINISHED)
    try:
        with path.open("rb") as source, open(part, "wb", opener=partial(os.open, mode=FILE_MODE)) as raw:
            with GzipFile("", "wb", LEVEL, raw, mtime=0) as target:
                began = time.monotonic()
                while chunk := source.read(CHUNK):
                    target.write(chunk)
                    rest(time.monotonic() - began)
                    began = time.monotonic()
            raw.flush()
            os.fsync(raw.fileno())
        # A crash leaves the plain file, or both: never the compressed one alone before it is on the disk.
        shutil.copystat(path, part)
        part.replace(whole)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    path.unlink()


def remove_surplus(directory: Path, config: Capture, now: float) -> None:
    """Remove the oldest files until the rest is within the limits."""
    files = [(path, path.stat()) for path in find_files(directory)]
    total, count = sum(facts.st_size for _, facts in files), len(files)
    for path, facts in files:
        too_many = config.keep_files is not None and count > config.keep_files
        too_old = config.keep_age is not None and now - facts.st_mtime > config.keep_age
        if too_many or too_old or total > config.keep_bytes:
            for _ in _unlocked([path]):
                path.unlink(missing_ok=True)
                total, count = total - facts.st_size, count - 1


def _unlocked(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the paths that no other process has locked, or that are gone, each locked until the next one."""
    for path in paths:
        with contextlib.ExitStack() as stack, contextlib.suppress(BlockingIOError):
            with contextlib.suppress(FileNotFoundError):
                lock_file(stack.enter_context(path.open("rb")).fileno())
            if sys.platform == "win32":
                stack.close()  # an open file cannot be removed there
            yield path


# One run's files are written in whole lines only, and as many as there is room for. When a write fails, an
# incomplete line is cut off, so that this line can be written again later; when even that is
# impossible, a new file is begun. All of it blocks, for one caller at a time.

FOLDER_MODE = 0o700
FILE_MODE = 0o600

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | BINARY


class CaptureWriter:
    """Writes one file at a time. `size` in bytes, `age` in seconds; `now` is the time by the run's clock.

    `rotated` becomes true when a file is complete.
    """

    def __init__(self, directory: Path, run: Run, size: int, age: float) -> None:
        self.directory = directory
        self.rotated = False
        self._run = run
        self._size_limit = size
        self._age_limit = age
        self._number = 0
        self._fd: int | None = None
        self._size = 0
        self._began = 0.0

    def open(self, now: float) -> None:
        """Begin a file when none is open. Raises OSError."""
        if self._fd is not None:
            return
        self.directory.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        while self._fd is None:
            self._number += 1
            path = self.directory / file_name(self._run.wall_at(now), self._run.name, self._number)
            with contextlib.suppress(FileExistsError):  # of another run with the same random name
                self._fd = os.open(path, _FLAGS, FILE_MODE)
        self._size, self._began = 0, now
        at = round(now - self._run.clock, 6)
        time = self._run.time_of(now)
        start = Record(v=VERSION, run=self._run.name, time=time, at=at, kind="start", version=__version__)
        try:
            lock_file(self._fd)
            self._append(encode_record(start))
        except OSError:
            self.close()
            path.unlink(missing_ok=True)
            raise

    def write(self, lines: bytes, now: float) -> int:
        """Write as many lines, each with its newline, as belong into one file.

        Returns the number of bytes written, of whole lines. Raises OSError when not even the first could be;
        the rest can be written again in any case.
        """
        if now - self._began >= self._age_limit:
            self.close()
        self.open(now)
        # At least one line, of any length, goes into a file.
        room = max(self._size_limit - self._size, 1)
        if len(lines) >= room:
            lines = lines[: lines.find(b"\n", room - 1) + 1 or None]
        written = self._append(lines)
        if self._size >= self._size_limit:
            self.close()
        return written

    def _append(self, lines: bytes) -> int:
        assert self._fd is not None
        good, rest = self._size, memoryview(lines)
        try:
            while rest:
                written = os.write(self._fd, rest)
                self._size += written
                rest = rest[written:]
        except OSError:
            whole = lines.rfind(b"\n", 0, self._size - good) + 1  # bytes that end with a line
            try:
                os.ftruncate(self._fd, good + whole)
                self._size = good + whole
            except OSError:
                self.close()
            if not whole:
                raise
            return whole
        return self._size - good

    def close(self) -> None:
        """Complete the file. Never raises: no data wait in it to be written."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self.rotated = True
            with contextlib.suppress(OSError):
                os.close(fd)
