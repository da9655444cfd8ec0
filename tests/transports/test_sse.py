from __future__ import annotations

import tracemalloc
from itertools import cycle, islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.errors import LocalProtocolError, MessageTooLarge
from mcpmux.transports.sse import NAME_BYTES, PACKED_LINES, SseDecoder, SseEvent, encode_event

ENCODED = [
    pytest.param({"data": b"{}"}, b"data: {}\n\n", SseEvent("message", b"{}", None), id="data"),
    pytest.param(
        {"data": b"{}", "event": "message"},
        b"event: message\ndata: {}\n\n",
        SseEvent("message", b"{}", None),
        id="the usual event",
    ),
    pytest.param(
        {"data": b"", "event_id": "7", "retry": 3000},
        b"id: 7\nretry: 3000\ndata: \n\n",
        SseEvent("message", b"", "7"),
        id="priming event",
    ),
    pytest.param(
        {"data": b"a\nb\r\nc\rd"},
        b"data: a\ndata: b\ndata: c\ndata: d\n\n",
        SseEvent("message", b"a\nb\nc\nd", None),
        id="several lines",
    ),
    pytest.param(
        {"data": b"a\n", "event_id": ""},
        b"id: \ndata: a\ndata: \n\n",
        SseEvent("message", b"a\n", ""),
        id="last line empty",
    ),
    pytest.param({"data": b"  x: y"}, b"data:   x: y\n\n", SseEvent("message", b"  x: y", None), id="blanks"),
    pytest.param(
        {"data": "ü€".encode(), "event": "é"},
        "event: é\ndata: ü€\n\n".encode(),
        SseEvent("é", "ü€".encode(), None),
        id="not ascii",
    ),
]

DECODED = [
    pytest.param(b"data\n\n", [SseEvent("message", b"", None)], id="field without colon"),
    pytest.param(b"data:x\n\n", [SseEvent("message", b"x", None)], id="no blank after the colon"),
    pytest.param(b"data: x", [], id="line without end"),
    pytest.param(b"data: x\n", [], id="event without end"),
    pytest.param(b"\n\n\n", [], id="nothing but line ends"),
    pytest.param(b": ping\n\ndata: x\n\n", [SseEvent("message", b"x", None)], id="comment"),
    pytest.param(b"other: y\ndata: x\n\n", [SseEvent("message", b"x", None)], id="unknown field"),
    pytest.param(b"\xef\xbb\xbfdata: x\n\n", [SseEvent("message", b"x", None)], id="byte order mark"),
    pytest.param(b"\xef\xbb\xbf\ndata: x\n\n", [SseEvent("message", b"x", None)], id="mark on its own line"),
    pytest.param(
        b"\n\xef\xbb\xbfdata: x\n\ndata: y\n\n",
        [SseEvent("message", b"y", None)],
        id="mark that is not at the start",
    ),
    pytest.param(
        b"data: a\r\rdata: b\r\n\r\ndata: c\n\ndata: d\r\n\n",
        [SseEvent("message", data, None) for data in (b"a", b"b", b"c", b"d")],
        id="all line ends",
    ),
    pytest.param(
        b"event: add\n\ndata: x\n\n",
        [SseEvent("message", b"x", None)],
        id="event type without data is dropped",
    ),
    pytest.param(
        b"event:\ndata: x\n\n", [SseEvent("message", b"x", None)], id="empty event type means message"
    ),
    pytest.param(
        b"id: 1\ndata: a\n\ndata: b\n\nid\ndata: c\n\n",
        [SseEvent("message", b"a", "1"), SseEvent("message", b"b", "1"), SseEvent("message", b"c", "")],
        id="an id stays in force until it is reset",
    ),
    pytest.param(b"id: 1\x002\ndata: a\n\n", [SseEvent("message", b"a", None)], id="id with NUL is ignored"),
    pytest.param(b"id: 1\n\ndata: a\n\n", [SseEvent("message", b"a", "1")], id="id without data counts"),
    pytest.param(
        b"data: a\x0b\x85\x0cb\n\n", [SseEvent("message", b"a\x0b\x85\x0cb", None)], id="no line ends"
    ),
]


