"""Merging many upstreams' pages into one: which pages to fetch next, and what the combined page is.

A walk goes in rounds. In a round the next page of every unfinished upstream is fetched (concurrently, by
the caller); items are emitted round by round, within a round in configuration order. A combined page is as
many whole rounds as it takes to reach the page size.

Laws: walking all pages yields every item exactly once; the order does not depend on the page size; an
upstream page is fetched once per walk; a failed upstream loses only its own items and is reported.

A combined page has no item twice. Between pages that is not certain, see `Before`.

State: `wanted` positions of the coming round → `take_page`/`take_failure` for each → next round, or `done`.
Only this file changes it.
"""

from __future__ import annotations

import itertools
import operator
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from mcpmux.mux import rewrite
from mcpmux.mux.item import REPEATED, ItemProblem, mend_items, read_fitting
from mcpmux.mux.rewrite import Space
from mcpmux.mux.seal import (
    CRC_BITS,
    FIRST_TOLD,
    LAST_TOLD,
    MARKS_LIMIT,
    InvalidCursor,
    Position,
    mark_of,
    utf8_of,
)
from mcpmux.protocol.envelope import decode_items, decode_list, raw, text_of
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.method import LISTS
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.tasks import EXTENSION, task_capabilities

# A list's items as clients see them: changed in their bytes where that is surely right, or one by one.
#
# Most items only get a prefix before their name or URI. A page that all clients may see goes to them from its
# server as one piece.


_UI: Final = "ui://"  # in such a URI the prefix stands behind this


class _Named(msgspec.Struct, gc=False):
    name: str


class _Resource(msgspec.Struct, gc=False):
    name: str = msgspec.field(name="uri")


class _Template(msgspec.Struct, gc=False):
    name: str = msgspec.field(name="uriTemplate")


_READERS: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    "name": msgspec.json.Decoder(list[_Named]),
    "uri": msgspec.json.Decoder(list[_Resource]),
    "uriTemplate": msgspec.json.Decoder(list[_Template]),
}
"""Decoders of the items' names or URIs, by the name of the member."""
_name_of: Final = operator.attrgetter("name")


class EncodedList(Sequence[Raw]):
    """The items of a valid JSON array, which begins and ends with its brackets. Items are seldom needed."""

    __slots__ = ("_count", "_data", "_items")

    def __init__(self, data: bytes, count: int) -> None:
        self._data = data
        self._count = count
        self._items: list[Raw] | None = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if self._items is None:
            self._items = decode_items(self._data)
        return self._items[index]

    @property
    def inner(self) -> memoryview:
        """The bytes between the brackets, b"" for an empty list."""
        return memoryview(self._data)[1:-1] if self._count else memoryview(b"")


def join_lists(lists: Iterable[Sequence[Any]]) -> Raw:
    """Return all items as one JSON array, in order. Lists of other kinds hold values that can be encoded."""
    inner = [own.inner if isinstance(own, EncodedList) else bytes(raw(own))[1:-1] for own in lists]
    return Raw(b"[%b]" % b",".join(filter(None, inner)))


class Exposed(NamedTuple):
    """One page of an upstream's list. `names`: the upstream's names or URIs; `items`: as clients see them.

    `problems`: the items that were mended or left out.
    """

    names: Sequence[str | None]
    items: Sequence[Raw]
    problems: Sequence[ItemProblem] = ()


def expose_list(method: str, items: Raw, space: Space) -> Exposed:
    """Return a page of the list that `method` asks for, fit for the schema and for clients.

    `items` is valid JSON. Raises ValueError when it is no array, or when a list of tasks has other items than
    objects.
    """
    key = rewrite.NAMED_BY[method]
    if method not in LISTS:
        fields = decode_list(items)
        names = [text_of(item.get(key)) for item in fields]
        return Exposed(names, [raw(rewrite.expose_item(method, item, space)) for item in fields])
    data = bytes(items)
    fitting = read_fitting(method, data)
    if fitting is None:
        own, fields, problems = mend_items(method, items)
        return Exposed(own, [raw(rewrite.expose_item(method, item, space)) for item in fields], problems)
    # A link to an app is a second place to change, which `_with_prefix` does not know.
    if space.prefix and not fitting.link:
        exposed = _with_prefix(key, data, fitting.names, space)
        if exposed is not None:
            return Exposed(fitting.names, exposed)
    fields = decode_list(items)
    return Exposed(fitting.names, [raw(rewrite.expose_item(method, item, space)) for item in fields])


