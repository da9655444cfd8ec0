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

from collections.abc import Sequence

from mcpmux.mux.cursor import Position
from mcpmux.mux.encoded_list import join_lists
from mcpmux.protocol.raw_json import Fields, Raw

PAGE_LIMIT = 10_000  # pages of one upstream's list; a list that is longer is taken for one that never ends
ITEM_LIMIT = 100_000  # items of one upstream's list, when nothing else is said
LOOKS = 10  # page sizes of items that are looked at for one page, of which few may be shown
FOLLOWING_LIMIT = 8 * 1024  # characters of one upstream's cursor; the combined one has room for 32 such


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
        self._count = 0
        self._looked_at = 0
        self._arrived: dict[str, tuple[Sequence[Item], Position | None]] = {}

    def __repr__(self) -> str:
        return f"Walk(wanted={[p.upstream for p in self.wanted]}, items={self._count}, {self.failures})"

    @property
    def items(self) -> list[Item]:
        """What has been emitted, in order."""
        return [item for page in self._emitted for item in page]

    def encoded_items(self) -> Raw:
        """The same as a JSON array."""
        return join_lists(self._emitted)

    def leave_out(self, upstream: str, reason: str) -> None:
        """An upstream that the walk has not finished is not there any more; the others go on."""
        self.wanted = [position for position in self.wanted if position.upstream != upstream]
        self.failures[upstream] = reason

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
            self._count += len(items)
            if after is not None:
                following.append(after)
        self.wanted = following

    @property
    def done(self) -> bool:
        """Whether the combined page is complete: full, or nothing is left to fetch."""
        full = self._count >= self._page_size or self._looked_at >= LOOKS * self._page_size
        return full or not self.wanted