def decode_bytewise(stream: bytes, limit: int = 1000) -> list[SseEvent]:
    decoder = SseDecoder(limit)
    return [event for byte in stream for event in decoder.feed(bytes([byte]))]


@pytest.mark.parametrize(("arguments", "encoded", "event"), ENCODED)
def test_event_is_encoded_and_decoded(arguments, encoded, event):
    assert encode_event(**arguments) == encoded
    assert SseDecoder(1000).feed(encoded) == [event]
    assert decode_bytewise(encoded) == [event]


@pytest.mark.parametrize(("stream", "events"), DECODED)
def test_stream_is_decoded_as_the_standard_says(stream, events):
    assert SseDecoder(1000).feed(stream) == events
    assert decode_bytewise(stream) == events


@pytest.mark.parametrize("arguments", [{"event": "a\nb"}, {"event_id": "a\rb"}, {"event_id": "a\0b"}])
def test_field_that_does_not_fit_into_a_line_is_refused(arguments):
    with pytest.raises(LocalProtocolError):
        encode_event(b"", **arguments)


def test_retry_and_id_count_without_an_event():
    decoder = SseDecoder(1000)
    assert decoder.feed(b"id: 5\nretry: 250\n\n") == []
    assert (decoder.last_event_id, decoder.retry_milliseconds) == ("5", 250)


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"soon", b"9" * 5000])
def test_retry_that_is_no_usable_number_is_ignored(value):
    decoder = SseDecoder(10_000)
    decoder.feed(b"retry: 250\nretry: " + value + b"\n\n")
    assert decoder.retry_milliseconds == 250


@pytest.mark.parametrize("data", [b"x" * 20, b"x" * 9 + b"\n" + b"y" * 10])
def test_event_of_exactly_the_limit_passes(data):
    event = SseEvent("message", data, None)
    assert SseDecoder(20).feed(encode_event(data)) == [event]
    assert decode_bytewise(encode_event(data), limit=20) == [event]


@pytest.mark.parametrize(
    "stream",
    [encode_event(b"x" * 21), encode_event(b"x\n" * 11), b"data: " + b"x" * 30, b": " + b"x" * 30],
    ids=["one line", "many lines", "line without end", "comment without end"],
)
def test_event_above_the_limit_is_refused(stream):
    with pytest.raises(MessageTooLarge):
        SseDecoder(20).feed(stream)
    with pytest.raises(MessageTooLarge):
        decode_bytewise(stream, limit=20)


@given(
    events=st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8")),
            st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), min_size=1),
        )
    ),
    cuts=st.lists(st.integers(min_value=0, max_value=300)),
)
def test_what_was_encoded_is_decoded_wherever_the_stream_is_cut(events, cuts):
    stream = b"".join(encode_event(data.encode(), event=event) for data, event in events)
    decoder = SseDecoder(100_000)
    bounds = [0, *sorted(cuts), len(stream)]
    decoded = [event for start, end in pairwise(bounds) for event in decoder.feed(stream[start:end])]
    assert [(event.event, event.data) for event in decoded] == [
        (event or "message", data.replace("\r\n", "\n").replace("\r", "\n").encode())
        for data, event in events
    ]


@given(stream=st.text("ab:\r\n ").map(str.encode))
def test_cutting_the_stream_never_changes_what_is_decoded(stream):
    assert decode_bytewise(stream) == SseDecoder(1000).feed(stream)


def decode_in_cuts(decoder, stream, cuts):
    bounds = [0, *sorted(cuts), len(stream)]
    return [event for start, end in pairwise(bounds) for event in decoder.feed(stream[start:end])]


