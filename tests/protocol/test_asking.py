"""The questions a client can answer, and how its answers travel."""

from __future__ import annotations

from typing import Any

import pytest

from mcpmux.errors import RpcError
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import Request, decode_any, decode_fields, raw
from mcpmux.protocol.input_requests import (
    error_response,
    first_error,
    input_required,
    offers,
    read_response,
    wishes_in,
)

FORM: dict[str, Any] = {"elicitation": {"form": {}}}
URL: dict[str, Any] = {"elicitation": {"url": {}}}


@pytest.mark.parametrize(
    ("capabilities", "method", "params", "expected"),
    [
        ({"sampling": {}}, "sampling/createMessage", {}, True),
        ({}, "sampling/createMessage", {}, False),
        ({"sampling": {}}, "sampling/createMessage", {"tools": []}, False),
        ({"sampling": {"tools": {}}}, "sampling/createMessage", {"toolChoice": {}}, True),
        (None, "roots/list", {}, False),
        ({"roots": {}}, "roots/list", {}, True),
        ({"roots": True}, "roots/list", {}, False),
        ({"elicitation": {}}, "elicitation/create", {}, True),
        ({"elicitation": {}}, "elicitation/create", {"mode": "url"}, False),
        (FORM, "elicitation/create", {"mode": "form"}, True),
        (FORM, "elicitation/create", {"mode": "url"}, False),
        (URL, "elicitation/create", {"mode": "url"}, True),
        (URL, "elicitation/create", {}, False),
    ],
)
def test_a_client_is_asked_only_for_what_it_offers(
    capabilities: Any, method: str, params: Any, expected: bool
):
    declared = raw(capabilities) if capabilities is not None else None
    assert offers(declared, method, decode_fields(raw(params))) is expected


def test_questions_travel_as_input_required_without_the_legs_own_metadata():
    questions = {
        "q": Request("q", "elicitation/create", raw({"message": "m", "_meta": {"progressToken": 1}}))
    }
    result = input_required(questions, "state", legacy=False)
    assert decode_any(result["inputRequests"]) == {
        "q": {"method": "elicitation/create", "params": {"message": "m"}}
    }
    wishes = wishes_in(result)
    assert wishes is not None
    assert wishes["q"].method == "elicitation/create"
    assert wishes_in({"resultType": raw("complete")}) is None
    with pytest.raises(RpcError):
        wishes_in({"resultType": raw("input_required"), "inputRequests": raw([1])})


@pytest.mark.parametrize("legacy", [True, False])
def test_modern_clients_get_no_ids_of_visits_nor_tasks_of_questions(legacy: bool):
    meta = {"io.modelcontextprotocol/related-task": {"taskId": "t"}}
    question = raw({"elicitationId": "e", "message": "m", "_meta": {**meta, "progressToken": 1}})
    result = input_required({"q": Request("q", "elicitation/create", question)}, "state", legacy=legacy)
    params = decode_any(result["inputRequests"])["q"]["params"]
    assert params == ({"elicitationId": "e", "message": "m", "_meta": meta} if legacy else {"message": "m"})


def test_a_clients_error_travels_in_the_place_of_its_response():
    error = read_response(error_response(RpcError(-1, "no", {"a": 1})))
    assert isinstance(error, RpcError)
    assert (error.code, error.message) == (-1, "no")
    responses = raw({"a": {"action": "accept"}, "b": decode_any(error_response(RpcError(-2, "never")))})
    first = first_error(Call("tools/call", {"inputResponses": responses}, {}))
    assert first is not None
    assert first.code == -2
    assert first_error(Call("tools/call", {"inputResponses": raw({"a": {}})}, {})) is None
    assert first_error(Call("tools/call", {"inputResponses": raw("nonsense")}, {})) is None
