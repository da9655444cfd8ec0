"""What `find_tools` finds, and in which order."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.mux.search import MOST, SHOWN, BadQuestion, Index, is_for_models, read_call, read_question
from mcpmux.protocol.envelope import decode_fields
from mcpmux.protocol.raw_json import Raw

TOOLS: list[dict[str, Any]] = [
    {"name": "files__read_text_file", "description": "Read the complete contents of a file as text"},
    {"name": "files__moveFile", "title": "Relocate", "description": "Gives something another place"},
    {"name": "chat__post", "description": "Say something", "inputSchema": {"properties": {"channel": {}}}},
    {
        "name": "shop__order",
        "description": "Buy",
        "inputSchema": {"properties": {"size": {"description": "How large", "enum": ["tiny", "huge"]}}},
    },
    {"name": "GraphQLQuery", "description": "Äpfel und Birnen"},
]


def found(question: str, most: int = 1) -> list[str]:
    return [TOOLS[place]["name"] for place in Index(TOOLS).find(question, most)]


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("reading the content of some files", "files__read_text_file"),
        ("READ TEXT", "files__read_text_file"),
        ("files__read_text_file", "files__read_text_file"),
        ("move a file", "files__moveFile"),
        ("relocating", "files__moveFile"),
        ("which channel", "chat__post"),
        ("huge ones", "shop__order"),
        ("large", "shop__order"),
        ("graph", "GraphQLQuery"),
        ("query", "GraphQLQuery"),
        ("apfel", "GraphQLQuery"),
    ],
)
def test_a_tool_is_found_by_words_of_any_of_its_texts(question, name):
    assert found(question) == [name]


def test_a_word_in_the_name_says_more_than_one_in_the_description():
    tools = [
        {"name": "a", "description": "Send a message about an invoice, or list something else"},
        {"name": "list_invoices", "description": "Money that is still to come"},
    ]
    assert Index(tools).find("list invoices", 2) == [1, 0]


@pytest.mark.parametrize("question", ["", " ?! ", '"', "zebra", "NEAR(", "name:*", "-"])
def test_what_fits_nothing_finds_nothing(question):
    assert found(question, MOST) == []


def test_words_that_say_nothing_are_looked_for_when_there_are_no_others():
    assert Index([{"name": "all", "description": "about you"}]).find("what about all", 1) == [0]


@given(st.text(max_size=200))
def test_any_question_can_be_asked(question):
    index = Index(TOOLS)
    places = index.find(question, MOST)
    assert len(set(places)) == len(places) <= len(TOOLS)
    assert index.find(question, 2) == places[:2]


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda each: (
        st.lists(each) | st.dictionaries(st.sampled_from(["properties", "description", "enum"]), each)
    ),
)


@given(st.lists(st.dictionaries(st.sampled_from(["name", "title", "description", "inputSchema"]), ODD)))
def test_any_tools_can_be_searched(tools):
    Index(tools).find("text", 5)


def test_a_long_question_is_cut_before_anything_is_done_with_it():
    assert found("aB" * 1_000_000 + " read", MOST) == []


def test_tools_that_are_added_have_the_next_places():
    index = Index(TOOLS[:2])
    index.add(TOOLS[2:])
    assert index.find("huge", 1) == [3]


def test_a_tool_of_many_words_is_found_by_its_first_ones():
    words = " ".join(f"word{number}" for number in range(10_000))
    properties = {f"parameter{number}": {"description": words} for number in range(3)}
    index = Index([{"name": "long", "description": words, "inputSchema": {"properties": properties}}])
    assert index.find("word1", 1) == [0]
    assert index.find("parameter0", 1) == [0]
    assert index.find("word9999", 1) == []
    assert index.find("parameter2", 1) == []


def test_a_thousand_words_are_not_too_many():
    assert found("read " + " ".join(f"word{number}" for number in range(1000))) == ["files__read_text_file"]


def test_the_two_tools_cost_little():
    assert len(bytes(SHOWN)) < 1200


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "find_tools needs a `query`: what the tool is to do, in a few words"),
        ({"query": "  "}, "find_tools needs a `query`: what the tool is to do, in a few words"),
        ({"query": 1}, "find_tools needs a `query`: what the tool is to do, in a few words"),
        ({"query": "x", "limit": 0}, "`limit` of find_tools must be a whole number from 1 to 20"),
        ({"query": "x", "limit": 5.5}, "`limit` of find_tools must be a whole number from 1 to 20"),
        ({"query": "x", "limit": True}, "`limit` of find_tools must be a whole number from 1 to 20"),
        ({"query": "x", "limit": "5"}, "`limit` of find_tools must be a whole number from 1 to 20"),
        ({"question": "x"}, "find_tools has no parameter 'question'; it takes query and limit"),
        ([], "the arguments of find_tools must be an object"),
    ],
)
def test_mistakes_in_a_question_are_named(arguments, sentence):
    with pytest.raises(BadQuestion) as caught:
        read_question(Raw(json.dumps(arguments).encode()))
    assert str(caught.value) == sentence


@pytest.mark.parametrize("limit", ["5", "5.0", "0.5e1"])
def test_a_limit_is_a_whole_number_in_any_spelling(limit):
    assert read_question(Raw(f'{{"query": "x", "limit": {limit}}}'.encode())) == ("x", 5)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "call_tool needs a `name`, as find_tools gives it"),
        ({"name": None}, "call_tool needs a `name`, as find_tools gives it"),
        ({"name": "x", "arguments": "{}"}, "`arguments` of call_tool must be an object"),
        ({"name": "x", "arguments": []}, "`arguments` of call_tool must be an object"),
        ({"name": "x", "city": "y"}, "call_tool has no parameter 'city'; it takes name and arguments"),
    ],
)
def test_mistakes_in_a_call_are_named(arguments, sentence):
    with pytest.raises(BadQuestion) as caught:
        read_call(Raw(json.dumps(arguments).encode()))
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("meta", "told"),
    [
        ('{"ui":{"visibility":["app"]}}', False),
        ('{"ui":{"visibility":[]}}', False),
        ('{"ui":{"visibility":["model","app"]}}', True),
        ('{"ui":{"visibility":"app"}}', True),
        ('{"ui":{"resourceUri":"ui://a"}}', True),
        ('{"ui":null}', True),
        ("null", True),
    ],
)
def test_a_tool_that_is_only_for_its_app_is_not_for_models(meta, told):
    assert is_for_models(decode_fields(Raw(f'{{"name":"t","_meta":{meta}}}'.encode()))) is told
