from __future__ import annotations

import base64
import hashlib
import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mcpmux.mux import seal
from mcpmux.mux.seal import CURSOR_LIMIT, CursorSeal, InvalidCursor, Position, mark_of

UPSTREAMS = ["docs", "git", "time"]
SEAL = CursorSeal(b"0123456789abcdef")
ALPHABET = string.ascii_letters + string.digits + "-_"

cursors = st.none() | st.text() | st.just("x" * 500)
positions = st.lists(
    st.builds(
        Position,
        st.sampled_from(UPSTREAMS),
        cursors,
        anchor=st.none() | st.integers(0, (1 << 48) - 1),
        left=st.integers(1, 1 << 20),
        stride=st.integers(1, 1 << 20),
    ),
    max_size=3,
    unique_by=lambda position: position.upstream,
)
kinds = st.sampled_from(["resources/list", "resources/templates/list", "tools/list", "prompts/list"])


def refuse(kind: str, text: str, key: CursorSeal = SEAL) -> str:
    """Return the reason why `text` is refused."""
    with pytest.raises(InvalidCursor) as caught:
        key.open(kind, text)
    return str(caught.value)


# Laws of the seal


@given(kinds, positions)
def test_opening_a_sealed_cursor_gives_the_positions_back(kind: str, held: list[Position]):
    text = SEAL.seal(kind, held)
    assert SEAL.open(kind, text) == held
    assert set(text) <= set(ALPHABET)


@given(kinds, positions)
def test_a_replica_with_the_same_key_opens_the_cursor(kind: str, held: list[Position]):
    assert CursorSeal(b"0123456789abcdef").open(kind, SEAL.seal(kind, held)) == held


@given(positions, st.data())
def test_a_cursor_with_one_character_changed_is_refused(held: list[Position], data: st.DataObject):
    text = SEAL.seal("tools/list", held)
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from(ALPHABET + "+/= é\n"))
    assume(other != text[place])
    refuse("tools/list", text[:place] + other + text[place + 1 :])


@given(positions, st.data())
def test_a_cursor_that_is_cut_or_extended_is_refused(held: list[Position], data: st.DataObject):
    text = SEAL.seal("tools/list", held)
    place = data.draw(st.integers(0, len(text) - 1))
    more = data.draw(st.text(ALPHABET + "=\n ", min_size=1, max_size=8))
    for wrong in (
        text[:place],
        text[place + 1 :],
        text + more,
        more + text,
        text[:place] + more + text[place:],
    ):
        assume(wrong != text)
        refuse("tools/list", wrong)


@given(st.text() | st.binary().map(lambda data: base64.urlsafe_b64encode(data).decode()))
def test_a_made_up_cursor_is_refused(text: str):
    refuse("tools/list", text)


@given(kinds, kinds, positions)
def test_a_cursor_of_another_list_is_refused(kind: str, other: str, held: list[Position]):
    assume(kind != other)
    assert "not given out for this list" in refuse(other, SEAL.seal(kind, held))


@given(positions, st.binary(min_size=16, max_size=32))
def test_a_cursor_sealed_with_another_key_is_refused(held: list[Position], key: bytes):
    assume(key != b"0123456789abcdef")
    assert "not given out" in refuse("tools/list", CursorSeal(key).seal("tools/list", held))


# Cases of the seal


def test_no_cursor_and_an_empty_one_are_different_positions():
    """ "Pagination", 2026-07-28: an empty string is a valid cursor."""
    held = [Position("docs", None), Position("git", "")]
    assert SEAL.open("tools/list", SEAL.seal("tools/list", held)) == held


def test_a_cursor_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as other:
        other.setattr(seal, "_PLAIN", b"\x07")
        text = SEAL.seal("tools/list", [Position("docs", "x")])
    assert "another version" in refuse("tools/list", text)


def test_a_thousand_unfinished_upstreams_fit_in_a_cursor():
    names = [f"upstream-{index}" for index in range(1000)]
    held = [
        Position(name, base64.b64encode(f"{name}/{index}".encode() * 4).decode())
        for index, name in enumerate(names)
    ]
    text = SEAL.seal("resources/list", held)
    assert len(text) < CURSOR_LIMIT / 2
    assert SEAL.open("resources/list", text) == held


def test_repetitive_cursors_are_compressed():
    held = [Position("docs", "page=" * 10_000)]
    text = SEAL.seal("tools/list", held)
    assert len(text) < 1000
    assert SEAL.open("tools/list", text) == held


@pytest.mark.parametrize("huge", ["x" * 4 * CURSOR_LIMIT, hashlib.shake_256(b"").hexdigest(400_000)])
def test_cursors_too_long_to_be_combined_are_refused_when_sealed(huge: str):
    with pytest.raises(InvalidCursor, match="too long"):
        SEAL.seal("tools/list", [Position("docs", huge)])


def test_an_overlong_cursor_is_refused_unread():
    assert "longer than any" in refuse("tools/list", "A" * (CURSOR_LIMIT + 1))
    assert "not given out" in refuse("tools/list", "A" * CURSOR_LIMIT)


# Cycles


def pages_until_stopped(tail: int, loop: int, limit: int) -> int | None:
    """Count fetched pages of a list whose cursors are 0 … tail - 1, then `loop` others again and again."""
    position, page = Position("docs"), 0
    for fetched in range(1, limit + 1):
        following = page if page < tail + loop else tail + (page - tail) % loop
        advanced = position.advance(str(following))
        if advanced is None:
            return fetched
        position, page = advanced, page + 1
    return None


@given(st.integers(0, 200), st.integers(1, 200))
def test_a_circle_of_cursors_is_found_within_three_times_its_way(tail: int, loop: int):
    """The bound that Brent's method gives: 3 x max(tail, loop) pages, and the first one."""
    limit = 3 * max(tail, loop) + 1
    pages = pages_until_stopped(tail, loop, limit)
    assert pages is not None
    assert pages > tail + loop


@given(st.lists(st.text(), unique=True, max_size=300))
def test_a_list_without_a_circle_is_walked_to_its_end(following: list[str]):
    position = Position("docs")
    for text in following:
        advanced = position.advance(text)
        assert advanced is not None
        assert (advanced.upstream, advanced.cursor) == ("docs", text)
        position = advanced


@given(st.integers(1, 2000))
def test_a_position_stays_small_however_long_the_walk(pages: int):
    position = Position("docs")
    for page in range(pages):
        advanced = position.advance(f"{page:08}")
        assert advanced is not None
        position = advanced
    assert len(SEAL.seal("tools/list", [position])) < 120


def test_a_cursor_that_names_itself_is_a_circle():
    assert Position("docs", "").advance("") is None
    assert Position("docs", "a").advance("a") is None
    second = Position("docs", "", anchor=mark_of(""), left=2, stride=2, items=3, pages=1)
    assert Position("docs").advance("", 3) == second


def test_a_cursor_is_its_principals():
    text = SEAL.seal("tools/list", [Position("docs", "x")], "ann")
    assert SEAL.open("tools/list", text, "ann") == [Position("docs", "x")]
    for other in ("", "ben", "ann "):
        with pytest.raises(InvalidCursor):
            SEAL.open("tools/list", text, other)
