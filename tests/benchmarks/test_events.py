"""Chunks and event streams are read the same in whatever pieces they come."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.events import LAST_CHUNK, Event, Events, Unchunking, answer_in, unchunked

STREAM = (
    b'id: 1\ndata: \n\nevent: message\ndata: {"a":1}\n\n: ping\n\nevent: endpoint\r\ndata: /m?s=1\r\n\r\n'
)
EVENTS = [Event("message", b'{"a":1}'), Event("endpoint", b"/m?s=1")]
CHUNKED = b"5\r\nhello\r\n7;x=y\r\n, world\r\n0\r\n\r\n"


def pieces(data: bytes) -> st.SearchStrategy[list[bytes]]:
    """The bytes, cut anywhere."""
    cuts = st.lists(st.integers(0, len(data))).map(lambda found: [0, *sorted(found), len(data)])
    return cuts.map(lambda ends: [data[a:b] for a, b in itertools.pairwise(ends)])


@given(pieces(STREAM))
def test_events_do_not_depend_on_the_pieces(parts):
    events = Events()
    assert [event for part in parts for event in events.feed(part)] == EVENTS


@given(pieces(CHUNKED))
def test_chunks_do_not_depend_on_the_pieces(parts):
    unchunking = Unchunking()
    assert b"".join(unchunking.feed(part) for part in parts) == b"hello, world"


def test_whole_chunked_body_ends_with_the_last_chunk():
    assert unchunked(CHUNKED) == b"hello, world"
    assert CHUNKED.endswith(LAST_CHUNK)


def test_answer_is_the_last_event():
    assert answer_in(b'data: {"method":"n"}\n\nid: 2\ndata: {"id":1}\n\n') == b'{"id":1}'


def test_data_over_several_lines_is_joined():
    assert answer_in(b"data: {\ndata: }\n\n") == b"{\n}"


def test_stream_without_data_has_no_answer():
    with pytest.raises(ValueError, match="without data"):
        answer_in(b": ping\n\n")
