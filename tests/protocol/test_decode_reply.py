from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.protocol.envelope import Reply, decode_fields, decode_message, decode_reply

ANSWERS = [
    b'{"jsonrpc":"2.0","id":1,"result":{}}',
    b' {"result": {"a": [1, {"b": 1e2}], "c":"\xc3\xa9"}, "id":"x", "jsonrpc":"2.0", "more":null} ',
    b'{"jsonrpc":"2.0","id":1,"result":{"a":1},"result":{"b":2}}',
]
OTHERS = [
    b"",
    b"[]",
    b'{"jsonrpc":"2.0","id":1,"result":{}',
    b'{"jsonrpc":"2.0","id":1,"result":{"a":01}}',
    b'{"jsonrpc":"2.0","id":1,"result":{"a":"\xff"}}',
    b'{"jsonrpc":"1.0","id":1,"result":{}}',
    b'{"id":1,"result":{}}',
    b'{"jsonrpc":"2.0","id":null,"result":{}}',
    b'{"jsonrpc":"2.0","id":1.5,"result":{}}',
    b'{"jsonrpc":"2.0","result":{}}',
    b'{"jsonrpc":"2.0","id":1,"result":[]}',
    b'{"jsonrpc":"2.0","id":1,"result":null}',
    b'{"jsonrpc":"2.0","id":1}',
    b'{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1}}',
    b'{"jsonrpc":"2.0","id":1,"result":{},"error":null}',
    b'{"jsonrpc":"2.0","id":1,"result":{},"method":"a"}',
    b'{"jsonrpc":"2.0","id":1,"result":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
]


@pytest.mark.parametrize("data", ANSWERS)
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_answer_in_one_pass_is_the_answer_in_two(data, kind):
    message = decode_message(data)
    assert isinstance(message, Reply)
    reply = decode_reply(kind(data))
    assert reply is not None
    assert (reply.id, reply.members) == (message.id, decode_fields(message.result))


@pytest.mark.parametrize("data", OTHERS)
def test_anything_else_is_left_to_who_can_say_what_is_wrong(data):
    assert decode_reply(data) is None


@given(st.binary(max_size=40), st.integers(0, 60), st.integers(0, 60))
def test_no_damage_makes_an_answer_that_the_other_way_does_not_see(junk, start, length):
    data = b'{"jsonrpc":"2.0","id":1,"result":{"a":"b\\"","c":[1,{"id":2}]},"id":3}'
    data = data[:start] + junk + data[start + length :]
    reply = decode_reply(data)
    if reply is not None:
        expected = decode_message(data)
        assert isinstance(expected, Reply)
        assert (reply.id, reply.members) == (expected.id, decode_fields(expected.result))
