"""Batches: what is in one, and the one answer to it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.protocol.envelope import NO_BATCH, BadMessage, Notification, Reply, Request, decode_message
from mcpmux.protocol.framing import BATCH_LIMIT, BatchAnswer, read_batch

REQUEST = '{"jsonrpc":"2.0","id":1,"method":"a"}'


def test_a_bad_member_of_a_batch_spoils_only_itself():
    """JSON-RPC 2.0, section 7: `[1]` is answered with an array of one error without an id."""
    more = '1, {"jsonrpc":"2.0","method":"n"}, {"id":7}, {"jsonrpc":"2.0","id":"x","result":{}}'
    first, number, note, incomplete, reply = read_batch(f"[{REQUEST}, {more}]".encode())
    assert first == Request(1, "a")
    assert isinstance(number, BadMessage)
    assert (number.code, number.id) == (-32600, None)
    assert isinstance(note, Notification)
    assert isinstance(incomplete, BadMessage)
    assert incomplete.id == 7
    assert isinstance(reply, Reply)


def test_a_batch_within_a_batch_is_a_bad_member():
    (inner,) = read_batch(f"[[{REQUEST}]]".encode())
    assert isinstance(inner, BadMessage)


TOO_MANY = f"[{','.join([REQUEST] * (BATCH_LIMIT + 1))}]".encode()


@pytest.mark.parametrize(
    "data", [b"[]", b" [ ] ", b"[", TOO_MANY], ids=["empty", "spaces", "broken", "endless"]
)
def test_an_empty_broken_or_endless_batch_is_refused_as_a_whole(data: bytes):
    with pytest.raises(BadMessage) as caught:
        read_batch(data)
    assert caught.value.id is None


def test_a_batch_of_the_greatest_size_is_read():
    assert len(read_batch(f"[{','.join([REQUEST] * BATCH_LIMIT)}]".encode())) == BATCH_LIMIT


def test_where_there_are_no_batches_the_error_says_so():
    with pytest.raises(BadMessage) as caught:
        decode_message(f"[{REQUEST}]".encode())
    assert (caught.value.code, caught.value.message, caught.value.id) == (-32600, NO_BATCH, None)


@given(st.lists(st.booleans(), max_size=8), st.randoms(use_true_random=False))
def test_the_array_comes_once_after_everything_and_has_every_answer(answered: list[bool], order):
    batch = BatchAnswer()
    steps = [json.dumps(number).encode() if yes else None for number, yes in enumerate(answered)]
    for _ in steps:
        batch.expect()
    events = [("answer", step) for step in steps] + [("read", None)]
    order.shuffle(events)
    given_out = [batch.settle(answer) for _, answer in events]
    assert given_out[:-1] == [None] * len(steps)
    expected = [number for number, yes in enumerate(answered) if yes]
    whole = given_out[-1]
    assert sorted(json.loads(whole)) == expected if whole is not None else expected == []
