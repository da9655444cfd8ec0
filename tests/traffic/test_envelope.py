"""Reading in one go and reading member by member find the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpmux.protocol.envelope import BadMessage
from mcpmux.traffic.recorder import method_id_target, read_by_member, read_envelope
from tests.examples import examples

ABSENT = object()
ODD: Any = st.sampled_from([ABSENT, None, True, 7, -1.5, "x", [], {}, [1], {"name": 1}])
IDS = st.one_of(st.sampled_from([1, "a", 2**53, 2**70]), ODD)
PARAMS = st.one_of(
    ODD,
    st.fixed_dictionaries(
        {},
        optional={
            "uri": st.one_of(ODD, st.text(max_size=5)).filter(lambda value: value is not ABSENT),
            "name": st.one_of(st.just("tool"), st.just(5)),
            "ref": st.sampled_from([{"uri": "u"}, {"name": "n"}, {}, 7]),
            "requestId": st.sampled_from([1, "a", None]),
            "progressToken": st.sampled_from([1, "a", None]),
            "other": st.just({"deep": [1, {"x": "é"}]}),
        },
    ),
)
RESULTS = st.one_of(ODD, st.fixed_dictionaries({"isError": st.sampled_from([True, False, "yes", None])}))
ERRORS = st.one_of(
    ODD,
    st.fixed_dictionaries(
        {}, optional={"code": st.sampled_from([-32000, "x", None]), "message": st.sampled_from(["m", 5])}
    ),
)
MESSAGES = st.fixed_dictionaries(
    {
        "jsonrpc": st.one_of(st.just("2.0"), st.just("2.0"), st.just("2.0"), ODD),
        "id": IDS,
        "method": st.one_of(st.sampled_from(["ping", "tools/call"]), ODD),
        "params": PARAMS,
        "result": RESULTS,
        "error": ERRORS,
    }
).map(lambda message: {name: value for name, value in message.items() if value is not ABSENT})


def found_by(read: Any, data: bytes) -> Any:
    """Return what `read` finds in a message, or the error when the data are none."""
    try:
        facts = read(data)
    except BadMessage as bad:
        return "bad", bad.code, bad.id
    if isinstance(facts.method, str):
        return facts.method, facts.id, facts.params
    return (facts.id or None, facts.error.code) if hasattr(facts.error, "code") else (facts.id, facts.result)


def normal(found: Any) -> Any:
    """Return the text of a result, with empty parameters as missing ones, and an unset id as None."""
    return (
        repr(found)
        .replace("UNSET", "None")
        .replace("Params(name=None, uri=None, progressToken=None, requestId=None, ref=None)", "None")
    )


@settings(max_examples=examples(500), deadline=None)
@given(MESSAGES)
def test_an_envelope_read_in_one_go_is_that_read_by_member(message: dict[str, Any]):
    data = json.dumps(message, ensure_ascii=False).encode()
    assert normal(found_by(read_envelope, data)) == normal(found_by(read_by_member, data))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b'{"jsonrpc":"2.0","id":1,"result":{"x":"\xff"}}',
        b'{"jsonrpc":"2.0","id":1,"result":null}',
        b'{"jsonrpc":"2.0","id":1,"result":1e999}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"uri":1e999}}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"uri":"a","uri":"b"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"x":' + b"[" * 5000 + b"]" * 5000 + b"}}",
    ],
)
def test_odd_bytes_are_read_alike(data: bytes):
    assert normal(found_by(read_envelope, data)) == normal(found_by(read_by_member, data))


def test_what_is_about_something_says_so():
    data = b'{"jsonrpc":"2.0","id":4,"method":"completion/complete","params":{"ref":{"uri":"memo:{x}"}}}'
    assert method_id_target(data) == ("completion/complete", 4, "memo:{x}")
    assert method_id_target(b'{"jsonrpc":"2.0","id":4,"result":{"uri":"memo:1"}}') == (None, 4, None)
    assert method_id_target(b'{"jsonrpc":"2.0","id":4,"method":3}') == (None, 4, None)
