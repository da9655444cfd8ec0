"""The hash chain of the audit log: each record on its line holds the hash of the previous one and its own.

A line is `{"v":1,"seq":N,"prev":"HASH",` the record's other members `,"hash":"HASH"}`, in this order and
without spaces. `hash` is over the bytes of the line before `,"hash":`, exactly as they are written: SHA-256,
or HMAC-SHA-256 when there is a key; both in 64 lower-case hexadecimal digits. The first record has `seq` 1
and 64 zeros for `prev`.

An intact chain proves that no record was changed, removed, inserted or moved between its first and its
last one. Without a key, anyone who can write the file can also compute a new chain up to the end. The end can
always be cut off: only a hash that was kept elsewhere (an anchor), and must still be in the chain, shows it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mcpmux.config.scalars import NAME_PATTERN
from mcpmux.errors import ConfigError, McpmuxError
from mcpmux.files import BINARY, OWN_FILE, lock_file
from mcpmux.protocol.envelope import UNREADABLE
from mcpmux.traffic.capture.files import BadLine
from mcpmux.transports.byte_stream import reason_of

VERSION = 1

_HASH_DIGITS = 64
_BEFORE_HASH = b',"hash":"'
_OPENING = b'{"v":%d,"seq":%%d,"prev":"%%b",' % VERSION
_SUFFIX_BYTES = len(_BEFORE_HASH) + _HASH_DIGITS + len(b'"}')


class Link(NamedTuple):
    """A record's place in the chain: its number and its hash."""

    seq: int
    hash: str


START = Link(0, "0" * _HASH_DIGITS)  # the link before the first record


class Broken(ValueError):
    """A line is not the record that has to be there. The text continues "the record"."""


class KeyNeeded(ConfigError):
    """The chain was made with a key, and none was given."""


class Head(msgspec.Struct, gc=False):
    """The members of a record that state its place; `kind`, `file` and `keyed` as in `record`."""

    v: int
    seq: int
    prev: str
    keyed: bool = False
    kind: str = ""
    file: int | None = None


_head_decoder = msgspec.json.Decoder(Head)


def seal(bodies: Iterable[bytes], after: Link, key: bytes | None) -> tuple[bytes, Link]:
    """Return the lines, each with its newline, that put records behind `after`, and the last link.

    A body is a JSON object with at least one member and no spaces or newlines around its braces.
    """
    number, digest = after
    last_hash = digest.encode()
    pieces: list[bytes] = []
    for body in bodies:
        number += 1
        sealed = _OPENING % (number, last_hash) + body[1:-1]
        digest = _hash(sealed, key)
        last_hash = digest.encode()
        pieces += (sealed, _BEFORE_HASH, last_hash, b'"}\n')
    return b"".join(pieces), Link(number, digest)


def follow(line: bytes, after: Link | None, key: bytes | None) -> Link:
    """Return the link of the record on a line (without its newline), which must be the one behind `after`.

    With None it may be any record. Raises Broken, KeyNeeded, and ConfigError for a sound record of a version
    that this mcpmux does not know.
    """
    sealed, stored_hash, head = split(line)
    digest = _hash(sealed, key)
    # In constant time, for with a key the hash must not be guessable byte by byte.
    if not hmac.compare_digest(stored_hash, digest.encode()):
        if key is None and head.keyed:
            raise KeyNeeded(["the audit log was written with a key, and can be checked with that key only"])
        if key is not None and stored_hash == _hash(sealed, None).encode():
            raise Broken("was written without a key, or by somebody who does not have it")
        key_too = "" if key is None else ", or written with another key"
        raise Broken(f"was changed after it was written{key_too}: its hash is not that of what it says")
    if head.v != VERSION:
        raise ConfigError([f"audit log version {head.v}; this mcpmux reads version {VERSION}"])
    if after is not None:
        expected = after.seq + 1
        if head.seq != expected:
            how = "records were removed" if head.seq > expected else "it was inserted"
            raise Broken(f"has number {head.seq}, and {expected} has to be here: {how} or moved")
        if head.prev != after.hash:
            predecessor = f"record {after.seq}" if after.seq else "the beginning of the log"
            raise Broken(f"was not written behind {predecessor} as it is now: one of the two was replaced")
    return Link(head.seq, digest)


