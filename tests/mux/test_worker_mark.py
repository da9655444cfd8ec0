from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.mux.rewrite import ForeignMark, mark_of, own_part, owner_of, owner_of_request

WORKERS = st.integers(1, 256)
HEADER, KEY = "mcp-session-id", "session_id"


def owner(body: object = None, *, session: str | None = None, query: str = "") -> int | None:
    headers = {HEADER: session} if session is not None else {}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return owner_of_request(headers, query, data)


@given(WORKERS, st.text())
def test_what_a_worker_has_marked_says_whose_it_is_and_what_it_was(worker: int, text: str):
    marked = mark_of(worker) + text
    assert owner_of(marked) == worker
    assert own_part(mark_of(worker), marked) == text


@given(WORKERS, WORKERS, st.text())
def test_another_workers_is_foreign(worker: int, other: int, text: str):
    if worker != other:
        with pytest.raises(ForeignMark):
            own_part(mark_of(other), mark_of(worker) + text)


@pytest.mark.parametrize(
    "text", ["", "abc", ".a", "0.a", "01.a", "-1.a", "12345.a", "1", "a1.b", None, 1, ["1.a"]]
)
def test_what_nobody_has_marked_is_nobodys(text: object):
    assert owner_of(text) is None


@given(WORKERS, st.text(alphabet="abc-_09", min_size=1))
def test_a_request_is_for_the_worker_that_has_what_it_names(worker: int, text: str):
    marked = mark_of(worker) + text
    assert owner(session=marked) == worker
    assert owner(query=f"a=b&{KEY}={marked}") == worker
    assert owner({"params": {"requestState": marked}}) == worker
    assert owner({"id": 1, "params": {"name": "x", "taskId": marked}}) == worker


@given(WORKERS, WORKERS)
def test_a_session_counts_before_what_is_said_in_it(worker: int, other: int):
    body = {"params": {"requestState": f"{other}.a"}}
    assert owner(body, session=f"{worker}.b") == worker


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
def test_any_worker_can_answer_what_names_nothing(body: object):
    assert owner(body) is None
    assert owner(body, query="x=1") is None


@given(st.binary(), st.text())
def test_nonsense_is_answered_anywhere(body: bytes, query: str):
    assert owner(body, query=query) is None or KEY in query
