"""Large messages are read as all others are, and the parts are what would be encoded."""

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.protocol.envelope import (
    LARGE_BYTES,
    check_utf8,
    decode_list,
    decode_message,
    decode_reply,
    encode_large_reply,
    encode_reply,
    raw,
    read_objects,
)

LONG = "x" * (LARGE_BYTES + 1)


def plain(fields):
    return {key: bytes(value) for key, value in fields.items()}


def test_small_members_do_not_keep_the_message():
    data = raw({"jsonrpc": "2.0", "id": 1, "result": {"text": LONG, "ttlMs": 5}})
    tracemalloc.start()
    try:
        reply = decode_reply(bytearray(bytes(data)))
        assert reply is not None
        assert reply.members is not None
        kept = {"ttlMs": reply.members["ttlMs"]}
        del reply
        assert tracemalloc.get_traced_memory()[0] < LARGE_BYTES
        assert bytes(kept["ttlMs"]) == b"5"
    finally:
        tracemalloc.stop()


def test_a_large_message_is_looked_at_without_another_copy_as_text():
    text = "🎉" + "é" * 2**20  # four bytes a character in memory
    data = json.dumps({"jsonrpc": "2.0", "method": "m", "params": {"a": text}}, ensure_ascii=False).encode()
    tracemalloc.start()
    try:
        decode_message(data)
        assert tracemalloc.get_traced_memory()[1] < len(data) * 1.5
    finally:
        tracemalloc.stop()


values = st.recursive(
    st.none() | st.integers(-5, 5) | st.text(max_size=5) | st.just(LONG) | st.just('"' * 3 + LONG + '\\"'),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=6,
)
objects = st.lists(st.dictionaries(st.text(max_size=3) | st.just(LONG), values, max_size=4), max_size=3)


@given(objects)
def test_objects_with_long_strings_are_read_as_all_others_are(members):
    value = raw(members)
    assert [plain(member) for member in read_objects(value)] == [
        plain(member) for member in decode_list(value)
    ]


@pytest.mark.parametrize("text", ['"', "\\", '\\"', "0", '"0"', "\n"])
def test_a_long_string_may_hold_what_marks_it(text):
    members = [{"uri": "0", "text": text * LARGE_BYTES}, {"0": "0", "1": 1, "text": text + LONG}]
    value = raw(members)
    assert [plain(member) for member in read_objects(value)] == [
        plain(member) for member in decode_list(value)
    ]


def test_what_is_no_list_of_objects_is_refused():
    for value in (raw({"a": LONG}), raw([LONG]), raw(LONG)):
        with pytest.raises(ValueError, match="Expected"):
            read_objects(value)


@pytest.mark.parametrize("result", [{}, {"a": 1}, {"a": LONG}, {"ü": 1, "b": LONG, "c": [], "d": LONG}])
def test_the_parts_of_an_answer_are_the_answer(result):
    fields = {key: raw(value) for key, value in result.items()}
    assert b"".join(encode_large_reply("id\n", fields)) == encode_reply("id\n", fields)


def test_large_values_are_not_copied():
    fields = {"a": raw(LONG)}
    tracemalloc.start()
    try:
        parts = encode_large_reply(1, fields)
        assert tracemalloc.get_traced_memory()[1] < LARGE_BYTES
    finally:
        tracemalloc.stop()
    assert json.loads(b"".join(parts))["result"]["a"] == LONG


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_text_is_checked_across_the_pieces_it_is_looked_at_in(cut):
    text = ("x" * (LARGE_BYTES - cut) + "\U0001f600" * 20_000).encode()
    check_utf8(text)
    for broken in (text[:-1], text[:cut] + b"\xff" + text[cut:], text + b"\xed\xa0\x80"):
        with pytest.raises(UnicodeDecodeError):
            check_utf8(broken)
