from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcpmux.errors import RpcError
from mcpmux.protocol.codes import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR
from mcpmux.protocol.envelope import (
    BadMessage,
    ErrorReply,
    Message,
    Notification,
    Reply,
    Request,
    decode_any,
    decode_fields,
    decode_items,
    decode_list,
    decode_message,
    encode_error,
    encode_notification,
    encode_reply,
    encode_request,
    first_byte,
    is_batch,
    raw,
    split_batch,
    text_of,
)
from mcpmux.protocol.raw_json import SHORT_CHARS, Fields, Raw
from tests.payloads import json_texts, member_texts, object_texts

DEEP = 100_000  # levels; far beyond what any decoder here follows

ids = st.integers() | st.text()
methods = st.text(max_size=30)

CASES: list[tuple[bytes, Message]] = [
    (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', Request(1, "ping")),
    (b'{"jsonrpc":"2.0","id":0,"method":"ping"}', Request(0, "ping")),
    (b'{"jsonrpc":"2.0","id":"","method":""}', Request("", "")),
    (b'{"jsonrpc":"2.0","id":"1","method":"a","params":{"b":1.0}}', Request("1", "a", Raw(b'{"b":1.0}'))),
    (
        b'{"jsonrpc":"2.0","id":123456789012345678901234567890,"method":"a"}',
        Request(123456789012345678901234567890, "a"),
    ),
    (b'{"jsonrpc":"2.0","method":"n"}', Notification("n")),
    (b'{"jsonrpc":"2.0","method":"n","params":{"x":[]}}', Notification("n", Raw(b'{"x":[]}'))),
    (b'{"jsonrpc":"2.0","id":1,"result":{}}', Reply(1, Raw(b"{}"))),
    (b'{"jsonrpc":"2.0","id":"a","result":{"z":1,"a":2}}', Reply("a", Raw(b'{"z":1,"a":2}'))),
    (b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}', ErrorReply(1, -32601, "no")),
    (
        b'{"jsonrpc":"2.0","error":{"code":-32700,"message":"what?","data":{"at":3}}}',
        ErrorReply(None, -32700, "what?", Raw(b'{"at":3}')),
    ),
]


def encode(message: Message) -> bytes:
    match message:
        case Request(id=request_id, method=method, params=params):
            return encode_request(request_id, method, None if params is None else decode_fields(params))
        case Notification(method=method, params=params):
            return encode_notification(method, decode_fields(params))
        case Reply(id=request_id, result=result):
            return encode_reply(request_id, decode_fields(result))
        case ErrorReply():
            return encode_error(message.id, message.as_error())


def texts(fields: Fields) -> dict[str, str]:
    return {key: bytes(value).decode() for key, value in fields.items()}


def object_of(members: dict[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(key)}:{value}" for key, value in members.items()) + "}"


# Laws


@given(ids, methods, object_texts)
def test_a_payload_keeps_its_bytes_when_decoded(request_id: int | str, method: str, params: str):
    text = (
        json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method})[:-1] + f', "params" : {params} }}'
    )
    assert decode_message(text.encode()) == Request(request_id, method, Raw(params.encode()))


@given(ids, methods, member_texts)
def test_members_keep_their_bytes_and_order_through_encoding_and_decoding(
    request_id: int | str, method: str, members: dict[str, str]
):
    fields = decode_fields(object_of(members).encode())
    assert list(texts(fields).items()) == list(members.items())
    for data in (encode_request(request_id, method, fields), encode_notification(method, fields)):
        message = decode_message(data)
        assert isinstance(message, Request | Notification)
        assert list(texts(decode_fields(message.params)).items()) == list(members.items())
    reply = decode_message(encode_reply(request_id, fields))
    assert reply == Reply(request_id, raw(fields))


@given(ids | st.none(), st.integers(-(2**31), 2**31), st.text(), st.none() | json_texts)
def test_errors_come_back_as_they_were(
    request_id: int | str | None, code: int, message: str, data: str | None
):
    payload = None if data is None else Raw(data.encode())
    reply = decode_message(encode_error(request_id, RpcError(code, message, payload)))
    assert reply == ErrorReply(request_id, code, message, payload)


@given(st.binary())
@example(b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"b":"\xff"}}')
@example(b"[" * DEEP)
@example(b'{"a":' * DEEP)
def test_any_bytes_are_a_message_or_are_refused_as_json_rpc_asks(data: bytes):
    try:
        decode_message(data)
    except BadMessage as bad:
        assert bad.code in (PARSE_ERROR, INVALID_REQUEST)
        assert bad.message


