"""A list's items as clients see them: changed in its bytes where that is sure to be right, or one by one.

Most lists only get a prefix before the URI of each item. What is done here to their bytes has a proof of its
own, see `_with_prefix`; whatever that does not understand is taken apart by `rewrite`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

import msgspec

from mcpmux.mux import rewrite
from mcpmux.mux.namespace import Space
from mcpmux.protocol.envelope import decode_items, decode_list, raw, text_of
from mcpmux.protocol.raw_json import Raw

# The items of a list as they are in its JSON array, taken apart only for who wants some of them.
#
# A page of a list that all of its clients may see goes from its server's bytes into those of the merged
# list as one piece; most pages do. Pure.


class EncodedList(Sequence[Raw]):
    """The `count` items of a JSON array, which is valid and begins and ends with its brackets."""

    __slots__ = ("_apart", "_count", "_data")

    def __init__(self, data: bytes, count: int) -> None:
        self._data = data
        self._count = count
        self._apart: list[Raw] | None = None

    def __repr__(self) -> str:
        return f"<EncodedList of {self._count}, {len(self._data)} bytes>"

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Raw: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Raw]: ...

    def __getitem__(self, index: int | slice) -> Raw | Sequence[Raw]:
        if self._apart is None:
            self._apart = decode_items(self._data)
        return self._apart[index]

    @property
    def inner(self) -> memoryview:
        """What is between the brackets."""
        return memoryview(self._data)[1:-1]


def join_lists(lists: Iterable[Sequence[Any]]) -> Raw:
    """All their items as one JSON array, in this order. Lists of other kinds hold what can be encoded."""
    inner = [_inner_of(items) for items in lists if items]
    return Raw(b"[%b]" % b",".join(inner))


def _inner_of(items: Sequence[Any]) -> bytes | memoryview:
    return items.inner if isinstance(items, EncodedList) else bytes(raw(items))[1:-1]


_UI = b"ui://"  # a prefix has its place behind that


class _Resource(msgspec.Struct, gc=False):
    uri: str


class _Template(msgspec.Struct, gc=False):
    uri: str = msgspec.field(name="uriTemplate")


_Named = msgspec.json.Decoder[list[_Resource]] | msgspec.json.Decoder[list[_Template]]
_NAMED: dict[str, tuple[_Named, bytes, tuple[bytes, ...]]] = {
    "uri": (msgspec.json.Decoder(list[_Resource]), b'"uri"', (b'"uri":"', b'"uri": "')),
    "uriTemplate": (
        msgspec.json.Decoder(list[_Template]),
        b'"uriTemplate"',
        (b'"uriTemplate":"', b'"uriTemplate": "'),
    ),
}
"""How the items' URIs are read, their member's name, and how the member begins."""

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Texts(Sequence[str | None]):
    """The upstream's own names or URIs of a list's items, None for one that has none.

    Read when somebody asks for them, which few do.
    """

    __slots__ = ("_count", "_found", "_key", "_unread")

    def __init__(self, key: str, unread: bytes, count: int) -> None:
        """`unread`: a JSON array of `count` objects; the texts are their members `key`."""
        self._key = key
        self._unread = unread
        self._count = count
        self._found: list[str | None] | None = None

    def __repr__(self) -> str:
        return f"<Texts of {self._count}>"

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str | None: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str | None]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str | None] | None:
        return self._read()[index]

    def _read(self) -> list[str | None]:
        if self._found is None:
            self._found = [item.uri for item in _NAMED[self._key][0].decode(self._unread)]
            self._unread = b""
        return self._found


def expose_list(method: str, items: Raw, space: Space) -> tuple[Sequence[str | None], Sequence[Raw]]:
    """The upstream's own names or URIs of the items of a list, and the items as clients see them.

    `items` is valid JSON. Raises ValueError when it is no array of objects.
    """
    key = rewrite.NAMED_BY[method]
    if key in _NAMED and space.prefix:
        data = bytes(items).strip()
        exposed = _with_prefix(key, data, space.prefix.encode() + b"+")
        if exposed is not None:
            return Texts(key, data, len(exposed)), exposed
    fields = decode_list(items)
    names = [text_of(item.get(key)) for item in fields]
    return names, [raw(rewrite.expose_item(method, item, space)) for item in fields]


def _with_prefix(key: str, data: bytes, prefix: bytes) -> EncodedList | None:
    """The same in one pass over the bytes, where that is sure to change the items' URIs and nothing else.

    Without escapes every `"uri"` is a whole string, and a member is spelled like that. When each item has
    such a member, and there are no more such strings than items, they are these members.
    """
    if data.find(b"\\") >= 0:
        return None
    decoder, name, starts = _NAMED[key]
    try:
        uris = decoder.decode(data)
    except _UNREADABLE:
        return None
    count = len(uris)
    for start in starts:
        parts = data.split(start)
        if len(parts) == count + 1:
            if data.count(name) != count or data.find(start + _UI) >= 0:
                return None
            return EncodedList((start + prefix).join(parts), count)
    return None
