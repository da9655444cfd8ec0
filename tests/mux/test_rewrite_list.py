"""A whole list as clients see it is what its items are one by one, however the server has spelled it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.mux import rewrite
from mcpmux.mux.item import mend_items
from mcpmux.mux.merge import EncodedList, expose_list
from mcpmux.mux.rewrite import Namespace, Space
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import decode_any, raw
from mcpmux.protocol.raw_json import Raw

SPACES = [
    Namespace({"docs": "docs", "web": "web"}).spaces["docs"],
    Namespace({"docs": "", "web": "web"}).spaces["docs"],
]

uris = st.sampled_from(
    ["file:///a", "ui://x/y", "web+file:///a", 'a"uri":"b', "a\\b", "é", "", "uri", '"uri":"x', "x\ud800"]
)
values: st.SearchStrategy[Any] = st.recursive(
    uris | st.none() | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["uri", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)
schemas = st.just({"type": "object"}) | values
items = st.fixed_dictionaries(
    {"name": uris, "uri": uris, "uriTemplate": uris, "inputSchema": schemas},
    optional={"description": uris | st.none(), "_meta": values, "é": values},
)


def spelled(value: Any, compact: bool, ascii_only: bool) -> bytes:
    separators = (",", ":") if compact else None
    return json.dumps(value, separators=separators, ensure_ascii=ascii_only).encode("utf-8", "replace")


def one_by_one(method: str, data: bytes, space: Space) -> tuple[list[str], list[Any]]:
    names, items, _ = mend_items(method, Raw(data))
    return names, [decode_any(raw(rewrite.expose_item(method, item, space))) for item in items]


@given(
    st.sampled_from(list(m.LISTS)),
    st.lists(items, max_size=4),
    st.sampled_from(SPACES),
    st.booleans(),
    st.booleans(),
)
def test_a_list_is_its_items(method: str, found: list[Any], space: Space, compact: bool, ascii_only: bool):
    data = spelled(found, compact, ascii_only)
    try:
        expected = one_by_one(method, data, space)
    except ValueError:
        with pytest.raises(ValueError):
            expose_list(method, Raw(data), space)
        return
    names, exposed, problems = expose_list(method, Raw(data), space)
    assert list(problems) == mend_items(method, Raw(data))[2]
    assert (list(names), [decode_any(item) for item in exposed]) == expected


@pytest.mark.parametrize(
    "data",
    [
        b'[{"\\u0075ri":"file:///a","name":"uri"}]',  # the member's name is spelled with an escape
        b'[{"\\u0075ri":"file:///a","_meta":{"uri":"file:///a"}}]',
        b'[{"uri":"file:///a","uri":"file:///b"}]',
        b'[{"uri":"file:///a"},{"_meta":{"uri":"x"}}]',
        b'[{"uri" :"file:///a"}]',
        b'[{"uri":"file:\\/\\/\\/a"}]',
        b'[{"uri":7}]',
        b"[]",
    ],
)
@pytest.mark.parametrize("space", SPACES)
def test_unusual_spellings_are_exposed_like_any(data: bytes, space: Space):
    names, exposed, _ = expose_list(m.RESOURCES_LIST, Raw(data), space)
    assert (list(names), [decode_any(item) for item in exposed]) == one_by_one(m.RESOURCES_LIST, data, space)


def test_what_is_around_the_uri_keeps_its_bytes():
    data = b'[{"size":1e3,"name":"a","uri":"file:///a","x":{ "y" : 1.0 }}]'
    _, exposed, _ = expose_list(m.RESOURCES_LIST, Raw(data), SPACES[0])
    assert [bytes(item) for item in exposed] == [
        b'{"size":1e3,"name":"a","uri":"docs+file:///a","x":{ "y" : 1.0 }}'
    ]


@pytest.mark.parametrize("data", [b"{}", b'"uri"', b"null", b"7"])
def test_what_is_no_list_is_refused(data: bytes):
    with pytest.raises(ValueError, match=r".+"):
        expose_list(m.RESOURCES_LIST, Raw(data), SPACES[0])


@pytest.mark.parametrize(
    "data",
    [
        b'[{"uri":"file:///a","name":"a"},{"name":"a","uri":"a:b","annotations":{"audience":["user"]}}]',
        b' [{"uri": "file:///a", "name": ""}, {"name": "a", "uri": "file:///b"}] ',
        b'[{"uri":"file:///a","name":"uri","description":"see ui://x, \\"uri\\" and {}"}]',
        b"[]",
    ],
)
def test_an_ordinary_list_is_decoded_only_on_demand(data: bytes):
    names, exposed, _ = expose_list(m.RESOURCES_LIST, Raw(data), SPACES[0])
    assert isinstance(exposed, EncodedList)
    count = len(exposed)
    assert len(names) == count
    expected, items = one_by_one(m.RESOURCES_LIST, data, SPACES[0])
    assert [decode_any(item) for item in exposed] == items
    assert list(names) == list(names) == expected
    assert names[:1] == expected[:1]


@pytest.mark.parametrize(
    "data",
    [
        b'[{"uri":"ui://a/b","name":"a"},{"uri":"file:///a","name":"a"}]',
        b'[{"uri":"file:///a","name":"a"},{"uri": "file:///b","name":"a"}]',
        b'[{"uri" : "file:///a","name":"a","_meta":{"uri":"file:///a"}}]',
        b'[{"uri":"file:///a","name":"a","_meta":{"uri":"x"}}]',
        b'[{"uri":"file:///a"},{"name":"uri"}]',
    ],
)
def test_a_list_with_ambiguous_changes_is_decoded(data: bytes):
    names, exposed, _ = expose_list(m.RESOURCES_LIST, Raw(data), SPACES[0])
    assert not isinstance(exposed, EncodedList)
    assert (names, [decode_any(item) for item in exposed]) == one_by_one(m.RESOURCES_LIST, data, SPACES[0])


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"_meta": {"vendor/tags": []}},
        {"inputSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},
    ],
)
def test_an_ordinary_list_of_tools_stays_in_one_piece(extra: dict[str, Any]):
    tools = [{"name": name, "inputSchema": {"type": "object"}, **extra} for name in ("a", 'say "b"')]
    names, exposed, _ = expose_list(m.TOOLS_LIST, raw(tools), SPACES[0])
    assert isinstance(exposed, EncodedList)
    assert list(names) == ["a", 'say "b"']
    assert [decode_any(tool)["name"] for tool in exposed] == ["docs__a", 'docs__say "b"']


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "a", "_meta": {"ui": {"resourceUri": "ui://panel"}}},
        {"name": "a" * 64},
        {"examples": [{"name": "x"}], "name": "a"},
    ],
)
def test_a_list_of_tools_that_changes_elsewhere_is_taken_apart(tool: dict[str, Any]):
    data = spelled([{**tool, "inputSchema": {"type": "object"}}], compact=True, ascii_only=True)
    names, exposed, _ = expose_list(m.TOOLS_LIST, Raw(data), SPACES[0])
    assert not isinstance(exposed, EncodedList)
    assert (names, [decode_any(item) for item in exposed]) == one_by_one(m.TOOLS_LIST, data, SPACES[0])
