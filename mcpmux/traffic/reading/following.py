"""Follow capture files that grow, rotate and disappear.

All files that are being written are followed at once, so several mcpmux may write into one folder. Blocks,
never for long: the caller waits between two reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mcpmux.traffic.capture.files import (
    DAMAGED,
    GZIP,
    BadLine,
    LineReader,
    OnBad,
    expand_paths,
    find_files,
    is_being_written,
    read_files,
)
from mcpmux.traffic.record import BadRecord, Record, decode_record

LOOK_BACK_BYTES = 16 * 2**20  # of the newest records; reading more would take long
GZIP_GROWTH = 8  # ratio of a capture's size to its compressed size


class Follower:
    """Follows files, and new files in folders. `close` it, or use it as a context."""

    def __init__(self, paths: Sequence[Path], on_bad: OnBad) -> None:
        """`found_nothing`: there is no file yet. Raises OSError when a path cannot be read."""
        self._folders = [path for path in paths if path.is_dir()]
        self._on_bad = on_bad
        self._start = expand_paths(paths)
        self.found_nothing = not self._start
        self.left_out = False
        self._known = set(self._start)
        # Other programs than mcpmux do not lock the plain files that they write.
        growing = (path for path in self._start if path.suffix != GZIP or is_being_written(path))
        self.growing = {path: LineReader(path) for path in growing}

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self.growing.values():
            reader.close()

    def recent(self) -> Iterator[Record]:
        """Yield the ends of the newest files, oldest record first; `read` continues behind them.

        Sets `left_out` if there is more before them.
        """
        size, place = 0, len(self._start)
        while place > 0 and size < LOOK_BACK_BYTES:
            place -= 1
            path = self._start[place]
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
                    self.growing[path] = LineReader(path)
                    records += self._records(path, self.growing[path].read())
        return records

    def _records(self, path: Path, lines: Iterable[bytes]) -> Iterator[Record]:
        for line in filter(bytes.strip, lines):
            try:
                yield decode_record(line)
            except BadRecord as error:
                self._on_bad(BadLine(path, 0, str(error)))
