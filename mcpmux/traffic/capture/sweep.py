"""Compresses capture files that are complete and removes those that are too many, too large or too old.

Blocks: used from a thread. Leaves alone what some process is still writing, which it knows by its lock, and
what is no capture file.
"""

from __future__ import annotations

import fcntl
import gzip
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from mcpmux.config.traffic import Capture
from mcpmux.traffic.capture.files import COMPRESSED, SUFFIX, UNFINISHED, find_files
from mcpmux.traffic.capture.writer import FILE_MODE

CHUNK = 256 * 2**10  # bytes that are compressed at a time
LEVEL = 6  # of gzip


class Stopped(Exception):
    """There is no time for this any more."""


def sweep(directory: Path, config: Capture, stop: threading.Event, now: float) -> None:
    """One round over the folder. `now`: seconds since 1970. Raises OSError; Stopped once `stop` is set."""
    for leftover in directory.glob(f"mcpmux-*{COMPRESSED}{UNFINISHED}"):
        plain = leftover.with_name(leftover.name.removesuffix(f".gz{UNFINISHED}"))
        with _only_user(plain) as mine:
            if mine:
                leftover.unlink(missing_ok=True)
    if config.compress:
        for path in find_files(directory):
            if path.name.endswith(SUFFIX):
                with _only_user(path) as mine:
                    if mine:
                        compress(path, stop)
    remove_surplus(directory, config, now)


def compress(path: Path, stop: threading.Event) -> None:
    """The file as `.gz` in its place, as old as it was. Rests half of the time: traffic goes first."""
    whole = path.with_name(path.name + ".gz")
    part = whole.with_name(whole.name + UNFINISHED)
    facts = path.stat()
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        with path.open("rb") as source, os.fdopen(fd, "wb") as raw:
            with gzip.GzipFile("", "wb", LEVEL, raw, mtime=0) as target:
                _copy(source, target, stop)
            raw.flush()
            os.fsync(raw.fileno())
        os.utime(part, (facts.st_atime, facts.st_mtime))
        part.replace(whole)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    path.unlink()


def _copy(source: IO[bytes], target: gzip.GzipFile, stop: threading.Event) -> None:
    began = time.monotonic()
    while chunk := source.read(CHUNK):
        target.write(chunk)
        if stop.wait(time.monotonic() - began):
            raise Stopped
        began = time.monotonic()


def remove_surplus(directory: Path, config: Capture, now: float) -> None:
    """Remove the oldest files until the rest is within the limits."""
    files = [(path, path.stat()) for path in find_files(directory)]
    total, count = sum(facts.st_size for _, facts in files), len(files)
    for path, facts in files:
        too_many = config.keep_files is not None and count > config.keep_files
        too_old = config.keep_age is not None and now - facts.st_mtime > config.keep_age
        if not (too_many or too_old or total > config.keep_bytes):
            continue
        with _only_user(path) as mine:
            if mine:
                path.unlink(missing_ok=True)
                total, count = total - facts.st_size, count - 1


@contextmanager
def _only_user(path: Path) -> Iterator[bool]:
    """Whether nobody else has the file locked; while this is open, nobody else can."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
    finally:
        os.close(fd)
