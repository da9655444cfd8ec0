"""Follow capture files that grow, rotate, are compressed and disappear.

All files that are being written are followed at once, so several mcpmux may write into one folder. A file
that was rotated and compressed between two reads is read from its compressed copy. Blocks, never for long:
the caller waits between two reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from mcpmux.traffic.capture.files import BadLine, OnBad, expand_paths, find_files, read_files
from mcpmux.traffic.record import BadRecord, Record, decode_record

LOOK_BACK_BYTES = 16 * 2**20  # of the newest records; reading more would take long
GZIP_GROWTH = 8  # ratio of a capture's size to its compressed size
CHUNK_BYTES = 2**20  # of a file in one read

_GZIP = ".gz"
_MAGIC = b"\x1f\x8b"


class Follower:
    """Follows files, and new files in folders. `close` it, or use it as a context."""

    def __init__(self, paths: Sequence[Path], on_bad: OnBad) -> None:
        """`found_nothing`: there is no file yet. Raises OSError when a path cannot be read."""
        self._folders = [path for path in paths if path.is_dir()]
        self._on_bad = on_bad
        self._start = expand_paths(paths)
        self.found_nothing = not self._start
        self.left_out = False
        self._known = set(map(_plain, self._start))
        plain = (path for path in self._start if not _is_compressed(path))
        self.growing = {path: path.open("rb") for path in plain}

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self.growing.values():
            stream.close()

    def recent(self) -> Iterator[Record]:
        """Yield the ends of the newest files, oldest record first; `read` continues behind them.

        Sets `left_out` if there is more before them.
        """
        size, place = 0, len(self._start)
        while place > 0 and size < LOOK_BACK_BYTES:
            place -= 1
            path = self._start[place]
            size += path.stat().st_size * (GZIP_GROWTH if path.suffix == _GZIP else 1)
        self.left_out = place > 0
        for number, path in enumerate(self._start):
            stream = self.growing.get(path)
            if number < place:
                if stream is not None:
                    _skip_all(stream)
            elif stream is None:
                yield from read_files([path], self._on_bad)
            else:
                position = path.stat().st_size - LOOK_BACK_BYTES
                if position > 0:  # go on with the next whole line
                    self.left_out = True
                    stream.seek(position - 1)
                    stream.readline()
                while records := self._read_new(path, stream):
                    yield from records

    def skip(self) -> None:
        """Skip all existing records."""
        for stream in self.growing.values():
            _skip_all(stream)

    def read(self) -> list[Record]:
        """Return the records since the last read; [] when there are none."""
        records: list[Record] = []
        idle = not self.growing
        for path, stream in list(self.growing.items()):
            new = self._read_new(path, stream)
            records += new
            idle = idle or not new
            if not new and not path.exists():
                self.growing.pop(path).close()
        if idle:  # else the rest of a complete file must come before the next file
            for path in (path for folder in self._folders for path in find_files(folder)):
                records += self._begin(path)
        return records

    def _begin(self, path: Path) -> list[Record]:
        if _plain(path) in self._known:
            return []
        self._known.add(_plain(path))
        if path.suffix == _GZIP:
            return list(read_files([path], self._on_bad))
        self.growing[path] = path.open("rb")
        return self._read_new(path, self.growing[path])

    def _read_new(self, path: Path, stream: BinaryIO) -> list[Record]:
        """Return a bounded part of the new records in a file; [] only when there are none.

        An unfinished last line waits for its rest.
        """
        records: list[Record] = []
        while not records and (lines := stream.readlines(CHUNK_BYTES)):
            if not lines[-1].endswith(b"\n"):
                stream.seek(-len(lines.pop()), os.SEEK_CUR)
                if not lines:
                    break
            for line in filter(bytes.strip, lines):
                try:
                    records.append(decode_record(line))
                except BadRecord as error:
                    self._on_bad(BadLine(path, 0, str(error)))
        return records


def _skip_all(stream: BinaryIO) -> None:
    """Move to the line that is being written."""
    size = stream.seek(0, os.SEEK_END)
    start = stream.seek(max(0, size - LOOK_BACK_BYTES))
    stream.seek(start + stream.read(size - start).rfind(b"\n") + 1)


def _is_compressed(path: Path) -> bool:
    """Return whether a file is compressed, by its name, or by its first bytes, as files may be renamed."""
    if path.suffix == _GZIP:
        return True
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _plain(path: Path) -> Path:
    return path.with_suffix("") if path.suffix == _GZIP else path
