from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.protocol.framing import EXCERPT_BYTES, GAP, Line, LineDecoder, Oversized, encode_line

LIMIT = 8

CASES: list[tuple[bytes, list[Line]]] = [
    (b"", []),
    (b"one\ntwo\n", [b"one", b"two"]),
    (b"crlf\r\nlf\n", [b"crlf", b"lf"]),
    (b"\n\r\n\nafter\n\n", [b"after"]),
    (b"no end", [b"no end"]),
    (b"no end\r", [b"no end"]),
    (b"12345678\n", [b"12345678"]),
    (b"12345678\r\n", [b"12345678"]),
    (b"123456789\nok\n", [Oversized(9, b"1234" + GAP + b"6789"), b"ok"]),
    (b"123456789\r\nok\n", [Oversized(10, b"1234" + GAP + b"789\r"), b"ok"]),
    (b"ab" + b"x" * 996 + b"yz\nok\n", [Oversized(1000, b"abxx" + GAP + b"xxyz"), b"ok"]),
    (b"ok\n" + b"x" * 1000, [b"ok", Oversized(1000, b"xxxx" + GAP + b"xxxx")]),
    (b"a\rb\n", [b"a\rb"]),
]

stream = st.lists(st.sampled_from([b"a", b"bcd", b"\n", b"\r\n", b"\r", b"123456789"])).map(b"".join)


def decode(chunks: list[bytes]) -> list[Line]:
    decoder = LineDecoder(LIMIT)
    lines = [line for chunk in chunks for line in decoder.feed(chunk)]
    return lines + decoder.close()


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]


@pytest.mark.parametrize(("data", "lines"), CASES)
def test_a_stream_is_cut_into_lines_whole_and_byte_by_byte(data: bytes, lines: list[Line]):
    assert decode([data]) == lines
    assert decode([data[i : i + 1] for i in range(len(data))]) == lines


@given(stream, st.lists(st.integers(0, 1000), max_size=8))
def test_any_chunking_gives_the_same_messages(data: bytes, places: list[int]):
    assert decode(cut(data, places)) == decode([data])


@given(st.lists(st.binary(min_size=1, max_size=LIMIT).filter(lambda m: not set(m) & set(b"\r\n"))))
def test_encoded_messages_come_back_as_they_were(messages: list[bytes]):
    assert decode([b"".join(map(encode_line, messages))]) == messages


def test_a_line_is_complete_as_soon_as_its_newline_is_there():
    decoder = LineDecoder(LIMIT)
    assert decoder.feed(b"one\ntw") == [b"one"]
    assert decoder.feed(b"o") == []
    assert decoder.feed(b"\n") == [b"two"]


def test_a_discarded_line_is_not_kept_in_memory():
    decoder = LineDecoder(LIMIT)
    for _ in range(100):
        assert decoder.feed(b"x" * 10_000) == []
        assert len(decoder._kept) <= LIMIT + 1
    assert decoder.feed(b"\n") == [Oversized(1_000_000, b"xxxx" + GAP + b"xxxx")]
    (line,) = LineDecoder(10 * EXCERPT_BYTES).feed(b"x" * 1_000_000 + b"\n")
    assert isinstance(line, Oversized)
    assert len(line.excerpt) == 2 * EXCERPT_BYTES + len(GAP)


def test_line_breaks_between_json_tokens_become_spaces():
    assert encode_line(b'{\r\n "a": 1\n}') == b'{   "a": 1 }\n'
