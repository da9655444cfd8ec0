from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.cluster.door import owner_of_request
from mcpmux.mux.rewrite import Marks
from mcpmux.protocol.method import ABOUT_ONE_TASK, READ_ONLY, TOOLS_CALL

PROCESSES = st.text("abcxyz0123456789", min_size=1, max_size=16)
HEADER, KEY = "mcp-session-id", "session_id"


def owner(
    body: object = None, *, session: str | None = None, query: str = "", method: str | None = None
) -> str | None:
    headers = {HEADER: session} if session is not None else {}
    if method is not None:
        headers["mcp-method"] = method
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return owner_of_request(headers, query, data)


@given(PROCESSES, st.text(alphabet="abc-_09", min_size=1))
def test_a_request_is_for_the_process_that_has_what_it_names(process, text: str):
    marked = Marks(process).current + text
    assert owner(session=marked) == process
    assert owner(query=f"a=b&{KEY}={marked}") == process
    assert owner({"params": {"requestState": marked}}) == process
    assert owner({"id": 1, "params": {"name": "x", "taskId": marked}}) == process


@pytest.mark.parametrize("method", sorted({*READ_ONLY, *ABOUT_ONE_TASK, TOOLS_CALL}))
def test_a_modern_request_goes_to_the_process_that_marked_its_state(method: str):
    named = {"taskId": "a.1"} if method in ABOUT_ONE_TASK else {"requestState": "a.1"}
    message = {"method": method, "params": {"_meta": {}, **named}}
    assert owner(message, method=method) == "a"


@given(PROCESSES, PROCESSES)
def test_a_session_counts_before_what_is_said_in_it(process: str, other: str):
    body = {"params": {"requestState": f"{other}.a"}}
    assert owner(body, session=f"{process}.b") == process


@pytest.mark.parametrize(
    "body",
    [
        {"method": "tools/call", "params": {"arguments": {"requestState": "2.a"}}},
        {"params": ["requestState", "2.a"]},
        {"params": None, "requestState": "2.a"},
        {"params": {"requestState": 2.5, "taskId": None}},
        ["requestState"],
        b'{"params":{"requestState":"2.a"',
        b'\xff"requestState"',
        b"[" * 100_000 + b'"taskId"',
        {"method": "tools/list"},
    ],
)
def test_any_process_can_answer_what_names_nothing(body: object):
    assert owner(body) is None
    assert owner(body, query="x=1") is None


@given(st.binary(), st.text())
def test_nonsense_is_answered_anywhere(body: bytes, query: str):
    assert owner(body, query=query) is None or KEY in query
