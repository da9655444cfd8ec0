"""The hash chain of the audit log: each record on its line holds the hash of the one before it and its own.

A line is `{"v":1,"seq":N,"prev":"HASH",` the record's other members `,"hash":"HASH"}`, in this order and
without spaces. `hash` is over the bytes of the line before `,"hash":`, exactly as they are written: SHA-256,
or HMAC-SHA-256 when there is a key; both in 64 lower-case hexadecimal digits. The first record has `seq` 1
and 64 zeros for `prev`.

What a chain that holds proves: no record was changed, removed, inserted or put elsewhere between its first
and its last one. Without a key, whoever can write the file can also compute a new chain, from any record to
the end; with a key only who has the key can. Either way the end can be cut off, and a chain that is shorter
holds as well; a hash kept elsewhere (an anchor) shows that: it must still be in the chain.

Pure. Files, and what a record says, are known elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

VERSION = 1

NO_HASH = "is none: the line does not end with a hash, so it was changed, or written by something else"

_HASH_DIGITS = 64
_BEFORE_HASH = b',"hash":"'
_OPENING = b'{"v":%d,"seq":%%d,"prev":"%%b",' % VERSION
_SUFFIX_BYTES = len(_BEFORE_HASH) + _HASH_DIGITS + len(b'"}')


class Link(NamedTuple):
    """A record's place in the chain: its number and its hash."""

    seq: int
    hash: str


START = Link(0, "0" * _HASH_DIGITS)
"""What the first record follows."""


class Broken(ValueError):
    """A line that is not the record that has to be there; the text says why, after "the record …"."""


class KeyNeeded(ValueError):
    """The chain was made with a key, and none was given."""


class VersionUnknown(ValueError):
    """A record that is as it was written, by an mcpmux that knows another format."""


class _Head(msgspec.Struct, gc=False):
    v: int
    seq: int
    prev: str
    keyed: bool = False


_head_decoder = msgspec.json.Decoder(_Head)


def seal(bodies: Iterable[bytes], after: Link, key: bytes | None) -> tuple[bytes, Link]:
    """The lines, each with its newline, that put records behind `after`, and the place of the last one.

    A body is a JSON object with at least one member and no spaces or newlines around its braces.
    """
    number, digest = after
    before = digest.encode()
    pieces: list[bytes] = []
    for body in bodies:
        number += 1
        sealed = _OPENING % (number, before) + body[1:-1]
        digest = _hash(sealed, key)
        before = digest.encode()
        pieces += (sealed, _BEFORE_HASH, before, b'"}\n')
    return b"".join(pieces), Link(number, digest)


def follow(line: bytes, after: Link | None, key: bytes | None) -> Link:
    """The place of the record on a line (without its newline), which has to be the one behind `after`.

    With None it may be any record. Raises Broken, KeyNeeded and VersionUnknown.
    """
    sealed, found = line[:-_SUFFIX_BYTES], line[-_SUFFIX_BYTES:]
    if not found.startswith(_BEFORE_HASH) or not found.endswith(b'"}'):
        raise Broken(NO_HASH)
    head = _read_head(sealed)
    digest = _hash(sealed, key)
    if not hmac.compare_digest(found[len(_BEFORE_HASH) : -2], digest.encode()):
        raise _wrong_hash(sealed, found, head, key)
    if head.v != VERSION:
        raise VersionUnknown(f"audit log version {head.v}; this mcpmux reads version {VERSION}")
    if after is not None:
        _check_order(head, after)
    return Link(head.seq, digest)


def read_link(line: bytes) -> Link:
    """The place that a record on a line says it has, unchecked. Raises Broken."""
    found = line[-_SUFFIX_BYTES:]
    if not found.startswith(_BEFORE_HASH) or not found.endswith(b'"}'):
        raise Broken(NO_HASH)
    return Link(_read_head(line[:-_SUFFIX_BYTES]).seq, found[len(_BEFORE_HASH) : -2].decode(errors="replace"))


def is_torn(rest: bytes, after: Link | None) -> bool:
    """Whether bytes behind the last newline can be the beginning of the record behind `after`, or of any.

    A power cut may leave zeros where bytes were not written any more.
    """
    opening = _opening(after) if after is not None else b'{"v":%d,"seq":' % VERSION
    rest = rest.rstrip(b"\0")
    return rest.startswith(opening) or opening.startswith(rest)


def _opening(after: Link) -> bytes:
    return _OPENING % (after.seq + 1, after.hash.encode())


def _hash(sealed: bytes, key: bytes | None) -> str:
    if key is None:
        return hashlib.sha256(sealed).hexdigest()
    return hmac.digest(key, sealed, "sha256").hex()


def _read_head(sealed: bytes) -> _Head:
    try:
        return _head_decoder.decode(sealed + b"}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Broken("is none: the line is no JSON object with `v`, `seq` and `prev`") from None


def _wrong_hash(sealed: bytes, found: bytes, head: _Head, key: bytes | None) -> ValueError:
    if key is None and head.keyed:
        return KeyNeeded("the audit log was written with a key, and can be checked with that key only")
    if key is not None and found[len(_BEFORE_HASH) : -2] == _hash(sealed, None).encode():
        return Broken("was written without a key, or by somebody who does not have it")
    key_too = "" if key is None else ", or written with another key"
    return Broken(f"was changed after it was written{key_too}: its hash is not that of what it says")


def _check_order(head: _Head, after: Link) -> None:
    expected = after.seq + 1
    if head.seq > expected:
        raise Broken(f"has number {head.seq}, and {expected} has to be here: records were removed or moved")
    if head.seq < expected:
        raise Broken(f"has number {head.seq}, and {expected} has to be here: it was inserted or moved")
    if head.prev != after.hash:
        before = f"record {after.seq}" if after.seq else "the beginning of the log"
        raise Broken(f"was not written behind {before} as it is now: one of the two was replaced")
