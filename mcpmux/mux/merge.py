"""Merging many upstreams' pages into one: which pages to fetch next, and what the combined page is.

A walk goes in rounds. In a round the next page of every unfinished upstream is fetched (concurrently, by
the caller); items are emitted round by round, within a round in configuration order. A combined page is as
many whole rounds as it takes to reach the page size.

Laws: walking all pages yields every item exactly once; the order does not depend on the page size; an
upstream page is fetched once per walk; a failed upstream loses only its own items and is told. A combined
page is also complete when many items were looked at and not shown: it may be short, or empty with a cursor.

State: `wanted` positions of the coming round → `take_page`/`take_failure` for each → next round, or `done`.
Nothing outside this file changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from mcpmux.mux import rewrite
from mcpmux.mux.rewrite import Space
from mcpmux.mux.seal import Position
from mcpmux.protocol.envelope import UNREADABLE, decode_items, decode_list, raw, text_of
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.tasks import EXTENSION, task_capabilities

T = TypeVar("T")

# A list's items as clients see them: changed in its bytes where that is sure to be right, or one by one.
#
# Most lists only get a prefix before the URI of each item. What is done here to their bytes has a proof of
# its own, see `_with_prefix`; whatever that does not understand is taken apart by `rewrite`. A page that all
# clients may see goes from its server's bytes into those of the merged list as one piece.

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


class Unread(Sequence[T]):
    """`count` items that are read when somebody asks for one, which few do."""

    __slots__ = ("_count", "_items", "_read")

    def __init__(self, count: int, read: Callable[[], list[T]]) -> None:
        self._count = count
        self._items: list[T] | None = None
        self._read = read

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if self._items is None:
            self._items = self._read()
            self._read = list  # what it was read from can go
        return self._items[index]


class EncodedList(Unread[Raw]):
    """The items of a valid JSON array, which begins and ends with its brackets."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes, count: int) -> None:
        super().__init__(count, partial(decode_items, data))
        self._data = data

    @property
    def inner(self) -> memoryview:
        """What is between the brackets, b"" of an empty list."""
        return memoryview(self._data)[1:-1] if self._count else memoryview(b"")


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
            return Unread(len(exposed), lambda: [item.uri for item in _READERS[key].decode(data)]), exposed
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


# Many lists as one.

PAGE_LIMIT: Final = 10_000  # pages of one upstream's list; a longer list is taken for one that never ends
ITEM_LIMIT: Final = 100_000  # items of one upstream's list, when nothing else is said
LOOKS: Final = 10  # page sizes of items that are looked at for one page, of which few may be shown
FOLLOWING_LIMIT: Final = 8 * 1024  # characters of one upstream's cursor; the combined one has room for 32


Item = Fields | Raw
"""Something in a list. It is never looked into."""


