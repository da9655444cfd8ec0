from __future__ import annotations

import pytest

from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import Request, decode_fields, decode_message, decode_request

REQUESTS = [
    b'{"jsonrpc":"2.0","id":1,"method":"a"}',
    b'{"jsonrpc":"2.0","id":1,"method":"a","params":null}',
    b' {"params": {"a": [1, {"b": 1e2}], "_meta":{"x":"\xc3\xa9"}}, "method":"a", "id":"", "jsonrpc":"2.0"}',
    b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"a":1},"params":{"b":2}}',
    b'{"jsonrpc":"2.0","id":1,"method":"a","params":{},"result":{},"error":7}',
]
OTHERS = [
    b"",
    b"[]",
    b'[{"jsonrpc":"2.0","id":1,"method":"a"}]',
    b'{"jsonrpc":"2.0","id":1,"method":"a"',
    b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"a":"\xff"}}',
    b'{"jsonrpc":"1.0","id":1,"method":"a"}',
    b'{"id":1,"method":"a"}',
    b'{"jsonrpc":"2.0","id":null,"method":"a"}',
    b'{"jsonrpc":"2.0","id":1.5,"method":"a"}',
    b'{"jsonrpc":"2.0","id":true,"method":"a"}',
    b'{"jsonrpc":"2.0","method":"a"}',
    b'{"jsonrpc":"2.0","id":1,"method":7}',
    b'{"jsonrpc":"2.0","id":1,"method":"a","params":[]}',
    b'{"jsonrpc":"2.0","id":1,"result":{}}',
    b'{"jsonrpc":"2.0","id":1,"method":"a","params":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
]


@pytest.mark.parametrize("data", REQUESTS)
def test_request_in_one_pass_is_the_request_in_two(data):
    message, request = decode_message(data), decode_request(data)
    assert isinstance(message, Request)
    assert request is not None
    assert (request.id, request.method) == (message.id, message.method)
    assert decode_fields(request.payload) == decode_fields(message.payload)
    for _ in range(2):  # reading it as a call does not change it
        assert Call.of("a", request.payload) == Call.of("a", message.payload)


@pytest.mark.parametrize("data", OTHERS)
def test_anything_else_is_left_to_who_can_say_what_is_wrong(data):
    assert decode_request(data) is None
