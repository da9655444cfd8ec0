"""Writes one run's capture files. Blocks: used from a thread, by one caller at a time.

Promises: whole lines only, and as many as there is room for. When a write fails, what it has written of a
line is taken back, so that this line can be written again later; when even that is impossible, a new file is
begun.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from mcpmux import __version__
from mcpmux.traffic.capture.files import file_name
from mcpmux.traffic.capture.message import Run, start_record
from mcpmux.traffic.record import encode_record

FOLDER_MODE = 0o700
FILE_MODE = 0o600
PARTS_AT_ONCE = 1024  # Linux takes no more in one call
NAMES_TRIED = 100  # a name is taken only when two runs have the same random name

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC


class CaptureWriter:
    """One file at a time is open. `size` in bytes, `age` in seconds; `now` is the time by the run's clock."""

    def __init__(self, directory: Path, run: Run, size: int, age: float) -> None:
        self.directory = directory
        self._rotated = False
        self._run = run
        self._size_limit = size
        self._age_limit = age
        self._number = 0
        self._fd: int | None = None
        self._path: Path | None = None
        self._size = 0
        self._began = 0.0

    def __repr__(self) -> str:
        return f"<CaptureWriter {self._path} {self._size} bytes>"

    def take_rotated(self) -> bool:
        """Whether a file has become complete since this was asked last."""
        rotated, self._rotated = self._rotated, False
        return rotated

    def open(self, now: float) -> None:
        """Begin a file when none is open. Raises OSError."""
        if self._fd is not None:
            return
        self.directory.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        self._fd, self._path = self._create(now)
        self._size, self._began = 0, now
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._append([encode_record(start_record(self._run, now, __version__))])
        except OSError:
            self._abandon()
            raise

    def _create(self, now: float) -> tuple[int, Path]:
        for _ in range(NAMES_TRIED):
            self._number += 1
            wall = self._run.wall + now - self._run.clock
            path = self.directory / file_name(wall, self._run.name, self._number)
            try:
                return os.open(path, _FLAGS, FILE_MODE), path
            except FileExistsError:
                continue
        raise FileExistsError(f"{NAMES_TRIED} files of run {self._run.name} are there already")

    def write(self, parts: Sequence[bytes], now: float) -> int:
        """Write parts of whole lines, each with its newline, into as many files as it takes.

        Returns how many bytes are written, of whole lines. Raises OSError when not even the first could be;
        the rest can be written again in any case.
        """
        size = sum(map(len, parts))
        if self._fd is None or self._is_old(now) or self._size + size >= self._size_limit:
            return self._spread(b"".join(parts), now)
        return self._append(parts)

    def _spread(self, lines: bytes, now: float) -> int:
        """The same for lines that may not all belong into the open file."""
        done = 0
        while done < len(lines):
            try:
                end = self._end_of_file(lines, done, now)
                done += self._append([lines[done:end]])
            except OSError:
                if not done:
                    raise
                break
            if self._size >= self._size_limit:
                self.close()
        return done

    def _end_of_file(self, lines: bytes, start: int, now: float) -> int:
        """Where the lines end that go into the open file: as many as fit, at least one."""
        if self._fd is not None and self._is_old(now):
            self.close()
        self.open(now)
        room = max(self._size_limit - self._size, 1)
        return lines.find(b"\n", start + room - 1) + 1 or len(lines)

    def _is_old(self, now: float) -> bool:
        return now - self._began >= self._age_limit

    def _append(self, parts: Sequence[bytes]) -> int:
        """As they are: joined, they would be in memory twice. Returns and raises what `write` does."""
        assert self._fd is not None
        good, rest = self._size, parts
        try:
            while rest:
                written = os.writev(self._fd, rest[:PARTS_AT_ONCE])
                self._size += written
                rest = behind(rest, written)
        except OSError:
            whole = _whole_lines(parts, self._size - good)
            self._take_back(good + whole)
            if not whole:
                raise
            return whole
        return self._size - good

    def _take_back(self, good: int) -> None:
        """The file as it was up to there, after a write that failed."""
        assert self._fd is not None
        try:
            os.ftruncate(self._fd, good)
            self._size = good
        except OSError:
            self.close()

    def _abandon(self) -> None:
        """A file that could not even be begun is removed."""
        path = self._path
        self.close()
        if path is not None:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """The file is complete. Does not raise: nothing is waiting in it to be written."""
        if self._fd is not None:
            fd, self._fd, self._path = self._fd, None, None
            self._rotated = True
            with contextlib.suppress(OSError):
                os.close(fd)


def behind(parts: Sequence[bytes], written: int) -> Sequence[bytes]:
    """What is left of parts of which so many bytes are written."""
    for index, part in enumerate(parts):
        if written < len(part):
            return [part[written:], *parts[index + 1 :]]
        written -= len(part)
    return ()


def _whole_lines(parts: Sequence[bytes], size: int) -> int:
    """How many of the first `size` bytes of parts belong to lines whose end is among them."""
    whole = begin = 0
    for part in parts:
        if begin >= size:
            break
        end = part.rfind(b"\n", 0, size - begin)
        whole = whole if end < 0 else begin + end + 1
        begin += len(part)
    return whole
