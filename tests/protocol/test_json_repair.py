from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.protocol import raw_json
from mcpmux.protocol.envelope import decode_any
from mcpmux.protocol.raw_json import repaired

CASES = [
    ("half a pair", rb'{"a":"cut \ud83d"}', rb'{"a":"cut \ufffd"}'),
    ("its other half", rb'{"a":"\uDE00 cut"}', rb'{"a":"\ufffd cut"}'),
    ("half before a pair", rb'"\ud83d\ud83d\ude00"', rb'"\ufffd\ud83d\ude00"'),
    ("a backslash and text", rb'"\\ud83d \\\ud83d"', rb'"\\ud83d \\\ufffd"'),
    ("half a pair in a name", rb'{"\ud83d":1}', rb'{"\ufffd":1}'),
    ("a byte of a code page", b'{"a":"caf\xe9"}', '{"a":"caf\ufffd"}'.encode()),
    ("UTF-8 of half a pair", b'"\xed\xa0\xbd"', '"\ufffd\ufffd\ufffd"'.encode()),
    ("control characters", b'{"a":"\t\n\0"}\n', rb'{"a":"\u0009\u000a\u0000"}' + b"\n"),
    ("no numbers", b'[NaN,Infinity,-Infinity,"NaN \\" -Infinity"]', b'[null,null,null,"NaN \\" -Infinity"]'),
    ("a byte order mark", b'\xef\xbb\xbf{"a":1}', b'{"a":1}'),
]
KEPT = [b"", b"hello", b"None", b'"cut', b'"cut \\ud83', b"{'a':1}", b'"\\x41"', b"[1,]", b"01"]


@pytest.mark.parametrize(("data", "text"), [row[1:] for row in CASES], ids=[row[0] for row in CASES])
def test_each_mistake_becomes_what_was_meant(data: bytes, text: bytes):
    assert repaired(data) == text
    assert repaired(text) is text
    decode_any(text)


@pytest.mark.parametrize("data", KEPT)
def test_other_mistakes_are_left_to_the_decoder(data: bytes):
    assert repaired(data) is data
    with pytest.raises(ValueError):
        decode_any(data)


# As other programs write it: Python has halves of pairs in its texts, and NaN.
texts = st.text(st.sampled_from('a"\\/NI\ud83d\ude00é\n\0🎉'))
values = st.recursive(
    st.none() | st.sampled_from([1, -1.5, math.nan, math.inf, -math.inf]) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def meant(value: Any) -> Any:
    """Return the value with U+FFFD and null for what JSON cannot express."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [meant(item) for item in value]
    return {meant(key): meant(item) for key, item in value.items()} if isinstance(value, dict) else value


@given(values)
def test_what_a_lenient_program_writes_can_be_read(value: Any):
    assert decode_any(repaired(json.dumps(value).encode())) == meant(value)


@given(st.binary())
def test_any_bytes_come_back_as_utf8_without_halves(data: bytes):
    text = repaired(b'{"a":"' + data + b'","b":"\\ud83d"}')
    text.decode()
    assert repaired(text) == text


def test_a_text_with_too_many_mistakes_is_not_repaired_to_its_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(raw_json, "REPAIR_LIMIT", 3)
    assert len(re.findall(b"null", repaired(b"[" + b"NaN," * 5 + b"1]"))) == 3
    monkeypatch.setattr(raw_json, "REPAIR_BYTES", 3)
    assert repaired(b"[NaN]") == b"[NaN]"


@given(st.binary(max_size=60), st.integers(1, 5))
def test_text_decoded_in_pieces_is_the_same(data: bytes, piece: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_json, "PIECE_BYTES", piece)
        text = repaired(b'"' + data + b'\xff"')
    assert text == repaired(b'"' + data + b'\xff"')


@pytest.mark.parametrize(
    "data",
    [
        b'"' + b"\xff\xc3" * raw_json.REPAIR_LIMIT + b'"',
        b'["\xff"' + b',""' * (raw_json.REPAIR_MARKS // 2) + b"]",
        b'["\xff","' + rb"\n" * raw_json.REPAIR_MARKS + b'"]',
        b'"\xff' + b"x" * raw_json.REPAIR_BYTES + b'"',
    ],
    ids=["bytes", "quotes", "backslashes", "long"],
)
def test_a_text_that_would_hold_everybody_is_left_as_it_is(data: bytes):
    assert repaired(data) is data