# Cases


@pytest.mark.parametrize(("data", "message"), CASES)
def test_each_kind_of_message_is_decoded_and_encoded(data: bytes, message: Message):
    assert decode_message(data) == message
    assert encode(message) == data


@pytest.mark.parametrize("data", [data for data, _ in CASES])
def test_a_cut_or_trailed_message_is_a_parse_error(data: bytes):
    for wrong in [*(data[:end] for end in range(len(data))), data + b"x", data + b"{}", data + b"\x00"]:
        with pytest.raises(BadMessage) as caught:
            decode_message(wrong)
        assert caught.value.code == PARSE_ERROR
        assert caught.value.id in (None, getattr(decode_message(data), "id", None))
    assert decode_message(b" \r\n\t" + data + b" \r\n\t") == decode_message(data)


LONG = b"x" * (SHORT_CHARS + 1)

BAD: list[tuple[str, bytes, int, int | str | None]] = [
    ("nothing", b"", PARSE_ERROR, None),
    ("not JSON", b"hello", PARSE_ERROR, None),
    ("bad escape", b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":"\\q"}}', PARSE_ERROR, 1),
    (
        "nested too deeply",
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
        PARSE_ERROR,
        1,
    ),
    ("batch", b'[{"jsonrpc":"2.0","id":1,"method":"a"}]', INVALID_REQUEST, None),
    ("number", b"1", INVALID_REQUEST, None),
    ("null", b"null", INVALID_REQUEST, None),
    ("empty object", b"{}", INVALID_REQUEST, None),
    ("no version", b'{"id":1,"method":"a"}', INVALID_REQUEST, 1),
    ("other version", b'{"jsonrpc":"1.0","id":"x","method":"a"}', INVALID_REQUEST, "x"),
    ("version as number", b'{"jsonrpc":2.0,"id":0,"method":"a"}', INVALID_REQUEST, 0),
    ("id true", b'{"jsonrpc":"2.0","id":true,"method":"a"}', INVALID_REQUEST, None),
    ("id with a fraction", b'{"jsonrpc":"2.0","id":1.5,"method":"a"}', INVALID_REQUEST, None),
    ("id beyond floats", b'{"jsonrpc":"2.0","id":1e400,"method":"a"}', INVALID_REQUEST, None),
    ("id of 5000 digits", b'{"jsonrpc":"2.0","id":' + b"1" * 5000 + b',"method":"a"}', INVALID_REQUEST, None),
    ("id null", b'{"jsonrpc":"2.0","id":null,"method":"a"}', INVALID_REQUEST, None),
    ("id object", b'{"jsonrpc":"2.0","id":{},"method":"a"}', INVALID_REQUEST, None),
    ("last of two ids is null", b'{"jsonrpc":"2.0","id":1,"id":null,"method":"a"}', INVALID_REQUEST, None),
    ("method number", b'{"jsonrpc":"2.0","id":1,"method":5}', INVALID_REQUEST, 1),
    ("method null", b'{"jsonrpc":"2.0","id":"x","method":null}', INVALID_REQUEST, "x"),
    ("params array", b'{"jsonrpc":"2.0","id":1,"method":"a","params":[]}', INVALID_REQUEST, 1),
    ("params number", b'{"jsonrpc":"2.0","id":"x","method":"a","params":3}', INVALID_REQUEST, "x"),
    ("params array of a notification", b'{"jsonrpc":"2.0","method":"a","params":[]}', INVALID_REQUEST, None),
    ("neither", b'{"jsonrpc":"2.0","id":7}', INVALID_REQUEST, 7),
    ("result of nothing", b'{"jsonrpc":"2.0","id":null,"result":{}}', INVALID_REQUEST, None),
    ("long id", b'{"jsonrpc":"2.0","id":"%b","method":"a"}' % LONG, INVALID_REQUEST, None),
    ("long method", b'{"jsonrpc":"2.0","id":1,"method":"%b"}' % LONG, INVALID_REQUEST, 1),
    ("long method of a notification", b'{"jsonrpc":"2.0","method":"%b"}' % LONG, INVALID_REQUEST, None),
    ("long id of a result", b'{"jsonrpc":"2.0","id":"%b","result":{}}' % LONG, INVALID_REQUEST, None),
]


@pytest.mark.parametrize(
    ("data", "code", "request_id"), [row[1:] for row in BAD], ids=[row[0] for row in BAD]
)
def test_a_malformed_message_is_refused_with_its_readable_id(
    data: bytes, code: int, request_id: int | str | None
):
    with pytest.raises(BadMessage) as caught:
        decode_message(data)
    assert (caught.value.code, caught.value.id) == (code, request_id)
    assert type(caught.value.id) is type(request_id)


MENDED = [
    (b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"a"}', Request(1, "a")),
    (b'{"jsonrpc":"2.0","id":1.0,"method":"a"}', Request(1, "a")),
    (b'{"jsonrpc":"2.0","id":3.0,"result":{"x":NaN}}', Reply(3, Raw(b'{"x":null}'))),
    (b'{"jsonrpc":"2.0","id":3,"result":{},"error":null}', Reply(3, Raw(b"{}"))),
    (b'{"jsonrpc":"2.0","id":3,"method":null,"params":null,"result":{}}', Reply(3, Raw(b"{}"))),
    (b'{"jsonrpc":"2.0","id":3,"method":null,"error":{"code":1,"message":"m"}}', ErrorReply(3, 1, "m")),
    (b'{"jsonrpc":"2.0","id":1,"method":"\xff"}', Request(1, "\ufffd")),
    (rb'{"jsonrpc":"2.0","method":"a","params":{"\udc00":""}}', Notification("a", Raw(rb'{"\ufffd":""}'))),
    (rb'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"\ud800"}}', ErrorReply(1, 1, "\ufffd")),
]


@pytest.mark.parametrize(("data", "message"), MENDED)
def test_a_message_with_a_usual_mistake_is_what_was_meant(data: bytes, message: Message):
    assert decode_message(data) == message
    assert split_batch(b"[" + data.removeprefix(b"\xef\xbb\xbf") + b"]")


CUT = b'"result":{"content":[{"text":"n"}]'
ADDRESSED: list[tuple[bytes, int | str | None, bool | None]] = [
    (b'{"jsonrpc":"2.0","id":3,' + CUT, 3, True),
    (b'\xef\xbb\xbf { "id" : "3" , ' + CUT, "3", True),
    (b'{"error":{"message":"\\q"},"jsonrpc":"2.0","id":3}\r', 3, True),
    (b'{"jsonrpc":"2.0",' + CUT, None, True),
    (b'{"jsonrpc":"2.0","id":3,"method":"roots/list","params":{\'a\':1}}', 3, False),
    (b'{"method":"a","params":{"id":4,"result":01},"jsonrpc":"2.0","id":3}', 3, False),
    (b'{"jsonrpc":"2.0","id":3,"res', 3, None),
    (b'{"jsonrpc":"2.0","id":3,', 3, None),
    (b'{"jsonrpc":"2.0","id":3', None, False),
    (b'{"jsonrpc":"2.0","id":3,"other":01,"result":{}}', None, False),
    (b'{"id":3,"result":{}}', 3, True),
    (b'{"id":3,"method":null,"result":{}}', 3, True),
    (b'{"jsonrpc":"2.0","id":3}', 3, None),
    (b'{"level":30,"id":3,"msg":"done"}', 3, False),
    (b"DEBUG got tools/call", None, False),
]


@pytest.mark.parametrize(("data", "request_id", "is_answer"), ADDRESSED)
def test_what_cannot_be_read_shows_whose_it_is(
    data: bytes, request_id: int | str | None, is_answer: bool | None
):
    with pytest.raises(BadMessage) as caught:
        decode_message(data)
    assert (caught.value.id, caught.value.is_answer) == (request_id, is_answer)
    assert caught.value.begins == data


def test_the_last_of_equal_names_wins_in_the_envelope_and_in_payloads():
    data = b'{"jsonrpc":"2.0","id":1,"id":2,"method":"a","method":"b","params":{"x":1,"x":2}}'
    message = decode_message(data)
    assert message == Request(2, "b", Raw(b'{"x":1,"x":2}'))
    assert texts(decode_fields(Raw(b'{"x":1,"x":2}'))) == {"x": "2"}


def test_null_params_are_none():
    assert decode_message(b'{"jsonrpc":"2.0","id":1,"method":"a","params":null}') == Request(1, "a")


def test_a_message_with_a_method_is_a_request_whatever_else_it_has():
    data = b'{"jsonrpc":"2.0","id":1,"method":"a","result":{},"error":5,"extra":[]}'
    assert decode_message(data) == Request(1, "a")


@pytest.mark.parametrize(
    "error", ["null", '"boom"', "{}", '{"code":"1","message":"m"}', '{"code":1.5}', "[]"]
)
def test_a_malformed_error_still_fails_its_request(error: str):
    message = decode_message(f'{{"jsonrpc":"2.0","id":7,"error":{error}}}'.encode())
    assert message == ErrorReply(7, INTERNAL_ERROR, "The answer is a malformed error", Raw(error.encode()))


def test_only_notifications_leave_out_empty_params():
    assert encode_notification("n", {}) == b'{"jsonrpc":"2.0","method":"n"}'
    assert encode_request(1, "a", {}) == b'{"jsonrpc":"2.0","id":1,"method":"a","params":{}}'


# Batches


@given(st.lists(object_texts, min_size=1, max_size=5))
def test_a_batch_is_cut_into_its_members(members: list[str]):
    data = f" [{' , '.join(members)}]".encode()
    assert is_batch(data)
    assert split_batch(data) == [member.encode() for member in members]


@pytest.mark.parametrize("data", [b"", b"{}", b'{"a":[]}', b"null"])
def test_what_is_no_array_is_no_batch(data: bytes):
    assert not is_batch(data)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"[]", INVALID_REQUEST),
        (b"[{}", PARSE_ERROR),
        (b'["\\q"]', PARSE_ERROR),
        (b'[{"a":1}]x', PARSE_ERROR),
        (b"[" * DEEP + b"]" * DEEP, PARSE_ERROR),
    ],
)
def test_a_malformed_batch_is_refused_as_a_whole(data: bytes, code: int):
    with pytest.raises(BadMessage) as caught:
        split_batch(data)
    assert (caught.value.code, caught.value.id) == (code, None)


