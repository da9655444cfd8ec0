"""Reads an audit log back: whether the chain is whole, where it ends, and its records.

Nothing is changed and no lock is needed. A log that is being written may end in the middle of a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mcpmux.errors import ConfigError
from mcpmux.protocol.envelope import UNREADABLE
from mcpmux.traffic.audit import chain
from mcpmux.traffic.audit.chain import START, Broken, Link
from mcpmux.traffic.capture.files import BadLine
from mcpmux.traffic.record import reason_of


class Verdict(NamedTuple):
    """What a check has found. All but `fault` is about what stands before the fault.

    `first`: number of the first record, 0 without any. `torn`: bytes of an unfinished last line.
    `anchored`: whether the hash that was asked for is in the chain; None when none was.
    """

    records: int
    files: int
    first: int
    head: Link
    torn: int = 0
    anchored: bool | None = None
    fault: BadLine | None = None


_object_decoder = msgspec.json.Decoder(dict[str, Any])


def paths_of(path: Path) -> list[Path]:
    """The files that `path`, a file or a folder, stands for. Raises ConfigError: there are none."""
    try:
        paths = chain.audit_files(path) if path.is_dir() else [path]
        if not paths:
            raise ConfigError([f"{path}: there are no audit files (audit-000001.jsonl …) in this folder"])
        if not path.exists():
            raise ConfigError([f"{path}: there is no such file or folder"])
    except OSError as error:
        raise _unreadable(path, error) from None
    return paths


def lines_of(paths: Iterable[Path]) -> Iterator[tuple[Path, int, bytes]]:
    """(file, number, line with its newline). A line that is too long for a record comes in pieces.

    Raises ConfigError when a file cannot be read.
    """
    for path in paths:
        try:
            with path.open("rb") as file:
                number = 0
                while line := file.readline(chain.LINE_LIMIT):
                    number += 1
                    yield path, number, line
        except OSError as error:
            raise _unreadable(path, error) from None


def read_records(path: Path) -> Iterator[tuple[str, dict[str, Any] | None, bytes]]:
    """(file:line, record, line) of a log, unchecked; None for what is no JSON object."""
    for file, number, line in lines_of(paths_of(path)):
        try:
            record = _object_decoder.decode(line)
        except UNREADABLE:
            record = None
        yield f"{file}:{number}", record, line.removesuffix(b"\n")


def read_head(path: Path) -> Link:
    """The place of the last whole record, unchecked; START for a log without any. Raises ConfigError."""
    for file in reversed(paths_of(path)):
        try:
            line = chain.read_tail(file).line
            if line is not None:
                return chain.read_link(line)
        except OSError as error:
            raise _unreadable(file, error) from None
        except Broken as error:
            raise ConfigError([f"{file}: the last record {error}"]) from None
    return START


def verify(path: Path, key: bytes | None, after: str | None = None, anchor: str | None = None) -> Verdict:
    """Check the chain of a file, or of all files of a folder.

    `after`: hash of the record before the first one, for a log whose first files are kept elsewhere.
    `anchor`: hash of a record that has to be there. Raises ConfigError: it cannot be checked; KeyNeeded.
    """
    paths, is_whole = paths_of(path), path.is_dir()
    records = first = torn = 0
    is_anchored = anchor is not None and anchor == after
    head: Link | None = None
    fault = None
    for file, number, line in lines_of(paths):
        if not line.endswith(b"\n"):
            if file != paths[-1]:
                problem = "the record is cut off, though the log goes on in another file"
                fault = BadLine(file, number, problem)
            elif len(line) >= chain.LINE_LIMIT or not chain.is_torn(line, head):
                problem = f"{len(line)} bytes that are no beginning of the record that has to be here"
                fault = BadLine(file, number, problem)
            else:
                torn = len(line)
            break
        record = line[:-1]
        try:
            before = _place_before(record, head, after, key, is_whole=is_whole) if number == 1 else head
            head = chain.follow(record, before, key)
        except Broken as error:
            fault = BadLine(file, number, f"the record {error}")
            break
        except (chain.KeyNeeded, chain.VersionUnknown) as error:
            raise type(error)([f"{path}: {error}"]) from None
        records += 1
        first = first or head.seq
        is_anchored = is_anchored or head.hash == anchor
    files = len(paths) if fault is None else paths.index(fault.path)
    anchored = is_anchored if anchor is not None else None
    return Verdict(records, files, first, head or START, torn, anchored, fault)


def _place_before(
    record: bytes, head: Link | None, after: str | None, key: bytes | None, *, is_whole: bool
) -> Link | None:
    """What the first record of a file has to follow; None for any. Raises Broken.

    `is_whole`: the files must begin with the first record of the log.
    """
    _, _, found = chain.split(record)
    if head is None and after is not None:
        head = Link(found.seq - 1, after)
    elif head is None and (is_whole or found.seq == 1):
        head = START
    if found.kind != "open" or found.file is None:
        chain.follow(record, head, key)
        raise Broken(f"has number {found.seq} and begins no file: the first records of it were removed")
    return head


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError([f"{path}: cannot be read: {reason_of(error)}"])
