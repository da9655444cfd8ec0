"""The items of a list as they are in its JSON array, taken apart only for who wants some of them.

A page of a list that all of its clients may see goes from its server's bytes into those of the merged list as
one piece; most pages do. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

from mcpmux.protocol.envelope import decode_items, raw
from mcpmux.protocol.raw_json import Raw


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