# Payload parts

UNREADABLE = [
    b"",
    b"{",
    b'"\\ud800"',
    b"[" * DEEP + b"]" * DEEP,
    b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    b'{"\xff":1}',
]


@pytest.mark.parametrize("data", UNREADABLE)
def test_decoding_what_cannot_be_read_raises_value_error_only(data: bytes):
    for decode in (decode_fields, decode_list, decode_any):
        with pytest.raises(ValueError):
            decode(data)
    assert text_of(Raw(data)) is None


@pytest.mark.parametrize("data", [b"1e400", b"1" * 5000])
def test_numbers_that_python_cannot_hold_raise_value_error(data: bytes):
    with pytest.raises(ValueError):
        decode_any(b'{"n":' + data + b"}")
    assert texts(decode_fields(b'{"n":' + data + b"}")) == {"n": data.decode()}


def test_absent_fields_are_none_at_all():
    assert decode_fields(None) == {}


@pytest.mark.parametrize("data", [b"null", b"[]", b"1", b'"a"'])
def test_fields_of_anything_but_an_object_are_refused(data: bytes):
    with pytest.raises(ValueError):
        decode_fields(data)


@pytest.mark.parametrize("data", [b"null", b"{}", b"[1]", b"[{},null]"])
def test_a_list_must_be_an_array_of_objects(data: bytes):
    with pytest.raises(ValueError):
        decode_list(data)
    assert decode_list(b'[{"a":1.0},{}]') == [{"a": Raw(b"1.0")}, {}]


@given(st.lists(json_texts, max_size=5))
def test_items_keep_their_bytes(items: list[str]):
    data = f"[ {' , '.join(items)} ]".encode()
    assert [bytes(item).decode() for item in decode_items(data)] == items


@given(st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text()))
def test_values_come_back_from_raw_as_they_were(value: object):
    assert decode_any(raw(value)) == value
    assert text_of(raw(value)) == (value if isinstance(value, str) else None)


def test_text_of_nothing_is_nothing():
    assert text_of(None) is None


@pytest.mark.parametrize(
    ("value", "start"), [({}, b"{"), ([], b"["), ("", b'"'), (None, b"n"), (True, b"t"), (1, b"1")]
)
def test_the_first_byte_tells_kinds_apart(value: object, start: bytes):
    assert first_byte(raw(value)) == start
    assert first_byte(decode_fields(b'{"x" :  ' + bytes(raw(value)) + b"}")["x"]) == start
