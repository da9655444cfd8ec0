"""Follows capture files that grow, rotate, are compressed and go away.

All that is being written is followed at once, so several mcpmux may write into one folder. A file that was
rotated and compressed between two looks is read from its compressed copy. Blocks, never for long: the caller
waits between two looks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from mcpmux.traffic.capture.files import BadLine, OnBad, expand_paths, find_files, read_files
from mcpmux.traffic.record import BadRecord, Record, decode_record

LOOK_BACK_BYTES = 16 * 2**20  # of the newest records; to look through more would take long
GZIP_GROWTH = 8  # times that captures get larger when they are read
CHUNK_BYTES = 2**20  # of a file at one look

_GZIP = ".gz"
_MAGIC = b"\x1f\x8b"


class _GrowingFile:
    """One file that grows. What stands behind its last newline waits for the rest."""

    def __init__(self, path: Path, on_bad: OnBad) -> None:
        self._path = path
        self._on_bad = on_bad
        self.stream = path.open("rb")

    def skip_all(self) -> None:
        """Go on with the line that is being written."""
        size = self.stream.seek(0, os.SEEK_END)
        start = self.stream.seek(max(0, size - LOOK_BACK_BYTES))
        self.stream.seek(start + self.stream.read(size - start).rfind(b"\n") + 1)

    def read(self) -> list[Record]:
        """What is new, a bounded part of it; nothing only when there is nothing."""
        records: list[Record] = []
        while not records and (lines := self.stream.readlines(CHUNK_BYTES)):
            if not lines[-1].endswith(b"\n"):
                self.stream.seek(-len(lines.pop()), os.SEEK_CUR)
                if not lines:
                    break
            for line in filter(bytes.strip, lines):
                try:
                    records.append(decode_record(line))
                except BadRecord as error:
                    self._on_bad(BadLine(self._path, 0, str(error)))
        return records


class Follower:
    """Follows files, and what comes into folders. `close` it, or use it as a context."""

    def __init__(self, paths: Sequence[Path], on_bad: OnBad) -> None:
        """`found_nothing`: there is no file yet. Raises OSError when a path cannot be read."""
        self._folders = [path for path in paths if path.is_dir()]
        self._on_bad = on_bad
        self._start = expand_paths(paths)
        self.found_nothing = not self._start
        self._known = set(map(_plain, self._start))
        plain = (path for path in self._start if not _is_compressed(path))
        self.growing = {path: _GrowingFile(path, on_bad) for path in plain}

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        for growing in self.growing.values():
            growing.stream.close()

    def recent(self) -> Iterator[Record]:
        """The ends of the newest files, oldest record first; `read` goes on behind them."""
        size, place = 0, len(self._start)
        while place > 0 and size < LOOK_BACK_BYTES:
            place -= 1
            path = self._start[place]
            size += path.stat().st_size * (GZIP_GROWTH if path.suffix == _GZIP else 1)
        for number, path in enumerate(self._start):
            growing = self.growing.get(path)
            if number < place:
                if growing is not None:
                    growing.skip_all()
            elif growing is None:
                yield from read_files([path], self._on_bad)
            else:
                position = path.stat().st_size - LOOK_BACK_BYTES
                if position > 0:  # and there at the next line
                    growing.stream.seek(position - 1)
                    growing.stream.readline()
                while records := growing.read():
                    yield from records

    def skip(self) -> None:
        """Leave out all that is there already."""
        for growing in self.growing.values():
            growing.skip_all()

    def read(self) -> list[Record]:
        """What has come since the last look; nothing when there is nothing."""
        found: list[Record] = []
        idle = not self.growing
        for path, growing in list(self.growing.items()):
            new = growing.read()
            found += new
            idle = idle or not new
            if not new and not path.exists():
                self.growing.pop(path).stream.close()
        if idle:  # or else the rest of a file that is complete comes first
            for path in (path for folder in self._folders for path in find_files(folder)):
                found += self._begin(path)
        return found

    def _begin(self, path: Path) -> list[Record]:
        if _plain(path) in self._known:
            return []
        self._known.add(_plain(path))
        if path.suffix == _GZIP:
            return list(read_files([path], self._on_bad))
        self.growing[path] = _GrowingFile(path, self._on_bad)
        return self.growing[path].read()


def _is_compressed(path: Path) -> bool:
    """By its name, or by its first bytes, as files may be renamed."""
    if path.suffix == _GZIP:
        return True
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _plain(path: Path) -> Path:
    """The name that a file has before it is compressed."""
    return path.with_suffix("") if path.suffix == _GZIP else path
