"""A file for what was asked to be written: whole or not at all, and for its owner alone.

A regular file is made beside its place and put there when it is complete. What is no regular file (a pipe, a
device, standard output by its path) is written to as it is, and never replaced.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click

from mcpmux.cli.wall import Mistake

TOGETHER_CHARACTERS = 64 * 1024


def write_file(name: str, pieces: Iterable[str], sources: Sequence[Path]) -> int:
    """How many bytes it got.

    Raises Mistake when it is one of `sources`, ClickException when it cannot be written.
    """
    path = Path(name)
    try:
        if path.exists() and any(path.samefile(source) for source in sources if source.exists()):
            raise Mistake(f"{name}: this is one of the files that are read")
        if path.exists() and not path.is_file():
            return _write_to(path, pieces)
        return _replace(path.resolve(), pieces)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise click.ClickException(f"{name}: cannot write: {reason}") from None


def _write_to(path: Path, pieces: Iterable[str]) -> int:
    with path.open("wb", buffering=0) as file:
        return write_pieces(pieces, lambda text: _write_all(file.fileno(), text))


def _replace(path: Path, pieces: Iterable[str]) -> int:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".part")
    part = Path(name)
    try:
        try:
            size = write_pieces(pieces, lambda text: _write_all(descriptor, text))
        finally:
            os.close(descriptor)
        part.replace(path)
    except BaseException:
        part.unlink()
        raise
    return size


def _write_all(descriptor: int, text: str) -> int:
    data = text.encode("utf-8", "replace")
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
    return len(data)


def write_pieces(pieces: Iterable[str], write: Callable[[str], int | None]) -> int:
    """Several pieces together, the first at once; the sum of what `write` returns."""
    total = 0
    waiting: list[str] = []
    size = TOGETHER_CHARACTERS
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= TOGETHER_CHARACTERS:
            total += write("".join(waiting)) or 0
            waiting, size = [], 0
    return total + (write("".join(waiting)) or 0)
