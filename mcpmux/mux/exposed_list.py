"""A list's items as clients see them: changed in its bytes where that is sure to be right, or one by one.

Most lists only get a prefix before the URI of each item. What is done here to their bytes has a proof of
its own, see `_with_prefix`; whatever that does not understand is taken apart by `rewrite`. A page that all
clients may see goes from its server's bytes into those of the merged list as one piece. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar, overload

import msgspec

from mcpmux.mux import rewrite
from mcpmux.mux.namespace import Space
from mcpmux.protocol.envelope import UNREADABLE, decode_items, decode_list, raw, text_of
from mcpmux.protocol.raw_json import Raw

T = TypeVar("T")

_UI: Final = b"ui://"  # a prefix has its place behind that


class _Resource(msgspec.Struct, gc=False):
    uri: str


class _Template(msgspec.Struct, gc=False):
    uri: str = msgspec.field(name="uriTemplate")


_READERS: Final[dict[str, msgspec.json.Decoder[list[_Resource]] | msgspec.json.Decoder[list[_Template]]]] = {
    "uri": msgspec.json.Decoder(list[_Resource]),
    "uriTemplate": msgspec.json.Decoder(list[_Template]),
}
"""How the items' URIs are read, by the name of the member."""


class _Unread(Sequence[T]):
    """What `count` items of a valid JSON array hold, decoded when somebody asks for it, which few do."""

    __slots__ = ("_count", "_data", "_items")

    def __init__(self, data: bytes, count: int) -> None:
        self._data = data
        self._count = count
        self._items: list[T] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._count}, {len(self._data)} bytes>"

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if self._items is None:
            self._items = self._read()
        return self._items[index]

    def _read(self) -> list[T]:
        raise NotImplementedError


class EncodedList(_Unread[Raw]):
    """The items. The array begins and ends with its brackets."""

    __slots__ = ()

    def _read(self) -> list[Raw]:
        return decode_items(self._data)

    @property
    def inner(self) -> memoryview:
        """What is between the brackets, b"" of an empty list."""
        return memoryview(self._data)[1:-1] if self._count else memoryview(b"")


class Texts(_Unread[str | None]):
    """The upstream's own names or URIs of the items, which are objects: their members `key`."""

    __slots__ = ("_key",)

    def __init__(self, key: str, data: bytes, count: int) -> None:
        self._data = data
        self._count = count
        self._items = None
        self._key = key

    def _read(self) -> list[str | None]:
        data, self._data = self._data, b""
        return [item.uri for item in _READERS[self._key].decode(data)]


def join_lists(lists: Iterable[Sequence[Any]]) -> Raw:
    """All their items as one JSON array, in this order. Lists of other kinds hold what can be encoded."""
    inner = [own.inner if isinstance(own, EncodedList) else bytes(raw(own))[1:-1] for own in lists]
    return Raw(b"[%b]" % b",".join(filter(None, inner)))


def expose_list(method: str, items: Raw, space: Space) -> tuple[Sequence[str | None], Sequence[Raw]]:
    """The upstream's own names or URIs of the items of a list, and the items as clients see them.

    `items` is valid JSON. Raises ValueError when it is no array of objects.
    """
    key = rewrite.NAMED_BY[method]
    if key in _READERS and space.prefix:
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
    try:
        count = len(_READERS[key].decode(data))
    except UNREADABLE:
        return None
    name = b'"%b"' % key.encode()
    for start in (name + b':"', name + b': "'):
        parts = data.split(start)
        if len(parts) == count + 1:
            if data.count(name) != count or data.find(start + _UI) >= 0:
                return None
            return EncodedList((start + prefix).join(parts), count)
    return None
