from __future__ import annotations

import msgspec
import pytest
from hypothesis import given

from mcpmux.protocol.call import (
    CLIENT_CAPABILITIES,
    META,
    PROGRESS_TOKEN,
    VERSION,
    Call,
    encode_call,
    with_meta,
)
from mcpmux.protocol.codes import MalformedRequest
from mcpmux.protocol.envelope import decode_fields, raw
from mcpmux.protocol.raw_json import SHORT_CHARS, Raw
from tests.payloads import member_texts, object_texts


@given(member_texts, member_texts)
def test_params_and_meta_are_split_and_put_together_again(params: dict[str, str], meta: dict[str, str]):
    fields = {key: Raw(text.encode()) for key, text in params.items() if key != META}
    inner = {key: Raw(text.encode()) for key, text in meta.items()}
    call = Call.of("tools/call", raw(with_meta(fields, inner)))
    assert call == Call("tools/call", fields, inner)
    assert list(call.params) == list(fields)
    assert list(call.meta) == list(inner)


@given(object_texts)
def test_empty_meta_is_as_good_as_none(text: str):
    fields = decode_fields(text.encode())
    assert with_meta(fields, {}) is fields


@pytest.mark.parametrize("params", [None, Raw(b"{}"), Raw(b'{"_meta":null}')])
def test_absent_params_and_meta_are_empty(params: Raw | None):
    assert Call.of("ping", params) == Call("ping", {}, {})


@pytest.mark.parametrize("params", [b"[]", b'{"_meta":[]}', b'{"_meta":"x"}', b'{"a":'])
def test_params_or_meta_that_are_no_objects_are_refused(params: bytes):
    with pytest.raises(MalformedRequest):
        Call.of("tools/call", Raw(params))


@pytest.mark.parametrize("key", ["name", "taskId"])
def test_a_name_that_is_too_long_to_be_remembered_is_refused(key: str):
    for longest in ("x" * SHORT_CHARS, "\0" * SHORT_CHARS):
        assert Call.of("tools/call", raw({key: longest})).text(key) == longest
    with pytest.raises(MalformedRequest, match=f'"{key}" must have at most 4096 characters'):
        Call.of("tools/call", raw({key: "x" * (SHORT_CHARS + 1)})).text(key)


def test_other_params_leave_method_and_meta_alone():
    call = Call.of("tools/call", Raw(b'{"name":"a","_meta":{"x":1}}'))
    assert call.with_params({"name": raw("b")}) == Call("tools/call", {"name": raw("b")}, {"x": raw(1)})


@pytest.mark.parametrize(("params", "text"), [(b'{"name":"a"}', "a"), (b'{"name":1}', None), (b"{}", None)])
def test_text_is_a_string_parameter_or_none(params: bytes, text: str | None):
    assert Call.of("tools/call", Raw(params)).text("name") == text


@pytest.mark.parametrize(("token", "wanted"), [("0", True), ('""', True), ('"a"', True), (None, False)])
def test_any_progress_token_asks_for_progress(token: str | None, wanted: bool):
    meta = {} if token is None else {"progressToken": Raw(token.encode())}
    assert Call("tools/call", {}, meta).wants_progress is wanted


@pytest.mark.parametrize("asks_progress", [True, False])
@pytest.mark.parametrize(
    "meta", [{}, {VERSION: "2026-07-28", CLIENT_CAPABILITIES: {}}, {"x": 1}, {PROGRESS_TOKEN: "a"}]
)
def test_a_call_is_encoded_with_its_id_as_progress_token(meta: dict[str, object], asks_progress: bool):
    call = Call.of("tools/call", raw({"name": "a", META: meta}))
    token = {PROGRESS_TOKEN: 7} if asks_progress or PROGRESS_TOKEN in meta else {}
    sent = msgspec.json.decode(encode_call(7, call, asks_progress=asks_progress))
    assert sent["params"] == {"name": "a", **({META: {**meta, **token}} if meta or token else {})}
