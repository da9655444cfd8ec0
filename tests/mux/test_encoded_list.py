"""Items that stay together are, joined or taken apart, what they are one by one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.mux.merge import EncodedList, join_lists
from mcpmux.protocol.envelope import decode_any, raw

items = st.lists(st.dictionaries(st.sampled_from(["uri", "],["]), st.sampled_from(["a,b", "]", "[", ""])))
spellings = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :")])


def encoded(found: list[Any], separators: tuple[str, str] = (",", ":")) -> EncodedList:
    return EncodedList(json.dumps(found, separators=separators).encode(), len(found))


@given(st.lists(st.tuples(items, spellings | st.none()), max_size=5))
def test_joined_lists_are_one_list_of_all_their_items(lists: list[tuple[list[Any], Any]]):
    parts: list[Sequence[Any]] = [
        [raw(item) for item in items] if spelling is None else encoded(items, spelling)
        for items, spelling in lists
    ]
    assert decode_any(join_lists(parts)) == [item for items, _ in lists for item in items]


@given(items, spellings, st.integers(0, 5))
def test_it_is_the_sequence_of_its_items(found: list[Any], spelling: tuple[str, str], end: int):
    together = encoded(found, spelling)
    assert len(together) == len(found)
    assert [decode_any(item) for item in together] == found
    assert [decode_any(item) for item in together[:end]] == found[:end]


def test_nothing_in_it_is_copied_or_changed_on_the_way():
    data = b'[{"size":1e3 , "x":{ "y" : 1.0 }}, {}]'
    assert bytes(join_lists([EncodedList(data, 2), [], EncodedList(b"[ ]", 0)])) == data
    assert bytes(join_lists([])) == b"[]"
    with pytest.raises(IndexError):
        EncodedList(b"[]", 0)[0]
