"""A capture as load: what of it is asked again, in which order, and what is left out and why."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

import pytest

from mcpmux.bench import workload as captured
from mcpmux.bench.operation import SEVERAL
from mcpmux.bench.plan import Plan
from mcpmux.bench.run import Run
from mcpmux.bench.workload import in_turn, load_of, parse_flow
from mcpmux.config.report import InvalidValue
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.raw_json import Raw
from mcpmux.traffic.reading.dialogue import CapturedRequest, Dialogue
from tests.bench.test_run import LEGACY, MODERN, Place, make_server
from tests.runtime.world import upstream
from tests.traffic.made import Play, read_dialogues

READ, LIST, CALL = "resources/read", "resources/list", "tools/call"


def dialogue(*requests: tuple[str, dict[str, Any]], problem: str | None = None, first: int = 1) -> Dialogue:
    """Return a client's requests, each answered at once."""
    whole = Dialogue("c1", "claude-ai")
    for position, (method, params) in zip(count(first, 10), requests, strict=False):
        fields = {name: raw(value) for name, value in params.items()}
        whole.steps.append(
            CapturedRequest(
                position,
                float(position),
                method,
                None,
                position,
                fields,
                {},
                None,
                MODERN,
                problem,
                answered_position=position,
            )
        )
    return whole


def asked(load: captured.CapturedLoad, times: int) -> list[tuple[str, str]]:
    mix = in_turn(load)
    asks = [ask for _ in range(times) for ask in mix.next()[0]]
    return [(ask.operation, ask.subject or "") for ask in asks]


def test_requests_of_all_clients_are_asked_in_their_order_again_and_again():
    first = dialogue((READ, {"uri": "a:1"}), (READ, {"uri": "a:2"}), (READ, {"uri": "a:1"}))
    other = dialogue((LIST, {}), ("prompts/get", {"name": "hello"}), first=5)
    load = load_of([first, other], with_tools=False)
    order = [("read", "a:1"), ("list resources", ""), ("read", "a:2"), ("prompt hello", ""), ("read", "a:1")]
    assert asked(load, 12) == [*order, *order, *order[:2]]
    assert len(load.asks) == 4
    assert load.names == ["list resources", "prompt hello", "read"]
    assert load.left_out == Counter()


LEFT_OUT = {
    "a later page": (LIST, {"cursor": "x"}, captured.LATER_PAGE),
    "an empty cursor is a cursor": (LIST, {"cursor": ""}, captured.LATER_PAGE),
    "an opening": ("initialize", {}, captured.OF_A_SESSION),
    "a discovery": ("server/discover", {}, captured.OF_A_SESSION),
    "a listen": ("subscriptions/listen", {}, captured.OF_A_SESSION),
    "a ping": ("ping", {}, captured.OF_A_SESSION),
    "a state": (CALL, {"name": "t", "requestState": "s", "inputResponses": {}}, captured.OF_ITS_TIME),
    "a task": (CALL, {"name": "t", "task": {"ttl": 1}}, captured.OF_ITS_TIME),
    "a task's result": ("tasks/get", {"taskId": "1"}, captured.OF_ITS_TIME),
    "the end of a subscription": ("resources/unsubscribe", {"uri": "a:1"}, captured.TAKEN_BACK),
    "something else": ("x/y", {}, captured.NO_LOAD),
}


@pytest.mark.parametrize(("method", "params", "reason"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_what_belongs_to_its_own_time_is_left_out_and_counted(method: str, params: Any, reason: str):
    load = load_of([dialogue((READ, {"uri": "a:1"}), (method, params), (method, params))], with_tools=True)
    assert asked(load, 2) == [("read", "a:1")] * 2
    assert load.left_out == Counter({reason: 2})


@pytest.mark.parametrize("problem", ["redacted", "truncated"])
def test_requests_that_are_not_known_as_they_were_are_left_out(problem: str):
    load = load_of([dialogue((READ, {"uri": "a:1"}), problem=problem)], with_tools=True)
    assert list(load.order) == []
    assert load.left_out == Counter({f"the request is {problem}": 1})


def test_tools_are_called_when_that_is_wanted():
    whole = dialogue(
        (CALL, {"name": "echo", "arguments": {"a": 1}}), (CALL, {"name": "echo", "arguments": {}})
    )
    assert load_of([whole], with_tools=False).left_out == Counter(
        {"it calls a tool; --with-tools sends it": 2}
    )
    load = load_of([whole], with_tools=True)
    assert load.names == ["tool echo"]
    assert [bytes(ask.call.params["arguments"]) for ask in load.asks] == [b'{"a":1}', b"{}"]


def test_lists_are_walked_and_subscriptions_taken_back():
    load = load_of([dialogue((LIST, {}), ("resources/subscribe", {"uri": "a:1"}))], with_tools=False)
    assert [ask.call.method for ask in load.asks] == [LIST, "resources/subscribe"]
    assert all(ask.call.method in SEVERAL for ask in load.asks)


def test_beyond_the_limits_requests_are_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(captured, "MOST_REQUESTS", 5)
    monkeypatch.setattr(captured, "MOST_DIFFERENT", 2)
    requests = [(READ, {"uri": f"a:{number % 3}"}) for number in range(9)]
    load = load_of([dialogue(*requests)], with_tools=False)
    assert (len(load.asks), len(load.order)) == (2, 5)
    assert load.left_out == Counter({captured.TOO_MANY: 4})


def test_fingerprints_tell_loads_apart():
    requests = [(READ, {"uri": "a:1"}), (READ, {"uri": "a:2"})]
    prints = {
        load_of([dialogue(*some)], with_tools=False).fingerprint()
        for some in (requests, requests[::-1], requests[:1], requests + requests[:1])
    }
    assert len(prints) == 4
    assert load_of([dialogue(*requests)], with_tools=False).fingerprint() in prints


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"flows": (parse_flow("read"),)}, "a capture says what is asked"),
        ({"push": parse_flow("tool t").steps[0]}, "leave the capture out"),
    ],
)
def test_a_capture_is_the_only_thing_that_is_asked(settings: Any, words: str):
    load = load_of([dialogue((READ, {"uri": "a:1"}))], with_tools=False)
    with pytest.raises(InvalidValue, match=words):
        Plan(captured=load, **settings)


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_a_whole_capture_is_measured_in_either_era(autojump_clock, revision: str) -> None:
    """Three reads and a list of four pages, captured on the client's leg."""
    play = Play()
    for number in (1, 2, 1):
        play.read(f"memo:{number}")
    records = [*play.records]
    dialogues = read_dialogues(records, "upstream", "docs").dialogues()
    for whole in dialogues:
        turn = next(whole.requests())
        params: dict[str, Raw] = {}
        whole.steps.append(
            CapturedRequest(1000, 0.0, LIST, None, 99, params, {}, None, None, answered_position=1001)
        )
    load = load_of(dialogues, with_tools=False)
    assert turn.method == READ
    server = make_server(revision)
    plan = Plan(captured=load, clients=1, count=8, warm_up=0.0, duration=10.0)
    results = await Run(upstream("x"), plan, Place(server).open, cpu=lambda: 0.0).measure()
    assert results is not None
    assert {name: (part.count, part.errors) for name, part in results.operations.items()} == {
        "read": (6, {}),
        "list resources": (2, {}),
    }
    reads = [request["params"]["uri"] for request in server.seen if request.get("method") == READ]
    assert reads == ["memo:1", "memo:2", "memo:1"] * 2
    assert results.about.load.text.startswith("4 captured requests in turn")
    assert results.about.load.settings["captured"] == load.fingerprint()