def is_torn(rest: bytes, after: Link | None) -> bool:
    """Return whether bytes behind the last newline can begin the record behind `after`; None: any record."""
    opening = b'{"v":%d,"seq":' % VERSION
    if after is not None:
        opening = _OPENING % (after.seq + 1, after.hash.encode())
    rest = rest.rstrip(b"\0")  # which a power cut may leave where data were not written
    return rest.startswith(opening) or opening.startswith(rest)


def split(line: bytes) -> tuple[bytes, bytes, Head]:
    """Return the hashed bytes of a record, the hash, and its stated place. Raises Broken."""
    sealed, suffix = line[:-_SUFFIX_BYTES], line[-_SUFFIX_BYTES:]
    if not suffix.startswith(_BEFORE_HASH) or not suffix.endswith(b'"}'):
        raise Broken(
            "is none: the line does not end with a hash, so it was changed, or written by something else"
        )
    try:
        head = _head_decoder.decode(sealed + b"}")
    except UNREADABLE:
        raise Broken("is none: the line is no JSON object with `v`, `seq` and `prev`") from None
    return sealed, suffix[len(_BEFORE_HASH) : -2], head


def _hash(sealed: bytes, key: bytes | None) -> str:
    if key is None:
        return hashlib.sha256(sealed).hexdigest()
    return hmac.digest(key, sealed, "sha256").hex()


# The files of an audit log: `audit-000001.jsonl` and so on in one folder, one chain through all of them.
#
# Records are appended whole or not at all, as far as the disk permits: the rest of a failed write is cut
# off before the next write. One process writes a folder at a time (`audit.lock`). It never
# deletes more than an unfinished line at the very end, whose beginning goes into the next record. All of it
# blocks: call it from a thread, one call at a time.

LOCK_NAME = "audit.lock"
LINE_LIMIT = 2**20  # bytes; the longest record, of a listen whose URIs are all escaped, has 0.8 MB

_AWAY = "; `mcpmux audit verify` says more. To begin a new log move the files of this one away"
_FILE_NAME = re.compile(r"audit-([0-9]{6,12})\.jsonl")
CHAIN_FOLDER = "worker-"  # and a number: each worker of several writes its own chain
REPLICA_FOLDER = "replica-"  # and its name: so does each replica of a cluster
_CHAIN_FOLDER = re.compile(rf"{CHAIN_FOLDER}([1-9]\d*)|{REPLICA_FOLDER}{NAME_PATTERN}")

Opening = Callable[[int | None, bytes], bytes]
"""The body of an `open` record: the number of the file that it begins, None for a run that continues a file,
and the torn line before it."""


class AuditUnusable(McpmuxError):
    """The log cannot be continued; the text advises."""


def chains_in(path: Path) -> list[Path]:
    """Return the chains at a path: the folders of several workers or replicas in it, or the path itself."""
    try:
        named = [(_CHAIN_FOLDER.fullmatch(child.name), child) for child in path.iterdir()]
        folders = {
            folder: int(match[1] or 0) for match, folder in named if match is not None and folder.is_dir()
        }
        is_chain = not folders or bool(audit_files(path))
    except OSError:  # a file, or an unreadable folder: reading it will raise the error
        return [path]
    chains = sorted(folders, key=lambda each: (folders[each], each.name))
    return [path, *chains] if is_chain else chains


def audit_files(directory: Path) -> list[Path]:
    """Return the files of a log in the order of the chain. Raises OSError."""
    numbered = [(number_of(path), path) for path in directory.iterdir()]
    return [path for _, path in sorted((number, path) for number, path in numbered if number is not None)]


def number_of(path: Path) -> int | None:
    """Return the number in the name of a log's file; None for any other file."""
    match = _FILE_NAME.fullmatch(path.name)
    return int(match[1]) if match is not None else None


def read_tail(path: Path) -> tuple[bytes | None, bytes]:
    """Return the last whole line of a file, None for none, and the bytes behind it.

    Raises OSError, and AuditUnusable when the file cannot be a log.
    """
    with path.open("rb") as file:
        start = max(0, file.seek(0, os.SEEK_END) - 2 * LINE_LIMIT)
        file.seek(start)
        *lines, torn = file.read().split(b"\n")
    if start and not lines:
        raise AuditUnusable(f"{path}: expected lines of JSON; this is no audit log")
    return (lines[-1] if lines else None), torn


