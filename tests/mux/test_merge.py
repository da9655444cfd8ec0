from __future__ import annotations

import base64
import hashlib
import itertools
import operator
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.mux.item import REPEATED
from mcpmux.mux.merge import BEGINS_AGAIN, FOLLOWING_LIMIT, ITEM_LIMIT, PAGE_LIMIT, TOO_LONG, Walk
from mcpmux.mux.seal import CursorSeal, Position
from mcpmux.protocol.envelope import decode_any, raw
from mcpmux.protocol.raw_json import Fields

SEAL = CursorSeal(b"0123456789abcdef")
ROUND_LIMIT = 1000  # more than any list here has pages


class Upstream(NamedTuple):
    """A server's list: each page's items, the cursor of each page but the first, the page that fails."""

    pages: list[list[str]]
    cursors: list[str]
    failing: int | None


class Outcome(NamedTuple):
    """The view of a client: the items of each combined page, and the reported failures."""

    pages: list[list[str]]
    failures: list[tuple[str, str]]
    fetched: Counter[tuple[str, str | None]]

    @property
    def items(self) -> list[str]:
        return [item for page in self.pages for item in page]


@st.composite
def upstreams(draw: st.DrawFn) -> dict[str, Upstream]:
    drawn = {}
    for name in draw(st.permutations(["a", "b", "c", "d"]))[: draw(st.integers(0, 4))]:
        sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=6))
        pages = [[f"{name}{page}.{item}" for item in range(size)] for page, size in enumerate(sizes)]
        cursors = draw(
            st.lists(st.text(max_size=2), min_size=len(pages) - 1, max_size=len(pages) - 1, unique=True)
        )
        drawn[name] = Upstream(pages, cursors, draw(st.none() | st.integers(0, len(pages) - 1)))
    return drawn


def fetch(upstream: Upstream, cursor: str | None) -> tuple[list[Fields], str | None] | None:
    """Return one page of a server: its items and the next cursor; None for the one that cannot be had."""
    page = 0 if cursor is None else upstream.cursors.index(cursor) + 1
    if page == upstream.failing:
        return None
    items = [{"name": raw(name)} for name in upstream.pages[page]]
    return items, upstream.cursors[page] if page < len(upstream.cursors) else None


def walk_all(
    table: dict[str, Upstream], page_size: int, reverse: bool = False, limit: int = ITEM_LIMIT
) -> Outcome:
    """Return every combined page, each cursor sealed and opened. `reverse`: the last answers come first."""
    outcome = Outcome([], [], Counter())
    start = [Position(name) for name in table]
    while True:
        walk = Walk(start, page_size)
        while not walk.done:
            for position in reversed(walk.wanted) if reverse else walk.wanted:
                outcome.fetched[position.upstream, position.cursor] += 1
                answer = fetch(table[position.upstream], position.cursor)
                if answer is None:
                    walk.take_failure(position, "is down")
                else:
                    walk.take_page(position, *answer, limit)
            walk.end_round()
        outcome.pages.append([item["name"] for item in decode_any(walk.items())])
        outcome.failures.extend(walk.failures.items())
        if not walk.wanted:
            return outcome
        assert len(outcome.pages) < ROUND_LIMIT
        start = SEAL.open("tools/list", SEAL.seal("tools/list", walk.wanted))


def expected(table: dict[str, Upstream]) -> list[str]:
    """Return the items round by round, in configuration order, up to the page that cannot be had."""
    rounds = max((len(upstream.pages) for upstream in table.values()), default=0)
    return [
        item
        for page in range(rounds)
        for upstream in table.values()
        if page < len(upstream.pages) and (upstream.failing is None or page < upstream.failing)
        for item in upstream.pages[page]
    ]


@given(upstreams(), st.integers(1, 30))
def test_walking_all_pages_yields_every_item_that_can_be_had_exactly_once(
    table: dict[str, Upstream], page_size: int
):
    assert walk_all(table, page_size).items == expected(table)


@given(upstreams(), st.integers(1, 30), st.integers(1, 30))
def test_the_order_depends_on_no_page_size_and_no_timing(
    table: dict[str, Upstream], page_size: int, other_size: int
):
    items = walk_all(table, page_size).items
    assert walk_all(table, other_size).items == items
    assert walk_all(table, page_size, reverse=True).items == items


@given(upstreams(), st.integers(1, 30))
def test_each_upstream_page_is_fetched_once_in_a_walk(table: dict[str, Upstream], page_size: int):
    expected = {
        (name, cursor)
        for name, upstream in table.items()
        for cursor in [None, *upstream.cursors][
            : len(upstream.pages) if upstream.failing is None else upstream.failing + 1
        ]
    }
    assert walk_all(table, page_size).fetched == Counter(expected)


