"""Reads an audit log back: whether the chain is whole, where it ends, and its records.

Nothing is changed, and no lock is needed: a log that is being written ends where it was when it was read,
maybe in the middle of a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from attrs import frozen

from mcpmux.errors import ConfigError
from mcpmux.traffic.audit.chain import (
    LINE_LIMIT,
    START,
    Broken,
    KeyNeeded,
    Link,
    VersionUnknown,
    audit_files,
    follow,
    is_torn,
    read_link,
    read_tail,
)
from mcpmux.traffic.record import reason_of


class KeyMissing(ConfigError):
    """The log cannot be checked without the key that it was written with."""


@frozen(kw_only=True)
class Fault:
    """The first thing that is wrong, `line` from 1."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@frozen(kw_only=True)
class Verdict:
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
    fault: Fault | None = None

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return self.fault is None and self.anchored is not False


class _Head(msgspec.Struct, gc=False):
    seq: int
    kind: str = ""
    file: int | None = None


_head_decoder = msgspec.json.Decoder(_Head)
_object_decoder = msgspec.json.Decoder(dict[str, Any])


def paths_of(path: Path) -> list[Path]:
    """The files that `path`, a file or a folder, stands for. Raises ConfigError: there are none."""
    try:
        paths = audit_files(path) if path.is_dir() else [path]
        if not paths:
            raise ConfigError([f"{path}: there are no audit files (audit-000001.jsonl …) in this folder"])
        if not path.exists():
            raise ConfigError([f"{path}: there is no such file or folder"])
    except OSError as error:
        raise _unreadable(path, error) from None
    return paths


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number, line) of a file, a line's newline with it. What is too long for a record comes in pieces.

    Raises ConfigError when the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LINE_LIMIT):
                number += 1
                yield number, line
    except OSError as error:
        raise _unreadable(path, error) from None


def read_records(path: Path) -> Iterator[tuple[str, dict[str, Any] | None, bytes]]:
    """(file:line, record, line) of a log, unchecked; None for what is no JSON object."""
    for each in paths_of(path):
        for number, line in lines_of(each):
            try:
                record = _object_decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                record = None
            yield f"{each}:{number}", record, line.removesuffix(b"\n")


def read_head(path: Path) -> Link:
    """The place of the last whole record, unchecked; START for a log without any. Raises ConfigError."""
    for each in reversed(paths_of(path)):
        try:
            line = read_tail(each).line
        except OSError as error:
            raise _unreadable(each, error) from None
        if line is not None:
            try:
                return read_link(line)
            except Broken as error:
                raise ConfigError([f"{each}: the last record {error}"]) from None
    return START


def verify(path: Path, key: bytes | None, after: str | None = None, anchor: str | None = None) -> Verdict:
    """Check the chain of a file, or of all files of a folder.

    `after`: hash of the record before the first one, for a log whose first files are kept elsewhere.
    `anchor`: hash of a record that has to be there. Raises ConfigError: it cannot be checked; KeyMissing.
    """
    paths = paths_of(path)
    check = _Check(paths, key, after, anchor, whole=path.is_dir())
    try:
        return check.run()
    except KeyNeeded as error:
        raise KeyMissing([f"{path}: {error}"]) from None
    except VersionUnknown as error:
        raise ConfigError([f"{path}: {error}"]) from None


class _Stop(Exception):
    """The first fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class _Check:
    """One walk over the files. `whole`: they must begin with the first record."""

    def __init__(
        self, paths: Sequence[Path], key: bytes | None, after: str | None, anchor: str | None, *, whole: bool
    ) -> None:
        self._paths = paths
        self._key = key
        self._after = after
        self._anchor = anchor
        self._whole = whole
        self._head: Link | None = None
        self._records = self._first = self._torn = self._files = 0
        self._anchored = anchor is not None and anchor == after

    def run(self) -> Verdict:
        fault = None
        try:
            for path in self._paths:
                for number, line in lines_of(path):
                    self._take(path, number, line)
                self._files += 1
        except _Stop as stop:
            fault = stop.fault
        return Verdict(
            records=self._records,
            files=self._files,
            first=self._first,
            head=self._head or START,
            torn=self._torn,
            anchored=None if self._anchor is None else self._anchored,
            fault=fault,
        )

    def _take(self, path: Path, number: int, line: bytes) -> None:
        if not line.endswith(b"\n"):
            self._end(path, number, line)
            return
        line = line[:-1]
        after = self._head
        try:
            if number == 1:
                after = self._begin(path, line)
            link = follow(line, after, self._key)
        except Broken as error:
            raise _Stop(Fault(path=path, line=number, text=f"the record {error}")) from None
        self._head = link
        self._records += 1
        self._first = self._first or link.seq
        self._anchored = self._anchored or link.hash == self._anchor

    def _begin(self, path: Path, line: bytes) -> Link | None:
        """What the first record of a file has to follow. Raises Broken."""
        try:
            head = _head_decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self._head  # `follow` says what is wrong
        if self._head is not None:
            after: Link | None = self._head
        elif self._after is not None:
            after = Link(head.seq - 1, self._after)
        else:
            after = START if self._whole or head.seq == 1 else None
        if head.kind != "open" or head.file is None:
            follow(line, after, self._key)
            raise Broken(f"has number {head.seq} and begins no file: the first records of it were removed")
        return after

    def _end(self, path: Path, number: int, rest: bytes) -> None:
        """An unfinished line."""
        if path != self._paths[-1]:
            text = "the record is cut off, though the log goes on in another file"
        elif len(rest) >= LINE_LIMIT or not is_torn(rest, self._head):
            text = f"{len(rest)} bytes that are no beginning of the record that has to be here"
        else:
            self._torn = len(rest)
            return
        raise _Stop(Fault(path=path, line=number, text=text))


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError([f"{path}: cannot be read: {reason_of(error)}"])
