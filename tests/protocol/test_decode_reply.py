from __future__ import annotations

import pytest

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
def test_answer_in_one_pass_is_the_answer_in_two(data):
    message = decode_message(data)
    assert isinstance(message, Reply)
    reply = decode_reply(data)
    assert reply is not None
    assert (reply.id, reply.members) == (message.id, decode_fields(message.result))


@pytest.mark.parametrize("data", OTHERS)
def test_anything_else_is_left_to_who_can_say_what_is_wrong(data):
    assert decode_reply(data) is None