@given(upstreams(), st.integers(1, 30))
def test_each_failed_upstream_is_told_once_and_no_other(table: dict[str, Upstream], page_size: int):
    failing = {(name, "is down") for name, upstream in table.items() if upstream.failing is not None}
    assert Counter(walk_all(table, page_size).failures) == Counter(failing)


@given(upstreams(), st.integers(1, 30))
def test_every_combined_page_but_the_last_is_full(table: dict[str, Upstream], page_size: int):
    *full, _last = walk_all(table, page_size).pages
    assert all(len(page) >= page_size for page in full)


@given(upstreams())
def test_a_small_aggregate_comes_back_whole(table: dict[str, Upstream]):
    assert len(walk_all(table, 1000).pages) == 1


@pytest.mark.parametrize("loop", [1, 2, 3, 7])
def test_a_list_whose_cursors_go_round_ends_and_is_told(loop: int):
    walk = Walk([Position("a"), Position("b")], 1000)
    rounds = 0
    while not walk.done:
        for position in walk.wanted:
            following = str(rounds % loop) if position.upstream == "a" else None
            walk.take_page(position, [{"name": raw(position.upstream)}], following)
        walk.end_round()
        rounds += 1
        assert rounds <= 3 * loop + 1
    assert list(walk.problems["a"]) == [BEGINS_AGAIN]
    assert not walk.failures
    assert [item["name"] for item in decode_any(walk.items())].count("b") == 1


def walk_names(
    pages: Callable[[int], list[str]], page_size: int, cursor: str | None = None, hidden: str | None = None
) -> Outcome:
    """Return the shown part of an endless list: `pages` gives its pages, `cursor` follows each, if any.

    `hidden`: the client sees no name that ends so.
    """
    outcome, start, number = Outcome([], [], Counter()), [Position("a")], 0
    while start:
        walk = Walk(start, page_size)
        while not walk.done:
            [position] = walk.wanted
            names = pages(number)
            seen = None if hidden is None else [not name.endswith(hidden) for name in names]
            is_new = walk.sift(position, names, seen) or [True] * len(names)
            kept = map(operator.and_, is_new, seen or itertools.repeat(True))
            shown = list(itertools.compress(names, kept))
            following = str(number) if cursor is None else cursor
            items = [{"name": raw(name)} for name in shown]
            walk.take_page(position, items, following, names=shown, hidden=len(names) - len(shown))
            walk.end_round()
            number += 1
            assert number < ROUND_LIMIT
        outcome.pages.append([item["name"] for item in decode_any(walk.items())])
        assert len(outcome.pages) < ROUND_LIMIT
        outcome.failures.extend((problem.name or "", problem.text) for problem in walk.problems.get("a", ()))
        start = SEAL.open("tools/list", SEAL.seal("tools/list", walk.resume())) if walk.wanted else []
    return outcome


@given(st.integers(1, 60), st.integers(1, 40), st.integers(1, 80))
def test_a_list_that_begins_again_under_ever_new_cursors_is_shown_once(count: int, size: int, page_size: int):
    names = [f"tool{number}" for number in range(count)]
    pages = [names[start : start + size] for start in range(0, count, size)]
    outcome = walk_names(lambda number: pages[number % len(pages)], page_size)
    assert outcome.items == names
    assert outcome.failures[-1] == ("", BEGINS_AGAIN.text)


@given(st.integers(2000, 2100), st.sampled_from([15, 100]), st.sampled_from([100, 1500]), st.booleans())
def test_a_long_list_that_begins_again_ends_there(count: int, size: int, page_size: int, some_hidden: bool):
    names = [f"tool{number}" for number in range(count)]
    pages = [names[start : start + size] for start in range(0, count, size)]
    hidden = "0" if some_hidden else None
    outcome = walk_names(lambda number: pages[number % len(pages)], page_size, hidden=hidden)
    assert outcome.items == [name for name in names if hidden is None or not name.endswith(hidden)]
    assert outcome.failures[-1] == ("", BEGINS_AGAIN.text)


@given(st.integers(1, 60))
def test_an_item_repeated_on_the_next_page_is_dropped(page_size: int):
    table = [[f"{page}.{number}" for number in range(20)] for page in range(3)]
    pages = [[*table[max(page - 1, 0)][-2:], *table[page]] for page in range(1, 3)]
    outcome = walk_names(lambda number: [table[0], *pages][min(number, 2)], page_size)
    assert outcome.items == [name for page in table for name in page]
    repeated = [name for name, text in outcome.failures if text == REPEATED]
    assert repeated == ["0.18", "0.19", "1.18", "1.19"]


