"""Name, read, follow, write and remove the files in a capture folder.

    mcpmux-20261121T120000Z-5f3a9c01-0001.jsonl.gz   compressed while it is written
    mcpmux-20261121T120000Z-5f3a9c01-0001.jsonl      with `compress = false`

The names sort by time. A file belongs to one run and is locked while it is written, so that no other process
removes it. Readers take files in any state: growing, cut, damaged, half of another version. Unreadable lines
are reported and the rest is read.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import os
import re
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mcpmux import __version__
from mcpmux.config.traffic import Capture
from mcpmux.files import BINARY, lock_file
from mcpmux.traffic.record import VERSION, BadRecord, Record, Run, decode_record, encode_record
from mcpmux.transports.byte_stream import reason_of

try:
    from isal.isal_zlib import compressobj
except ImportError:  # it is not made for this kind of processor
    from zlib import compressobj  # type: ignore[assignment]  # the class that it returns has another name

SUFFIX = ".jsonl"
GZIP = ".gz"
COMPRESSED = SUFFIX + GZIP

LINE_LIMIT = 512 * 2**20  # bytes; a whole message in one record, with room to spare
CHUNK_BYTES = 64 * 2**10  # of lines that are read at a time
DAMAGED = "the compressed file is damaged from here on"
_MAGIC = b"\x1f\x8b"
_CUT = "the file was cut in the middle of this line"
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
    """Return the capture files of a folder, oldest first. Raises OSError when the folder cannot be read."""
    return sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name))


def expand_paths(paths: Sequence[Path]) -> list[Path]:
    """Return the paths with each folder replaced by its capture files. Raises OSError for a folder."""
    return [file for path in paths for file in (find_files(path) if path.is_dir() else [path])]


class LineReader:
    """Reads whole lines of a file that may be compressed, cut or still growing; `close` it. Blocks.

    `is_complete`: whether no more can come, as the compression has its end, or `is_damaged`.
    """

    def __init__(self, path: Path) -> None:
        """Open the file. Raises OSError."""
        self._file = path.open("rb")
        self._stream: gzip.GzipFile | BufferedReader | None = None
        self.is_complete = self.is_damaged = False
        self._begun: list[bytes] = []  # the line whose end has not been read
        self._size = 0  # of that line
        self.close = self._file.close

    def read(self) -> list[bytes]:
        """Return some lines without their ends; [] when there are no more so far. Raises OSError."""
        while data := self._read_some():
            piece, *pieces = data.split(b"\n")
            self._go_on(piece)
            if pieces:
                lines = self.take_rest() or [b""]
                self._go_on(pieces.pop())
                return lines + pieces
        return []

    def take_rest(self) -> list[bytes]:
        """Return the last line if it has no end, else []."""
        begun, self._begun, self._size = self._begun, [], 0
        return [b"".join(begun)] if begun else []

    def _read_some(self) -> bytes:
        if self._stream is None and (begin := self._file.peek(len(_MAGIC))):
            self._stream = gzip.GzipFile(fileobj=self._file) if begin.startswith(_MAGIC) else self._file
        if self._stream is None or self.is_complete:
            return b""
        try:
            data = self._stream.read1(CHUNK_BYTES)
        except EOFError:  # the compression has no end: more will come, or the file was cut
            return b""
        except (zlib.error, gzip.BadGzipFile):
            self.is_complete = self.is_damaged = True
            return b""
        self.is_complete = not data and self._stream is not self._file
        return data

    def _go_on(self, piece: bytes) -> None:
        if piece and self._size <= LINE_LIMIT:  # else the line is cut, and reported as no record
            self._begun.append(piece)
            self._size += len(piece)


def read_files(paths: Sequence[Path], on_bad: OnBad) -> Iterator[Record]:
    """Yield every record in files, plain or compressed, in the order of the files and their lines.

    `on_bad` is called with each line that is no record, with a file that ends in the middle of a line or is
    damaged, and with one that cannot be opened. Blocks; holds few lines in memory at a time.
    """
    for path in paths:
        yield from _read_file(path, on_bad)


def _read_file(path: Path, on_bad: OnBad) -> Iterator[Record]:
    number = 0
    try:
        with contextlib.closing(LineReader(path)) as reader:
            while lines := (whole := reader.read()) or reader.take_rest():
                for line in lines:
                    number += 1
                    try:
                        if line.strip():
                            yield decode_record(line)
                    except BadRecord as error:
                        on_bad(BadLine(path, number, str(error) if whole else _CUT))
            if reader.is_damaged:
                on_bad(BadLine(path, number + 1, DAMAGED))
    except OSError as error:
        on_bad(BadLine(path, 0, f"cannot read the file: {reason_of(error)}"))


# Files that grow, rotate and disappear. All that are being written are followed at once, so that several
# mcpmux may write into one folder.

LOOK_BACK_BYTES = 16 * 2**20  # of the newest records; reading more would take long
GZIP_GROWTH = 8  # ratio of a capture's size to its compressed size


class Follower:
    """Follows files, and new files in folders, as a context. Blocks, never for long: the caller waits."""

    def __init__(self, paths: Sequence[Path], on_bad: OnBad) -> None:
        """`found_nothing`: there is no file yet. Raises OSError when a path cannot be read."""
        self._folders = [path for path in paths if path.is_dir()]
        self._on_bad = on_bad
        self._start = expand_paths(paths)
        self.found_nothing = not self._start
        self.left_out = False
        self._known = set(self._start)
        # Other programs than mcpmux do not lock the plain files that they write.
        self.growing: dict[Path, LineReader] = {}
        for path in self._start:
            if path.suffix != GZIP or is_being_written(path):
                self._follow(path)

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self.growing.values():
            reader.close()

    def _follow(self, path: Path) -> None:
        """Begin to follow a file, unless it has been removed meanwhile, as the oldest ones are."""
        with contextlib.suppress(FileNotFoundError):
            self.growing[path] = LineReader(path)

    def recent(self) -> Iterator[Record]:
        """Yield the ends of the newest files, oldest record first; `read` continues behind them.

        Sets `left_out` if there is more before them.
        """
        size, place = 0, len(self._start)
        while place > 0 and size < LOOK_BACK_BYTES:
            place -= 1
            path = self._start[place]
            with contextlib.suppress(FileNotFoundError):
                size += path.stat().st_size * (GZIP_GROWTH if path.suffix == GZIP else 1)
        self.left_out = place > 0
        for number, path in enumerate(self._start):
            reader = self.growing.get(path)
            if reader is None:
                if number >= place:
                    yield from read_files([path], self._on_bad)
                continue
            end: deque[bytes] = deque()
            size = 0
            while lines := reader.read():
                end.extend(lines)
                size += sum(map(len, lines))
                while size > LOOK_BACK_BYTES:
                    self.left_out = True
                    size -= len(end.popleft())
            if number >= place:
                yield from self._records(path, end)

    def skip(self) -> None:
        """Skip all existing records."""
        for reader in self.growing.values():
            while reader.read():
                pass

    def read(self) -> list[Record]:
        """Return the records since the last read; [] when there are none."""
        records: list[Record] = []
        idle = True
        for path, reader in list(self.growing.items()):
            lines = reader.read()
            records += self._records(path, lines)
            idle = idle and not lines
            if reader.is_damaged:
                self._on_bad(BadLine(path, 0, DAMAGED))
            if not lines and (reader.is_complete or not path.exists()):
                self.growing.pop(path).close()
        if idle:  # else the rest of a complete file must come before the next file
            for path in (path for folder in self._folders for path in find_files(folder)):
                if path not in self._known:
                    self._known.add(path)
                    self._follow(path)
                    if path in self.growing:
                        records += self._records(path, self.growing[path].read())
        return records

    def _records(self, path: Path, lines: Iterable[bytes]) -> Iterator[Record]:
        for line in filter(bytes.strip, lines):
            try:
                yield decode_record(line)
            except BadRecord as error:
                self._on_bad(BadLine(path, 0, str(error)))


# Files that are removed, and those that may not be.


def remove_surplus(directory: Path, config: Capture, now: float) -> None:
    """Remove the oldest files until the rest is within the limits."""
    files = []
    for path in find_files(directory):
        with contextlib.suppress(FileNotFoundError):  # workers of one folder remove files at the same time
            files.append((path, path.stat()))
    total, count = sum(facts.st_size for _, facts in files), len(files)
    for path, facts in files:
        too_many = config.keep_files is not None and count > config.keep_files
        too_old = config.keep_age is not None and now - facts.st_mtime > config.keep_age
        if too_many or too_old or total > config.keep_bytes:
            for _ in _unlocked([path]):
                path.unlink(missing_ok=True)
                total, count = total - facts.st_size, count - 1


def is_being_written(path: Path) -> bool:
    """Return whether a process has locked a file to write it. Raises OSError."""
    return not list(_unlocked([path]))


def _unlocked(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the paths that no other process has locked, or that are gone, each locked until the next one."""
    for path in paths:
        with contextlib.ExitStack() as stack, contextlib.suppress(BlockingIOError):
            with contextlib.suppress(FileNotFoundError):
                lock_file(stack.enter_context(path.open("rb")).fileno())
            if sys.platform == "win32":
                stack.close()  # an open file cannot be removed there
            yield path