@given(
    events=st.lists(
        st.tuples(st.sampled_from([None, "ping"]), st.integers(0, 60), st.sampled_from(["x", "y\n"]))
    ),
    cuts=st.lists(st.integers(min_value=0, max_value=2000)),
)
def test_a_skipping_decoder_loses_nothing_but_what_is_too_large(events, cuts):
    limit = 30
    texts = [(event, (part * count)[:count].encode()) for event, count, part in events]
    stream = b"".join(encode_event(data, event=event) for event, data in texts)
    decoded = decode_in_cuts(SseDecoder(limit, skips=True), stream, cuts)
    assert [(item.event, item.oversized) for item in decoded] == [
        (event or "message", len(data) > limit) for event, data in texts
    ]
    for item, (_, data) in zip(decoded, texts, strict=True):
        assert item.data == data or (item.oversized and data.startswith(item.data))


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\nid: 7\nevent: y\n\n"])
def test_a_skipped_event_is_not_kept_while_it_arrives(end):
    decoder = SseDecoder(100, skips=True)
    decoder.feed(b"data: ")
    for _ in range(1000):
        assert decoder.feed(b"x" * 50) == []
        assert decoder._unended_bytes + decoder._data_bytes <= 160
    assert decoder.feed(b"\ndata: " + b"z" * 90) == []
    assert [(event.data[:50], event.oversized) for event in decoder.feed(end)] == [(b"x" * 50, True)]
    assert decoder.feed(encode_event(b"next"))[0].data == b"next"


def peak_of(chunks: list[bytes], limit: int) -> tuple[int, int]:
    """Feed them until their event is too large: the most memory that took, and what is left of it."""
    decoder = SseDecoder(limit)
    tracemalloc.start()
    try:
        with pytest.raises(MessageTooLarge):
            for chunk in chunks:
                decoder.feed(bytes(bytearray(chunk)))  # as each receive brings new ones
        left, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return most, left


@pytest.mark.parametrize(
    "chunks",
    [[b"data: "] + [b"x" * 2**16] * 17, [b"data:xx\n" * 2**10] * 400, [b"data: "] + [b"xy"] * (2**19 + 2)],
    ids=["one line", "short lines", "short parts"],
)
def test_an_event_that_is_too_large_is_held_once_and_let_go(chunks: list[bytes]) -> None:
    limit = 2**20
    most, left = peak_of(chunks, limit)
    assert most < 1.5 * limit
    assert left < limit / 8


def test_a_large_event_is_copied_once() -> None:
    size = 2**22
    decoder = SseDecoder(size)
    tracemalloc.start()
    try:
        decoder.feed(b"data: ")
        for _ in range(size // 2**16):
            decoder.feed(bytes(2**16))
        [event] = decoder.feed(b"\n\n")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(event.data) == size
    assert most < 2.5 * size


@pytest.mark.parametrize("unfit", [b"x" * (NAME_BYTES + 1), b"x\x01", b"\x7f"])
def test_an_id_that_no_header_can_carry_is_not_kept(unfit: bytes) -> None:
    [event] = SseDecoder(2**20).feed(b"id: 1\nevent: " + unfit + b"\nid: " + unfit + b"\ndata: y\n\n")
    assert (event.event, event.data, event.id) == (unfit[:NAME_BYTES].decode(), b"y", "")


@given(st.lists(st.binary(max_size=3), min_size=1, max_size=40), st.integers(0, 3 * PACKED_LINES))
def test_lines_that_are_packed_give_the_same_event(some: list[bytes], count: int) -> None:
    clean = [line.translate(None, b"\r\n") for line in some]
    lines = list(islice(cycle(clean), count))
    decoder = SseDecoder(2**20)
    events = [event for line in lines for event in decoder.feed(b"data: %b\n" % line)]
    assert events == []
    events = decoder.feed(b"\n")
    assert [event.data for event in events] == ([b"\n".join(lines)] if lines else [])