def test_an_unusable_cursor_fails_only_its_own_upstream():
    walk = Walk([Position("a"), Position("b")], 1)
    walk.take_page(walk.wanted[0], [{"name": raw("x")}], "x" * (FOLLOWING_LIMIT + 1))
    walk.take_page(walk.wanted[1], [{"name": raw("y")}], "x" * FOLLOWING_LIMIT)
    walk.end_round()
    assert [item["name"] for item in decode_any(walk.items())] == ["x", "y"]
    assert [position.upstream for position in walk.wanted] == ["b"]
    assert walk.failures == {"a": TOO_LONG}


def resumed(walk: Walk) -> list[Position]:
    """Return the positions in the cursor after a walk."""
    cursor = walk.cursor(partial(SEAL.seal, "tools/list"))
    assert cursor is not None
    return SEAL.open("tools/list", cursor)


# Base64 is what tokens are made of, and it cannot be compressed by more than a quarter.
@pytest.mark.parametrize(
    ("lengths", "least"),
    [
        ([FOLLOWING_LIMIT] * 25, 25),
        ([100] * 1000, 1000),
        ([500] * 400, 400),
        # These do not fit: the shortest go on, and at least half of those for which there is room.
        ([FOLLOWING_LIMIT] * 100, 14),
        ([2000] * 100 + [60] * 60, 100),
        ([100] * 2000, 700),
    ],
)
def test_the_cursors_that_fit_in_a_combined_one_go_on(lengths: list[int], least: int):
    walk = Walk([Position(f"upstream-{number}") for number in range(len(lengths))], 1)
    for position, length in zip(walk.wanted, lengths, strict=True):
        names = [f"{position.upstream}/tool{number}" for number in range(60)]
        assert walk.sift(position, names) is None
        cursor = base64.b64encode(hashlib.shake_256(position.upstream.encode()).digest(length))[:length]
        walk.take_page(position, [{"name": raw(name)} for name in names], cursor.decode(), names=names)
    walk.end_round()
    going_on = {position.upstream for position in resumed(walk)}
    shortest = {f"upstream-{number}" for number, length in enumerate(lengths) if length == min(lengths)}
    assert len(going_on) >= least
    assert going_on >= shortest or going_on <= shortest
    ended = [f"upstream-{number}" for number in range(len(lengths)) if f"upstream-{number}" not in going_on]
    assert walk.failures == dict.fromkeys(ended, TOO_LONG)


@pytest.mark.parametrize("count", [1, 150, 1000])
def test_many_unfinished_upstreams_fit_in_a_combined_cursor(count: int):
    walk = Walk([Position(f"upstream-{number}") for number in range(count)], 1000)
    names = [f"tool{number}" for number in range(1000)]
    for position in walk.wanted:
        assert walk.sift(position, names) is None
        items = [{"name": raw(name)} for name in names]
        cursor = hashlib.shake_256(position.upstream.encode()).hexdigest(50)
        walk.take_page(position, items, cursor, names=names)
    walk.end_round()
    again = Walk(resumed(walk), 1000)
    for position in again.wanted:
        assert again.sift(position, names[100:200]) is None
        assert again.sift(position, [*names[-2:], "new"]) == [False, False, True]
        assert not any(again.sift(position, names[:100]) or [True])


@given(upstreams(), st.integers(1, 30), st.integers(1, 8))
def test_a_list_longer_than_its_limit_is_cut_there_and_told_once(
    table: dict[str, Upstream], page_size: int, limit: int
):
    table = {name: upstream._replace(failing=None) for name, upstream in table.items()}
    outcome = walk_all(table, page_size, limit=limit)
    for name, upstream in table.items():
        own = [item for page in upstream.pages for item in page]
        assert [item for item in outcome.items if item.startswith(name)] == own[:limit]
        reasons = [reason for upstream, reason in outcome.failures if upstream == name]
        assert len(reasons) <= 1
        assert (len(own) > limit) <= bool(reasons)
        assert bool(reasons) <= (len(own) >= limit)


def test_a_list_of_empty_pages_without_end_is_cut():
    walk = Walk([Position("a")], 10)
    pages = 0
    while not walk.done:
        walk.take_page(walk.wanted[0], [], str(pages))
        walk.end_round()
        pages += 1
    assert pages == PAGE_LIMIT
    assert walk.failures == {"a": f"its list is cut after {PAGE_LIMIT} pages"}
