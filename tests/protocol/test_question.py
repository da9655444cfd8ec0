"""Questions for older clients, answers for older servers: the closest thing, never something invalid."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import decode_any, decode_fields, raw
from mcpmux.protocol.era import downgrade_answer, downgrade_question, upgrade_answer
from mcpmux.protocol.revisions import LEGACY
from tests.examples import examples
from tests.oracle import SchemaOracle

BEFORE_BLOCKS = [revision for revision in LEGACY if revision < "2025-11-25"]
TEXT = {"type": "text", "text": "t"}
AUDIO = {"type": "audio", "data": "AAE=", "mimeType": "audio/wav"}
USE = {"type": "tool_use", "id": "1", "name": "n", "input": {}}
RESULT = {"type": "tool_result", "toolUseId": "1", "content": [TEXT]}


def ask(method: str, params: Any, revision: str) -> Any:
    """Return the question for a client of `revision`, checked by the schema."""
    question = decode_any(raw(downgrade_question(method, decode_fields(raw(params)), revision, "made-up")))
    SchemaOracle(revision).check_from_server(
        {"jsonrpc": "2.0", "id": 1, "method": method, "params": question}
    )
    return question


def answer(method: str, result: Any, revision: str) -> Any:
    """Return the answer for a server of `revision`, checked by the schema."""
    decoded = decode_any(raw(downgrade_answer(method, decode_fields(raw(result)), revision)))
    SchemaOracle(revision).check_from_client({"jsonrpc": "2.0", "id": 1, "result": decoded}, method)
    return decoded


# Elicitation


def form(**properties: Any) -> Any:
    return {"message": "?", "requestedSchema": {"type": "object", "properties": properties}}


@pytest.mark.parametrize("revision", LEGACY)
def test_a_client_whose_revision_has_no_elicitation_is_not_asked(revision: str):
    if revision >= "2025-06-18":
        assert ask(m.ELICIT, form(), revision) == form()
        return
    with pytest.raises(RpcError) as caught:
        ask(m.ELICIT, form(), revision)
    assert caught.value.code == -32601
    assert revision in caught.value.message


@pytest.mark.parametrize("revision", LEGACY)
def test_a_url_elicitation_has_the_id_that_its_revision_needs(revision: str):
    params = {"mode": "url", "message": "?", "url": "https://example.com/"}
    if revision < "2025-11-25":
        with pytest.raises(RpcError, match="no URL elicitation"):
            ask(m.ELICIT, params, revision)
        return
    assert ask(m.ELICIT, params, revision) == {**params, "elicitationId": "made-up"}
    named = {**params, "elicitationId": "its own"}
    assert ask(m.ELICIT, named, revision) == named


def test_a_choice_with_titles_becomes_an_enum_with_names():
    choices = [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]
    question = ask(
        m.ELICIT, form(it={"type": "string", "title": "T", "oneOf": choices, "default": "a"}), "2025-06-18"
    )
    choice = question["requestedSchema"]["properties"]["it"]
    assert choice == {
        "type": "string",
        "title": "T",
        "default": "a",
        "enum": ["a", "b"],
        "enumNames": ["A", "B"],
    }


@pytest.mark.parametrize(
    ("items", "shown"),
    [
        ({"type": "string", "enum": ["a", "b"]}, "a, b"),
        ({"anyOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "b"}]}, "a (A), b"),
    ],
)
def test_a_multiple_choice_becomes_text_and_returns_as_a_list(items: Any, shown: str):
    several = {"type": "array", "title": "T", "description": "Which?", "items": items, "default": ["a"]}
    params = form(it=several, other={"type": "string"})
    choices = ask(m.ELICIT, params, "2025-06-18")["requestedSchema"]["properties"]
    about = f"Which? Any of these, separated by commas: {shown}"
    assert choices["it"] == {"type": "string", "title": "T", "description": about}
    given_back = {"action": "accept", "content": {"it": "a, b,", "other": "x,y"}}
    up = upgrade_answer(m.ELICIT, decode_fields(raw(params)), decode_fields(raw(given_back)), "2025-06-18")
    assert decode_any(raw(up)) == {"action": "accept", "content": {"it": ["a", "b"], "other": "x,y"}}


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("Paris, France, b", ["Paris, France", "b"]),
        ("b,Paris, France,", ["b", "Paris, France"]),
        ("Paris, b, France", ["Paris", "b", "France"]),
        ("", []),
    ],
)
def test_an_offered_choice_may_have_commas(text: str, chosen: list[str]):
    params = form(it={"type": "array", "items": {"type": "string", "enum": ["Paris, France", "b"]}})
    given_back = decode_fields(raw({"action": "accept", "content": {"it": text}}))
    up = upgrade_answer(m.ELICIT, decode_fields(raw(params)), given_back, "2025-06-18")
    assert decode_any(up["content"]) == {"it": chosen}


def test_what_a_newer_client_answers_is_left_alone():
    params = decode_fields(raw(form(it={"type": "array", "items": {"type": "string", "enum": ["a"]}})))
    for given_back in ({"action": "decline"}, {"action": "accept", "content": {"it": ["a"]}}):
        fields = decode_fields(raw(given_back))
        assert upgrade_answer(m.ELICIT, params, fields, "2025-11-25") is fields
        assert decode_any(raw(upgrade_answer(m.ELICIT, params, fields, "2025-06-18"))) == given_back


fields = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("string")}, optional={"format": st.sampled_from(["email", "date"])}
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["number", "integer"])}, optional={"minimum": st.integers()}
    ),
    st.just({"type": "boolean", "default": True}),
    st.just({"type": "string", "enum": ["a", "b"]}),
    st.just({"type": "string", "enum": ["a"], "enumNames": ["A"]}),
    st.just({"type": "string", "oneOf": [{"const": "a", "title": "A"}]}),
    st.just({"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "minItems": 1}),
    st.just({"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}, "default": []}),
)


@settings(max_examples=examples(60), deadline=None)
@given(st.dictionaries(st.text("abc", min_size=1, max_size=2), fields, max_size=4))
def test_every_form_is_good_in_every_revision_that_has_forms(properties: dict[str, Any]):
    older = ask(m.ELICIT, form(**properties), "2025-06-18")["requestedSchema"]["properties"]
    assert older.keys() == properties.keys()
    assert ask(m.ELICIT, form(**properties), "2025-11-25") == form(**properties)


# Sampling


def sampling(*messages: Any) -> Any:
    return {"messages": list(messages), "maxTokens": 1}


@pytest.mark.parametrize("revision", BEFORE_BLOCKS)
def test_a_message_of_several_blocks_becomes_several_messages(revision: str):
    params = sampling({"role": "user", "content": [TEXT, RESULT]}, {"role": "assistant", "content": TEXT})
    messages = ask(m.CREATE_MESSAGE, params, revision)["messages"]
    assert [message["role"] for message in messages] == ["user", "user", "assistant"]
    assert messages[0]["content"] == messages[2]["content"] == TEXT
    assert '"toolUseId":"1"' in messages[1]["content"]["text"]
    assert ask(m.CREATE_MESSAGE, params, "2025-11-25") == params


@pytest.mark.parametrize("revision", BEFORE_BLOCKS)
def test_sound_is_kept_where_there_is_a_word_for_it(revision: str):
    (message,) = ask(m.CREATE_MESSAGE, sampling({"role": "user", "content": AUDIO}), revision)["messages"]
    given_back = answer(m.CREATE_MESSAGE, {"role": "assistant", "content": AUDIO, "model": "m"}, revision)
    for content in (message["content"], given_back["content"]):
        if revision >= "2025-03-26":
            assert content == AUDIO
        else:
            assert content["type"] == "text"
            assert "audio/wav" in content["text"]


@pytest.mark.parametrize("revision", BEFORE_BLOCKS)
def test_an_answer_of_several_blocks_becomes_one(revision: str):
    result = {"role": "assistant", "model": "m"}
    single = answer(m.CREATE_MESSAGE, {**result, "content": [TEXT]}, revision)
    assert single == {**result, "content": TEXT}
    several = answer(m.CREATE_MESSAGE, {**result, "content": [TEXT, USE, TEXT]}, revision)["content"]["text"]
    assert several.startswith("t\n\n")
    assert '"tool_use"' in several
    assert several.endswith("\n\nt")
    assert answer(m.CREATE_MESSAGE, {**result, "content": []}, revision)["content"]["text"] == ""
    assert answer(m.CREATE_MESSAGE, {**result, "content": TEXT}, revision)["content"] == TEXT


def test_newer_servers_hear_what_was_answered():
    result = {"role": "assistant", "model": "m", "content": [TEXT, USE]}
    assert answer(m.CREATE_MESSAGE, result, "2025-11-25") == result


# Values without a meaning

NONSENSE: list[tuple[str, Any]] = [
    (m.ELICIT, {"requestedSchema": 3}),
    (m.ELICIT, {"requestedSchema": {"properties": {"a": 1}}}),
    (m.ELICIT, {"requestedSchema": {"properties": {"a": {"oneOf": 3}}}}),
    (m.ELICIT, {}),
    (m.CREATE_MESSAGE, {"messages": 3}),
    (m.CREATE_MESSAGE, {"messages": [{"role": "user"}, {"content": "text"}, {"content": [3]}]}),
    (m.ROOTS_LIST, {"a": 1}),
]


@pytest.mark.parametrize(("method", "params"), NONSENSE)
def test_what_makes_no_sense_is_nobodys_end(method: str, params: Any):
    question = downgrade_question(method, decode_fields(raw(params)), "2025-06-18", "id")
    assert decode_any(raw(question)).keys() == params.keys()
    fields = decode_fields(raw({"content": [3], "a": 1}))
    assert upgrade_answer(method, decode_fields(raw(params)), fields, "2025-06-18") == fields
    assert downgrade_answer(method, fields, "2024-11-05") == fields
