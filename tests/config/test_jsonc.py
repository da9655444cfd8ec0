from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.config.reading import parse_jsonc

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, // one\n "b": 2}', {"a": 1, "b": 2}),
        ('/* first */ {"a": /* inner */ 1}', {"a": 1}),
        ('{"a": [1, 2,], }', {"a": [1, 2]}),
        ('{"a": [1, // last\n ] /* end */ , }', {"a": [1]}),
        ('{"url": "https://a.example/*x*/,]"}', {"url": "https://a.example/*x*/,]"}),
        ('{"a": "\\"// no comment", }', {"a": '"// no comment'}),
    ],
)
def test_comments_and_trailing_commas_are_tolerated(text, value):
    assert parse_jsonc(text) == value


@given(JSON_VALUES)
def test_plain_json_keeps_its_meaning(value):
    assert parse_jsonc(json.dumps(value)) == value
    assert parse_jsonc(json.dumps(value, indent=1, ensure_ascii=False)) == value


def test_position_of_a_mistake_counts_comments():
    with pytest.raises(json.JSONDecodeError) as caught:
        parse_jsonc('{ // one\n  /* two */ "a": }')
    assert (caught.value.lineno, caught.value.colno) == (2, 18)


@pytest.mark.parametrize("text", ["", "{", '{"a": 1 /* open', '{"a": "open}', "[,]", '{"a" 1}'])
def test_malformed_text_is_rejected(text):
    with pytest.raises(json.JSONDecodeError):
        parse_jsonc(text)


@pytest.mark.parametrize("text", ['{"a": "' + '\\"' * 500_000, "{" + "/* " * 500_000, "{" + '"' * 999_999])
def test_what_has_no_end_is_walked_over_once(text):
    with pytest.raises(json.JSONDecodeError):  # else after hours
        parse_jsonc(text)