class Walk:
    """One combined page in the making.

    `wanted`: positions whose pages are to be fetched now. `failures`: upstream → one sentence.
    """

    def __init__(self, start: list[Position], page_size: int) -> None:
        self.wanted = start
        self.failures: dict[str, str] = {}
        self._page_size = page_size
        self._emitted: list[Sequence[Item]] = []  # the items of page after page
        self._looked_at = 0
        self._arrived: dict[str, tuple[Sequence[Item], Position | None]] = {}

    def items(self) -> Raw:
        """What has been emitted, in order, as a JSON array."""
        return join_lists(self._emitted)

    def take_page(
        self,
        position: Position,
        items: Sequence[Item],
        following: str | None,
        limit: int = ITEM_LIMIT,
        *,
        looked_at: int = 0,
    ) -> None:
        """The page at `position` has come: its items and the upstream's cursor after it (None: the last).

        `limit`: items of the whole list, after which it is cut and told. `looked_at`: how many items the page
        had before those went that the client is not shown.
        """
        self._looked_at += looked_at
        after = None
        room = limit - position.items
        if len(items) > room or (following is not None and len(items) == room):
            items = items[:room]
            self.failures[position.upstream] = f"its list is cut after {limit} items: see max_list_items"
        elif following is not None and position.pages + 1 >= PAGE_LIMIT:
            self.failures[position.upstream] = f"its list is cut after {PAGE_LIMIT} pages"
        elif following is not None and len(following) > FOLLOWING_LIMIT:
            self.failures[position.upstream] = "its list cannot go on: its cursor is too long"
        elif following is not None:
            after = position.advance(following, len(items))
            if after is None:
                self.failures[position.upstream] = "its list never ends: it repeats a cursor"
        self._arrived[position.upstream] = (items, after)

    def take_failure(self, position: Position, reason: str) -> None:
        """The page at `position` could not be had; its upstream is left out of the rest of the walk."""
        self.failures[position.upstream] = reason
        self._arrived[position.upstream] = ([], None)

    def end_round(self) -> None:
        """Every wanted page has been taken: emit the round and plan the next."""
        following = []
        for position in self.wanted:
            items, after = self._arrived.pop(position.upstream)
            self._emitted.append(items)
            if after is not None:
                following.append(after)
        self.wanted = following

    @property
    def done(self) -> bool:
        """Whether the combined page is complete: full, or nothing is left to fetch."""
        count = sum(map(len, self._emitted))
        return count >= self._page_size or self._looked_at >= LOOKS * self._page_size or not self.wanted


# What mcpmux says about itself

DELIVERED: Final[dict[str, frozenset[str]]] = {
    "tools": frozenset({"listChanged"}),
    "resources": frozenset({"listChanged", "subscribe"}),
    "prompts": frozenset({"listChanged"}),
    "completions": frozenset(),
    "logging": frozenset(),
}
"""Capability → the options of it that mcpmux delivers."""

UNKNOWN: Final = ServerFacts("", {name: dict.fromkeys(options, True) for name, options in DELIVERED.items()})
"""What a server may yet turn out to offer that nobody has reached: a client that is told less never asks."""

_OWN: Final = "listChanged"
"""Delivered for every list, whatever the servers offer: one of them may go, or come back different."""


def merge_capabilities(servers: Iterable[ServerFacts], *, legacy: bool = False) -> dict[str, Any]:
    """The union of the servers' capabilities that mcpmux can stand for, before a client of that era.

    An extension, and what is experimental, is told as the servers tell it when those that have it agree on
    its settings: what it adds to items and results passes untouched. Methods and notifications of its own
    reach a server that is the only one and unprefixed.
    """
    servers = list(servers)
    merged: dict[str, Any] = task_capabilities(servers, legacy=legacy)
    for facts in servers:
        for capability, options in DELIVERED.items():
            if facts.offers(capability):
                offered = facts.capabilities.get(capability) or {}
                told = {option: True for option in options if option == _OWN or offered.get(option) is True}
                merged.setdefault(capability, {}).update(told)
    for kind in ("extensions", "experimental"):  # they hold others, by names that mcpmux need not know
        for name, settings in _agreed(kind, servers).items():
            merged.setdefault(kind, {}).setdefault(name, settings)
    return merged


def _agreed(kind: str, servers: Iterable[ServerFacts]) -> dict[str, Any]:
    """What the servers offer under a capability, by name, where their settings for it are the same."""
    said: dict[str, list[Any]] = {}
    for facts in servers:
        offered = facts.capabilities.get(kind)
        for name, settings in offered.items() if isinstance(offered, dict) else ():
            if name != EXTENSION and isinstance(settings, dict):  # tasks are spoken for
                said.setdefault(name, []).append(settings)
    return {name: every[0] for name, every in said.items() if all(each == every[0] for each in every)}


def merge_instructions(own: str | None, servers: Iterable[tuple[str, ServerFacts]]) -> str | None:
    """Our own text, then each server's under a heading with its name; None when there is none at all."""
    parts = [own] if own else []
    parts += [f"## {name}\n\n{facts.instructions}" for name, facts in servers if facts.instructions]
    return "\n\n".join(parts) or None