# Lines are compressed when they are added, which costs less than writing them plain, and are written later.
# What cannot be written stays, to be written again.

FOLDER_MODE = 0o700
FILE_MODE = 0o600
LEVEL = 1  # of the compression: the quickest that makes files small

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | BINARY


class _Waiting(msgspec.Struct):
    """Data of `count` messages for a file, which is to be begun, with the time `began`, or open (None)."""

    began: float | None
    data: list[bytes]
    count: int = 0


class CaptureWriter:
    """Writes one run's lines to one file at a time; `add` and `write` are for one caller at a time.

    `size`: bytes of a file's lines; `age`: of a file in seconds; `now`: the time by the run's clock.
    `rotated` becomes true when a file is complete.
    """

    def __init__(self, directory: Path, run: Run, size: int, age: float, *, compress: bool) -> None:
        self.directory = directory
        self.rotated = False
        self._run = run
        self._size_limit = size
        self._age_limit = age
        self._compress = compress
        self._compressor: Any = None
        self._waiting: deque[_Waiting] = deque()
        self._size, self._began = 0, -math.inf
        self._number = 0
        self._named = -math.inf  # the time in the name of the last file
        self._fd: int | None = None

    @property
    def waiting(self) -> int:
        """The number of messages that were added and are not, or not wholly, written."""
        return sum(part.count for part in self._waiting)

    def add(self, lines: bytes, count: int, now: float) -> None:
        """Add whole lines of so many messages, to a new file if the last one is large or old enough."""
        if self._size >= self._size_limit or now - self._began >= self._age_limit:
            self.end()
            if self._compress:
                self._compressor = compressobj(LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)  # a gzip header
            self._size, self._began = 0, now
            self._waiting.append(_Waiting(now, []))
            at, time = round(now - self._run.clock, 6), self._run.time_of(now)
            start = Record(VERSION, self._run.name, time, "start", at=at, version=__version__)
            self._put(encode_record(start))
        self._put(lines)
        self._waiting[-1].count += count

    def _put(self, data: bytes, flush: int = zlib.Z_SYNC_FLUSH) -> None:
        self._size += len(data)
        if self._compressor is not None:
            # Flushed, so that a reader of an unfinished file gets these lines.
            data = self._compressor.compress(data) + self._compressor.flush(flush)
        if not self._waiting:
            self._waiting.append(_Waiting(None, []))
        self._waiting[-1].data.append(data)

    def end(self) -> None:
        """End the compression, if a file has any; what is added afterwards begins a file."""
        if self._compressor is not None:
            self._put(b"", zlib.Z_FINISH)
            self._compressor = None
        self._began = -math.inf

    def write(self) -> None:
        """Write what was added. Raises OSError; what is left then can be written again. Blocks."""
        while self._waiting:
            part = self._waiting[0]
            data = b"".join(part.data)
            if part.began is not None:
                written = self._open(part.began, data)
                part.began = None
            else:
                assert self._fd is not None
                written = os.write(self._fd, data)
            part.data = [data[written:]]
            if written == len(data):
                self._waiting.popleft()

    def _open(self, began: float, data: bytes) -> int:
        """Begin a file. Return how much of the data it has. Raises OSError: there is no file."""
        self.close()
        self.directory.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        # Also after the system's time was set back the names of a run sort in the order of its files.
        self._named = max(self._named, self._run.wall_at(began))
        while self._fd is None:
            self._number += 1
            name = file_name(self._named, self._run.name, self._number)
            path = self.directory / (name + GZIP if self._compress else name)
            with contextlib.suppress(FileExistsError):  # of another run with the same random name
                self._fd = os.open(path, _FLAGS, FILE_MODE)
        try:
            lock_file(self._fd)
            return os.write(self._fd, data)
        except OSError:
            self.close()
            path.unlink(missing_ok=True)
            raise

    def close(self) -> None:
        """Close the file. Never raises: no data wait in it to be written."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self.rotated = True
            with contextlib.suppress(OSError):
                os.close(fd)
