"""Items of lists are judged as the official schemas judge them, and what is mended fits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.mux.item import NOTES_LIMIT, PROBLEMS_LIMIT, ItemProblem, mend_items, read_fitting
from mcpmux.mux.rewrite import NAMED_BY
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import decode_any, raw
from mcpmux.protocol.era import downgrade_result
from mcpmux.protocol.revisions import SUPPORTED, is_modern
from tests.oracle import SchemaOracle

ORACLES = {revision: SchemaOracle(revision) for revision in SUPPORTED}
SCHEMA = {"type": "object"}
TOOL = {"name": "a", "inputSchema": SCHEMA}

odd: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 5, 0.5, "x", "", [], {}, [None], [5], ["x"], {"x": None}, {"type": "string"}, {"type": None}]
)
# A relative reference is no URI, as the schemas want it, but no client refuses it: it is left alone.
sources = odd.filter(lambda value: not isinstance(value, str)) | st.just("https://a/b")
icons = st.lists(
    st.fixed_dictionaries({}, optional={"src": sources, "mimeType": odd, "sizes": odd, "theme": odd}) | odd,
    max_size=2,
)
schemas = odd | st.fixed_dictionaries(
    {},
    optional={
        "type": odd | st.just("object"),
        "properties": odd,
        "required": odd,
        "$schema": odd,
    },
)
hints = odd | st.fixed_dictionaries({}, optional={"title": odd, "readOnlyHint": odd, "unknown": odd})
notes = odd | st.fixed_dictionaries({}, optional={"audience": odd, "priority": odd, "lastModified": odd})
arguments = odd | st.lists(
    odd | st.fixed_dictionaries({}, optional={"name": odd, "description": odd, "required": odd}), max_size=2
)
names = odd | st.sampled_from(["a", "b"])
uris = odd | st.sampled_from(["file:///a", "memo:x", "no scheme", "a/b:c"])
common = {"title": odd, "description": odd, "icons": icons | odd, "_meta": odd, "unknown": odd}
contents = {**common, "name": names, "mimeType": odd, "annotations": notes}
tools = st.fixed_dictionaries(
    {},
    optional={
        **common,
        "name": names,
        "inputSchema": schemas,
        "outputSchema": schemas,
        "annotations": hints,
        "execution": odd | st.fixed_dictionaries({"taskSupport": odd | st.just("optional")}),
    },
)
ITEMS = {
    m.TOOLS_LIST: tools,
    m.RESOURCES_LIST: st.fixed_dictionaries({}, optional={**contents, "uri": uris, "size": odd}),
    m.TEMPLATES_LIST: st.fixed_dictionaries({}, optional={**contents, "uriTemplate": uris}),
    m.PROMPTS_LIST: st.fixed_dictionaries({}, optional={**common, "name": names, "arguments": arguments}),
}


@pytest.mark.parametrize("method", m.LISTS)
@given(st.data())
def test_what_is_not_left_out_is_what_every_revision_allows(method: str, data: st.DataObject):
    drawn = data.draw(st.lists(ITEMS[method] | odd, max_size=3))
    own, fields, problems = mend_items(method, raw(drawn))
    listed = decode_any(raw(fields))
    assert [item[NAMED_BY[method]] for item in listed] == own
    assert len(own) == len(set(own))
    for revision, oracle in ORACLES.items():
        result = {m.LISTS[method].items: raw(fields), "resultType": raw("complete"), "ttlMs": raw(0)}
        result["cacheScope"] = raw("private")
        if not is_modern(revision):
            result = downgrade_result(result)
        oracle.check_from_server({"jsonrpc": "2.0", "id": 1, "result": decode_any(raw(result))}, method)
    fitting = read_fitting(method, bytes(raw(drawn)))
    assert (fitting is None) == bool(problems)
    if fitting is not None:
        assert (fitting.names, listed) == (own, drawn)


@pytest.mark.parametrize(
    ("given_tool", "mended", "text"),
    [
        ({"name": "a"}, TOOL, "`inputSchema` is missing"),
        ({"name": "a", "inputSchema": None}, TOOL, "`inputSchema` is null"),
        ({"name": "a", "inputSchema": []}, TOOL, "`inputSchema` is an empty array instead of an object"),
        ({"name": "a", "inputSchema": {}}, TOOL, "`inputSchema.type` is missing"),
        ({"name": "a", "inputSchema": {"type": "x"}}, None, "`inputSchema.type`: Invalid enum value 'x'"),
        ({**TOOL, "description": None, "_meta": None}, TOOL, "`description` is null; `_meta` is null"),
        (
            {**TOOL, "annotations": {"readOnlyHint": "x"}},
            {**TOOL, "annotations": {}},
            "`annotations.readOnlyHint`: Expected `bool`, got `str`",
        ),
        (
            {"name": "a", "inputSchema": {**SCHEMA, "properties": {"x": None, "y": True}, "required": [5]}},
            {"name": "a", "inputSchema": {**SCHEMA, "properties": {"x": {}, "y": True}, "required": []}},
            "`inputSchema.properties.*` is null; `inputSchema.required[]`: Expected `str`, got `int`",
        ),
        ({"inputSchema": SCHEMA}, None, "`name` is missing"),
        (None, None, "the item is null"),
        ([], None, "the item is an empty array instead of an object"),
        ("a", None, "the item: Expected `object`, got `str`"),
    ],
)  # fmt: skip
def test_a_tool_is_mended_or_left_out_with_its_fault(given_tool: Any, mended: Any, text: str):
    own, fields, [problem] = mend_items(m.TOOLS_LIST, raw([given_tool, {**TOOL, "name": "b"}]))
    assert decode_any(raw(fields)) == [*([mended] if mended is not None else []), {**TOOL, "name": "b"}]
    assert problem.left_out == (mended is None)
    assert problem.text.startswith(text)
    assert own == ["a", "b"][-len(fields) :]


def test_a_resource_without_a_name_is_called_by_its_uri():
    _, fields, _ = mend_items(m.RESOURCES_LIST, raw([{"uri": "file:///a"}]))
    assert decode_any(raw(fields)) == [{"uri": "file:///a", "name": "file:///a"}]
    _, fields, [problem] = mend_items(m.RESOURCES_LIST, raw([{"uri": "notes/a", "name": "a"}]))
    assert (fields, problem) == (
        [],
        ItemProblem("notes/a", "`uri` is no URI: it has no scheme", left_out=True),
    )


def test_faults_without_number_are_counted_and_not_kept():
    many = 3 * PROBLEMS_LIMIT
    _, fields, problems = mend_items(m.PROMPTS_LIST, raw([{"name": "a"}] * (many + 1)))
    assert len(fields) == 1
    assert problems[-1] == ItemProblem(
        None, f"there are {many - PROBLEMS_LIMIT} more of these", left_out=True
    )
    assert len(problems) == PROBLEMS_LIMIT + 1
    schema = {**SCHEMA, "required": list(range(1000))}
    _, _, [problem] = mend_items(m.TOOLS_LIST, raw([{"name": "a", "inputSchema": schema}]))
    assert problem.text.count(";") == NOTES_LIMIT - 1