@dataclass(eq=False)
class AuditFiles:
    """The end of a log. Call `open`, then `append`, finally `close`. `seconds`: that the last write took."""

    _directory: Path
    _key: bytes | None
    _rotate_size: int
    _opening: Opening
    head: Link = START
    seconds: float = math.inf
    _lock: int = -1
    _file: int = -1
    _number: int = 0
    _size: int = 0  # of the file, up to its last good byte
    _spoilt: bool = False  # the file may be longer than `_size`

    def open(self) -> None:
        """Find the end of the log, or begin it, and write the record that opens the run.

        Raises OSError, and AuditUnusable: another process writes it, or it does not end as it was written.
        """
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._take_lock()
            files = audit_files(self._directory)
            torn = self._find_head(files) if files else b""
            self._open_file((number_of(files[-1]) if files else None) or 1)
            self._size, self._spoilt = self._size - len(torn), bool(torn)
            self._write_opening(torn)
        except BaseException:
            self.close()
            raise

    def append(self, bodies: Sequence[bytes]) -> None:
        """Write records, all or none, and sync them to the disk. Raises OSError: none was written."""
        lines, head = seal(bodies, self.head, self._key)
        if not self._size or self._size + len(lines) > self._rotate_size:
            if self._size:  # else an earlier attempt to begin the file failed
                self._open_file(self._number + 1, os.O_EXCL)
            self._write_opening()
            lines, head = seal(bodies, self.head, self._key)
        self._write(lines, head)

    def close(self) -> None:
        """Release the file and the lock. May be called again."""
        for number in (self._file, self._lock):
            if number >= 0:
                os.close(number)
        self._file = self._lock = -1

    def _take_lock(self) -> None:
        path = self._directory / LOCK_NAME
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT | OWN_FILE, 0o600)
        try:
            lock_file(self._lock)
        except BlockingIOError:
            owner = os.read(self._lock, 20).decode(errors="replace").strip() or "unknown"
            raise AuditUnusable(
                f"the audit log in {self._directory} is being written by another mcpmux (process {owner}); "
                "stop that one, or give each its own `directory`"
            ) from None
        os.ftruncate(self._lock, 0)
        os.write(self._lock, b"%d\n" % os.getpid())

    def _find_head(self, files: Sequence[Path]) -> bytes:
        """Take the last record as head. Return the bytes behind the last whole line."""
        path = files[-1]
        line, torn = read_tail(path)
        if line is None and len(files) > 1:  # the last run was killed right after it began this file
            path = files[-2]
            line, _ = read_tail(path)
            if line is None:
                raise AuditUnusable(f"{path}: there is no record in it{_AWAY}")
        if line is not None:
            try:
                self.head = follow(line, None, self._key)
            except (Broken, ConfigError) as error:
                what = "its last record " if isinstance(error, Broken) else ""
                raise AuditUnusable(f"{path}: {what}{error}{_AWAY}") from None
        return torn

    def _open_file(self, number: int, flag: int = 0) -> None:
        path = self._directory / f"audit-{number:06}.jsonl"
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | BINARY | OWN_FILE | flag, 0o600)
        old_file, self._file = self._file, file
        self._number, self._size, self._spoilt = number, os.fstat(file).st_size, False
        if old_file >= 0:
            os.close(old_file)

    def _write_opening(self, torn: bytes = b"") -> None:
        if not self._size and sys.platform != "win32":  # so that the new file's name survives a power cut
            folder = os.open(self._directory, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        opening = self._opening(None if self._size else self._number, torn)
        self._write(*seal([opening], self.head, self._key))

    def _write(self, data: bytes, head: Link) -> None:
        if self._spoilt:
            os.ftruncate(self._file, self._size)
        # Until the write is complete: an exception in between leaves an end that must be cut off.
        self._spoilt = True
        began = time.perf_counter()
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError:
            with contextlib.suppress(OSError):  # the next write tries again
                os.ftruncate(self._file, self._size)
            raise
        self.seconds = time.perf_counter() - began
        self._spoilt = False
        self._size += len(data)
        self.head = head


# Reading a log: whether the chain is intact, where it ends, and its records, without a change and
# without the lock. A log that is being written may end in the middle of a record.


class Verdict(NamedTuple):
    """The result of a check. All but `fault` is about the records before the fault.

    `first`: number of the first record, 0 without any. `torn`: bytes of an unfinished last line.
    `anchored`: whether the given hash is in the chain; None without one.
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
    """Return the files at `path`, a file or a folder. Raises ConfigError: there are none."""
    with _reading(path):
        paths = audit_files(path) if path.is_dir() else [path]
        if not paths:
            raise ConfigError([f"{path}: there are no audit files (audit-000001.jsonl …) in this folder"])
        if not path.exists():
            raise ConfigError([f"{path}: there is no such file or folder"])
        return paths


def lines_of(paths: Iterable[Path]) -> Iterator[tuple[Path, int, bytes]]:
    """Yield (file, number, line with its newline). A line that is too long for a record comes in pieces.

    Raises ConfigError when a file cannot be read.
    """
    for path in paths:
        with _reading(path), path.open("rb") as file:
            for number, line in enumerate(iter(partial(file.readline, LINE_LIMIT), b""), 1):
                yield path, number, line


def read_records(path: Path) -> Iterator[tuple[str, dict[str, Any] | None, bytes]]:
    """Yield (file:line, record, line) of a log, unchecked; None for a line that is no JSON object."""
    for file, number, line in lines_of(paths_of(path)):
        try:
            record = _object_decoder.decode(line)
        except UNREADABLE:
            record = None
        yield f"{file}:{number}", record, line.removesuffix(b"\n")


def read_head(path: Path) -> Link:
    """Return the link of the last whole record, unchecked; START without any. Raises ConfigError."""
    for file in reversed(paths_of(path)):
        with _reading(file):
            line, _ = read_tail(file)
        try:
            if line is not None:
                _, stored_hash, head = split(line)
                return Link(head.seq, stored_hash.decode(errors="replace"))
        except Broken as error:
            raise ConfigError([f"{file}: the last record {error}"]) from None
    return START


def verify(path: Path, key: bytes | None, after: str | None = None, anchor: str | None = None) -> Verdict:
    """Check the chain of a file, or of all files of a folder.

    `after`: hash of the record before the first one, for a log whose first files are kept elsewhere.
    `anchor`: hash of a record that must be there. Raises ConfigError: it cannot be checked; KeyNeeded.
    """
    paths, is_whole = paths_of(path), path.is_dir()
    records = first = torn = 0
    is_anchored = anchor is not None and anchor == after
    head: Link | None = None
    fault = None
    for file, number, line in lines_of(paths):
        record, previous = line[:-1], head
        try:
            if not line.endswith(b"\n"):
                if file != paths[-1]:
                    raise Broken("is cut off, though the log goes on in another file")
                if len(line) >= LINE_LIMIT or not is_torn(line, head):
                    problem = f"{len(line)} bytes that are no beginning of the record that has to be here"
                    fault = BadLine(file, number, problem)
                else:
                    torn = len(line)
                break
            opening = split(record)[2] if number == 1 else None
            if opening is not None and head is None:
                if after is not None:
                    previous = Link(opening.seq - 1, after)
                elif is_whole or opening.seq == 1:  # a folder must begin with the first record of the log
                    previous = START
            place = follow(record, previous, key)
            if opening is not None and (opening.kind != "open" or opening.file is None):
                what = "begins no file: the first records of it were removed"
                raise Broken(f"has number {place.seq} and {what}")
        except Broken as error:
            fault = BadLine(file, number, f"the record {error}")
            break
        except ConfigError as error:
            raise type(error)([f"{path}: {error}"]) from None
        head = place
        records += 1
        first = first or head.seq
        is_anchored = is_anchored or head.hash == anchor
    files = len(paths) if fault is None else paths.index(fault.path)
    anchored = is_anchored if anchor is not None else None
    return Verdict(records, files, first, head or START, torn, anchored, fault)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {reason_of(error)}"]) from None
