"""A memory of what was used last, bounded in entries and in bytes. Pure.

Most of what is remembered has a text of a peer as its key or in its value. Without a bound on bytes, N
entries can hold N times the largest message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from sys import getsizeof
from typing import Any, Final, Generic, TypeVar, overload

from msgspec import Raw, Struct

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

ENTRY_BYTES: Final = 200  # that an entry takes besides its key and value, about


def weigh(value: Any) -> int:
    """Return the bytes that a key or value takes, about: of texts, and of what holds texts."""
    if isinstance(value, int):  # mostly the id of a request; the other tests take long
        return 0
    if isinstance(value, str | bytes):
        return getsizeof(value)
    if isinstance(value, Raw):
        return len(memoryview(value))
    if isinstance(value, Mapping):
        return sum(map(weigh, value)) + sum(map(weigh, value.values()))
    if isinstance(value, tuple | list | set | frozenset):
        return sum(map(weigh, value))
    if isinstance(value, Struct):
        return sum(weigh(getattr(value, name)) for name in value.__struct_fields__)
    return 0


class Lru(Generic[K, V]):
    """Forgets what was not used for longest when it has too many entries or bytes.

    An entry that alone takes more than a quarter of the bytes is not kept: it would push out all others.
    """

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._entries: dict[K, tuple[V, int]] = {}
        self.bytes = 0

    def __repr__(self) -> str:
        return f"<Lru {len(self._entries)} entries, {self.bytes} bytes>"

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        """Yield the keys, what was not used for longest first."""
        return iter(self._entries)

    def values(self) -> Iterator[V]:
        """Yield the values in the same order."""
        return (value for value, _ in self._entries.values())

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = None) -> Any:
        """Return a value, which counts as used, or the default."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return default
        self._entries[key] = entry
        return entry[0]

    def peek(self, key: K) -> V | None:
        """Return a value, which does not count as used, or None."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def __setitem__(self, key: K, value: V) -> None:
        self.keep(key, value, weigh(value))

    def keep(self, key: K, value: V, size: int) -> Sequence[V]:
        """Remember a value of a size, in bytes, which counts as used.

        Returns the values that are forgotten for it: itself alone when it is too large to be kept.
        """
        self.discard(key)
        size += ENTRY_BYTES + weigh(key)
        if size * 4 > self._max_bytes:
            return (value,)
        self._entries[key] = value, size
        self.bytes += size
        if len(self._entries) <= self._max_entries and self.bytes <= self._max_bytes:
            return ()
        forgotten: list[V] = []
        while len(self._entries) > self._max_entries or self.bytes > self._max_bytes:
            value, size = self._entries.pop(next(iter(self._entries)))
            self.bytes -= size
            forgotten.append(value)
        return forgotten

    def pop(self, key: K) -> V | None:
        """Forget an entry. Returns its value, None if there is none."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self.bytes -= entry[1]
        return entry[0]

    def discard(self, key: K) -> None:
        """Forget an entry, if there is one."""
        self.pop(key)

    def clear(self) -> None:
        self._entries.clear()
        self.bytes = 0
