"""The readings of a URI: their number and their cost. `test_policy` tests how rules use them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcpmux.mux.pattern import (
    BOTH,
    CUTS,
    DECODE_LIMIT,
    PLAIN_LIMIT,
    READINGS_LIMIT,
    STAR,
    Target,
    TargetGlob,
    UriReader,
    clear_ways,
    read,
)

PIECES = [*"aA./\\?#\t @", "..", "//", "%2e", "%252e", "x:", "file:", ":80"]
uris = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
globs = st.lists(st.sampled_from([*PIECES, "*"]), max_size=8).map("".join)


@given(uris, st.integers(1, 2000))
def test_the_readings_of_a_clear_uri_are_short_together(uri: str, repeats: int):
    target = Target(uri * repeats)
    if target.is_clear:
        assert sum(len(text) for _, text in target.readings[1:]) <= READINGS_LIMIT + 2 * len(target.readings)


@pytest.mark.parametrize("tail", ["", "?q=\\..//#f"])
@pytest.mark.parametrize("repeats", [100, 700])
def test_a_long_uri_with_many_readings_is_not_clear(repeats: int, tail: str):
    uri = "file:///%25252e%252e//a\\b\t/" + "%2e%2e%2f//" * repeats + tail
    assert clear_ways(uri) is None
    assert not Target(uri).is_in(TargetGlob("*a*/*"))
    assert Target(uri).may_be_in(TargetGlob("memo:x"))


def test_a_long_uri_with_few_readings_is_clear():
    assert Target("file:///My%20Documents/" + "a" * 6000).is_in(TargetGlob("file:///*"))
    assert Target("https://h/?token=" + "a" * 3000).is_in(TargetGlob("https://h/*"))


def test_a_uri_too_long_to_read_is_not_clear():
    longest = "file:///" + "a" * (PLAIN_LIMIT - 8)
    assert Target(longest).is_in(TargetGlob("file:///*"))
    assert not Target(longest + "a").is_clear
    assert not Target(longest + "a").is_in(TargetGlob("file:///*"))
    assert Target(longest + "a").may_be_in(TargetGlob("memo:x"))


@given(globs)
@example("/.*/")
@example("http:*//h")
@example("h*.://a")
@example("file*:/x")
@example("%2*e")
def test_a_plain_glob_is_the_same_in_every_way(glob: str):
    if TargetGlob(glob).is_plain:
        marked = glob.replace("*", STAR)
        ways = itertools.starmap(UriReader, itertools.product(range(4), CUTS, BOTH, BOTH, BOTH))
        assert {read(marked, way) for way in ways} == {marked}


@given(st.sampled_from(["file:///a/*", "*", "memo:x"]), uris)
def test_a_plain_glob_is_held_against_every_reading(glob: str, uri: str):
    by_way = TargetGlob(glob)
    by_way.__dict__["is_plain"] = False
    assert Target(uri).is_in(TargetGlob(glob)) == Target(uri).is_in(by_way)


@given(uris)
@example("file:/etc//../passwd?://")  # the second `//` is no head of a URL
@example("file:/etc/\t/../passwd")
def test_no_way_of_reading_is_left_out(uri: str):
    readings = {text for _, text in Target(uri).readings}
    ways = itertools.starmap(UriReader, itertools.product(range(DECODE_LIMIT + 1), CUTS, BOTH, BOTH, BOTH))
    if Target(uri).is_clear:
        assert {read(uri, way) for way in ways} <= readings


def test_a_head_in_the_query_hides_no_reading():
    target, etc = Target("file:/etc//../passwd?://"), TargetGlob("file:///etc/*")
    assert target.may_be_in(etc)  # a server that keeps both slashes, as URLs do, reads /etc/passwd
    assert not target.is_in(etc)