def _with_prefix(key: str, data: bytes, own: list[str], space: Space) -> EncodedList | None:
    """Return the list with a prefix before all items' names; None where that is not surely right."""
    # Such a URI has its prefix behind the scheme.
    if key != "name" and _UI in "\n".join(own):
        return None
    expose = space.expose_name if key == "name" else f"{space.prefix}+".__add__
    # All items of one upstream get the same prefix, so the first one shows it.
    prefix = expose(own[0]).removesuffix(own[0]) if own else ""
    # Without a backslash each `"uri"` is a whole string. Every item has that member, so if there are no more
    # of these strings than items, there is no other member to change.
    is_sure = b"\\" not in data and data.count(f'"{key}"'.encode()) == len(own)
    if key == "name":
        is_sure = is_sure and all(map(operator.eq, map(expose, own), map(prefix.__add__, own)))
    for start in (f'"{key}":"'.encode(), f'"{key}": "'.encode()):
        # The prefix is put into each member that is spelled as the items' names are.
        parts = data.split(start)
        if len(parts) == len(own) + 1:
            changed = (start + prefix.encode("utf-8", "surrogatepass")).join(parts).strip()
            # It made as many changes as there are items: if each item's name changed as it should, no change
            # is left for another member.
            if is_sure or list(map(_name_of, _READERS[key].decode(changed))) == list(map(expose, own)):
                return EncodedList(changed, len(own))
            return None
    return None


# Many lists as one.

PAGE_LIMIT: Final = 10_000  # pages of one upstream's list; a longer list is considered endless
ITEM_LIMIT: Final = 100_000  # items of one upstream's list, by default
LOOKS: Final = 10  # times the page size: items that are read for one page, of which few may be shown
FOLLOWING_LIMIT: Final = 8 * 1024  # characters of one upstream's cursor; the combined one has room for 25
TOO_LONG: Final = "its list cannot go on: its cursor is too long"


Item = Fields | Raw
"""An item of a list, which is not decoded further."""

STALE_PAGES: Final = 2  # in a row, with only items that came before: the list has begun again
NOTHING_NEW: Final = ItemProblem(None, "a page of the list has only items that came before", left_out=False)
BEGINS_AGAIN: Final = ItemProblem(
    None, "the list does not end but begins again: it is cut there", left_out=False
)


# Some servers list an item twice, or begin again where their list should end.
class Before:
    """The names of one upstream's items so far: on this combined page, and by marks in its cursor."""

    def __init__(self, position: Position) -> None:
        self._position = position
        # Few names, so that the cursor stays small: the first ones show that a list begins again, the last
        # ones that pages overlap. An item that comes again long after its first time is not recognised.
        self._marks = frozenset((*position.first, *position.last))
        self._sums = frozenset(mark >> CRC_BITS for mark in self._marks)
        self._pages: list[Sequence[str | None]] = []
        self._known: set[str | None] | None = None  # the names on those pages, built for the second one
        self._shown: list[Sequence[str | None]] = []
        self._stale = position.stale

    @property
    def begins_again(self) -> bool:
        """Whether the list repeats itself instead of ending."""
        return self._stale >= STALE_PAGES

    def sift(self, names: Sequence[str | None], shown: Sequence[bool] | None) -> list[bool] | None:
        """Add the names of the next page. Return whether each is new, or None if all are.

        `shown`: whether the client sees each; None if it sees all. No page has a name twice, see
        `expose_list`.
        """
        # Most lists have one page, for which the set of names is never built.
        if not self._marks and not self._pages:
            self._pages.append(names)
            return None
        if self._known is None:
            self._known = set(itertools.chain.from_iterable(self._pages))
        # Most pages have new names only, which sets show at once.
        if self._known.isdisjoint(names) and (
            not self._sums or self._sums.isdisjoint(map(zlib.crc32, map(utf8_of, filter(None, names))))
        ):
            self._known.update(names)
            self._stale = 0 if names else self._stale
            return None
        is_new = [name is None or name not in self._known for name in names]
        if self._marks:
            marks, first = tuple(mark_of(name or "") for name in names), self._position.first
            # A cursor has no marks of hidden names: its client could guess these by them.
            seen = marks if shown is None else tuple(itertools.compress(marks, shown))
            if len(first) == FIRST_TOLD and len(seen) > 1 and seen[:FIRST_TOLD] == first[: len(seen)]:
                # The list begins again. Its other names are not in the cursor, so all are left out.
                self._stale = STALE_PAGES
                return [False] * len(marks)
            is_new = [new and mark not in self._marks for new, mark in zip(is_new, marks, strict=True)]
        self._known.update(names)
        if any(is_new):
            self._stale = 0
        elif is_new:
            self._stale += 1
        return None if all(is_new) else is_new

    def show(self, names: Sequence[str | None]) -> None:
        """Note names that are shown to the client, for its cursor."""
        self._shown.append(names)

    def continued(self, following: Position, room: int) -> Position:
        """Return the following position, with marks of the first and of `room` last names so far."""
        first = itertools.chain.from_iterable(self._shown)
        last: list[str | None] = []
        for page in reversed(self._shown):
            last[:0] = page[-LAST_TOLD:]
            if len(last) >= LAST_TOLD:
                break
        return following.tell(first, last, self._stale, room)


class Walk:
    """One combined page in the making.

    `wanted`: positions whose pages are to be fetched now. `failures`: upstream → one sentence. `problems`:
    what is wrong with each upstream's list.
    """

    def __init__(self, start: list[Position], page_size: int) -> None:
        self.wanted = start
        self.failures: dict[str, str] = {}
        self.problems: dict[str, dict[ItemProblem, None]] = {}
        self._page_size = page_size
        self._emitted: list[Sequence[Item]] = []  # the items of page after page
        self._count = self._looked_at = 0  # items so far, without and with hidden ones
        self._arrived: dict[str, tuple[Sequence[Item], Position | None]] = {}
        self._before = {position.upstream: Before(position) for position in start}

    def items(self) -> Raw:
        """Return the items emitted so far, in order, as a JSON array."""
        return join_lists(self._emitted)

    def sift(
        self, position: Position, names: Sequence[str | None], shown: Sequence[bool] | None = None
    ) -> list[bool] | None:
        """Return whether each item of the page at `position` is new, by the names; None if all are.

        Call it once for each page, before `take_page`, with all its items. `shown`: whether the client sees
        each; None if it sees all.
        """
        is_new = self._before[position.upstream].sift(names, shown)
        if is_new is None:
            return None
        if any(is_new):
            for name in itertools.compress(names, map(operator.not_, is_new)):
                self._report(position, ItemProblem(name, REPEATED, left_out=True))
        elif is_new:
            self._report(position, NOTHING_NEW)
        return is_new

    def take_page(
        self,
        position: Position,
        items: Sequence[Item],
        following: str | None,
        limit: int = ITEM_LIMIT,
        *,
        names: Sequence[str | None] = (),
        hidden: int = 0,
    ) -> None:
        """Add the page at `position`: its items and the upstream's cursor after it (None: the last page).

        `limit`: items of the whole list, after which it is cut, with a failure. `names`: those of the items.
        `hidden`: the number of items that were removed before, as the client does not see them.
        """
        count = len(items)
        shown_before = self._before[position.upstream]
        after = None
        room = limit - position.items
        if following is not None and shown_before.begins_again:
            self._report(position, BEGINS_AGAIN)
        elif count > room or (following is not None and count == room):
            items, count = items[:room], min(count, room)
            self.failures[position.upstream] = f"its list is cut after {limit} items: see max_list_items"
        elif following is not None and position.pages + 1 >= PAGE_LIMIT:
            self.failures[position.upstream] = f"its list is cut after {PAGE_LIMIT} pages"
        elif following is not None and len(following) > FOLLOWING_LIMIT:
            self.failures[position.upstream] = TOO_LONG
        elif following is not None:
            # `advance` detects a cycle of cursors, which would make the walk endless.
            after = position.advance(following, count)
            if after is None:
                self._report(position, BEGINS_AGAIN)
        if after is not None:
            shown_before.show(names)
        self._count += count
        self._looked_at += count + hidden
        self._arrived[position.upstream] = (items, after)

    def _report(self, position: Position, problem: ItemProblem) -> None:
        self.problems.setdefault(position.upstream, {})[problem] = None

    def take_failure(self, position: Position, reason: str) -> None:
        """Note a failure to fetch the page at `position`; the rest of the walk goes without its upstream."""
        self.failures[position.upstream] = reason
        self._arrived[position.upstream] = ([], None)

    def end_round(self) -> None:
        """Emit the round and plan the next, after every wanted page has been taken."""
        following = []
        for position in self.wanted:
            items, after = self._arrived.pop(position.upstream)
            self._emitted.append(items)
            if after is not None:
                following.append(after)
        self.wanted = following

    @property
    def done(self) -> bool:
        """Whether the combined page is complete: full, or no page is left to fetch."""
        # A client that sees few items must not cause a walk over all: its page may be short, or empty with a
        # cursor.
        looked_at_many = self._looked_at >= LOOKS * self._page_size
        return self._count >= self._page_size or looked_at_many or not self.wanted

    def resume(self, marks: int = MARKS_LIMIT) -> list[Position]:
        """Return the positions where the next combined page begins, with `marks` of names, about."""
        room = min(LAST_TOLD, marks // max(1, len(self.wanted)) - FIRST_TOLD)
        return [self._before[place.upstream].continued(place, max(0, room)) for place in self.wanted]

    def cursor(self, seal: Callable[[list[Position]], str]) -> str | None:
        """Return the cursor of the next combined page, made by `seal`; None after the last page.

        `seal` raises InvalidCursor for positions that are too long together. Then they get fewer marks, or
        the lists with the longest cursors end, each with a failure.
        """
        marks = MARKS_LIMIT
        while self.wanted:
            with suppress(InvalidCursor):
                return seal(self.resume(marks))
            if not marks:
                # A quarter of the lists at a time, as sealing that many long cursors takes milliseconds.
                by_length = sorted(self.wanted, key=lambda place: len(place.cursor or ""))
                self.failures |= {place.upstream: TOO_LONG for place in by_length[len(by_length) * 3 // 4 :]}
                self.wanted = [place for place in self.wanted if place.upstream not in self.failures]
            marks = 0
        return None


# mcpmux's description of itself

DELIVERED: Final[dict[str, frozenset[str]]] = {
    "tools": frozenset({"listChanged"}),
    "resources": frozenset({"listChanged", "subscribe"}),
    "prompts": frozenset({"listChanged"}),
    "completions": frozenset(),
    "logging": frozenset(),
}
"""The options of each capability that mcpmux delivers."""

UNKNOWN: Final = ServerFacts("", {name: dict.fromkeys(options, True) for name, options in DELIVERED.items()})
"""Stands for a server that has not been reached yet: clients never use what is not offered."""

_OWN: Final = "listChanged"
"""Delivered for every list, whatever the servers offer: mcpmux can gain and lose servers."""


def merge_capabilities(servers: Iterable[ServerFacts], *, legacy: bool = False) -> dict[str, Any]:
    """Return the union of the servers' capabilities that mcpmux can offer to a client of the given era.

    An extension or experimental capability is offered when all servers that have it agree on its settings.
    Its own methods and notifications reach a server only if that is the only one and has no prefix.
    """
    servers = list(servers)
    merged: dict[str, Any] = task_capabilities(servers, legacy=legacy)
    for facts in servers:
        for capability, options in DELIVERED.items():
            if facts.offers(capability):
                offered = facts.capabilities.get(capability) or {}
                announced = {
                    option: True for option in options if option == _OWN or offered.get(option) is True
                }
                merged.setdefault(capability, {}).update(announced)
    for kind in ("extensions", "experimental"):  # they hold others, by names that mcpmux need not know
        by_name: dict[str, list[Any]] = {}
        for facts in servers:
            offered = facts.capabilities.get(kind)
            for name, settings in offered.items() if isinstance(offered, dict) else ():
                if name != EXTENSION and isinstance(settings, dict):  # see `task_capabilities`
                    by_name.setdefault(name, []).append(settings)
        for name, every in by_name.items():
            # Its additions to items and results pass untouched, so all servers must mean the same by it.
            if all(settings == every[0] for settings in every):
                merged.setdefault(kind, {}).setdefault(name, every[0])
    return merged


def merge_instructions(own: str | None, servers: Iterable[tuple[str, ServerFacts]]) -> str | None:
    """Return our own text, then each server's under a heading with its name; None when there is none."""
    parts = [own] if own else []
    parts += [f"## {name}\n\n{facts.instructions}" for name, facts in servers if facts.instructions]
    return "\n\n".join(parts) or None
