from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest

from mcpmux.channels.tap import Leg, Said, said_in_answer
from mcpmux.protocol.call import target_in
from mcpmux.protocol.envelope import ErrorReply, Reply, decode_message, decode_reply, decode_request
from mcpmux.traffic.observer import Observation
from mcpmux.traffic.recorder import PENDING_LIMIT, observe, pending_exchange


class Play:
    """Two legs and a clock that goes on by a second with each message."""

    def __init__(self) -> None:
        self.exchanges, self.numbers = count(1), count(1)
        self.client = Leg("client", "c1", "http")
        self.upstream = Leg("upstream", "docs", "stdio", "docs")
        self.now = 0.0

    def pass_(self, leg: Leg, direction: Any, exchange: int = 0, **message: Any) -> Observation:
        self.now += 1
        data = json.dumps({"jsonrpc": "2.0", **message}).encode()
        unread = Observation(leg, direction, data, self.now, exchange=exchange)
        (seen,) = observe([unread], self.exchanges, self.numbers)
        assert seen.data == data
        return seen


def said(client: Leg, data: bytes) -> Observation:
    return Observation(client, "in", data, 0.0)


def test_an_exchange_is_followed_over_both_legs():
    play = Play()
    params = {"uri": "docs+memo:1"}
    request = play.pass_(play.client, "in", id="a", method="resources/read", params=params)
    assert (request.kind, request.exchange, request.method, request.target) == (
        "request",
        1,
        "resources/read",
        "docs+memo:1",
    )
    assert pending_exchange(play.client, "in", "a") == 1
    play.pass_(play.upstream, "out", 1, id=7, method="resources/read", params={"uri": "memo:1"})
    progress = {"progressToken": 7, "progress": 1}
    notification = play.pass_(play.upstream, "in", method="notifications/progress", params=progress)
    assert (notification.kind, notification.exchange) == ("notification", 1)
    answer = play.pass_(play.upstream, "in", id=7, result={})
    assert (answer.kind, answer.exchange, answer.method, answer.ms) == ("result", 1, "resources/read", 2000)
    final = play.pass_(play.client, "out", 1, id="a", result={})
    assert (final.exchange, final.method, final.ms) == (1, "resources/read", 4000)
    assert pending_exchange(play.client, "in", "a") == 0


def test_a_servers_question_belongs_to_its_only_request_in_flight():
    play = Play()
    play.pass_(play.upstream, "out", 0, id=3, method="ping")
    play.pass_(play.upstream, "out", 1, id=1, method="tools/call", params={"name": "t"})
    question = play.pass_(play.upstream, "in", id=0, method="roots/list")
    assert question.exchange == 1
    assert play.pass_(play.upstream, "out", 1, id=0, result={"roots": []}).method == "roots/list"
    play.pass_(play.upstream, "out", 2, id=2, method="tools/call", params={"name": "t"})
    assert play.pass_(play.upstream, "in", id=1, method="roots/list").exchange == 0


def test_changes_belong_to_no_exchange_and_logs_to_the_only_one():
    play = Play()
    play.pass_(play.upstream, "out", 1, id=1, method="tools/call", params={"name": "t"})
    changed = play.pass_(play.upstream, "in", method="notifications/tools/list_changed")
    logged = play.pass_(play.upstream, "in", method="notifications/message", params={"level": "info"})
    assert (changed.exchange, logged.exchange) == (0, 1)


def test_a_cancelled_request_is_not_in_flight_but_matches_its_answer():
    play = Play()
    play.pass_(play.upstream, "out", 1, id=1, method="tools/call", params={"name": "t"})
    play.pass_(play.upstream, "out", 2, id=2, method="tools/call", params={"name": "t"})
    play.pass_(play.upstream, "out", method="notifications/cancelled", params={"requestId": 1})
    assert play.pass_(play.upstream, "in", id=0, method="roots/list").exchange == 2
    late = play.pass_(play.upstream, "in", id=1, result={})
    assert (late.exchange, late.method) == (1, "tools/call")


def test_members_of_a_batch_are_observed_singly_and_nonsense_as_nonsense():
    exchanges, leg = count(1), Leg("client", "c1", "stdio")
    batch = b'[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"ping"}]'
    assert [seen.exchange for seen in observe([said(leg, batch)], exchanges, count(1))] == [1, 2]
    for nonsense in (b"{", b"[]", b"\xff", b'{"jsonrpc":"2.0"}'):
        (seen,) = observe([said(leg, nonsense)], exchanges, count(1))
        assert (seen.kind, seen.data) == ("invalid", nonsense)


def test_a_batch_in_a_batch_is_nonsense():
    nested = b'[[{"jsonrpc":"2.0","id":1,"method":"ping"}],{"jsonrpc":"2.0","id":2,"method":"ping"}]'
    inner, ping = observe([said(Leg("client", "c1", "stdio"), nested)], count(1), count(1))
    assert (inner.kind, inner.exchange, ping.kind, ping.exchange) == ("invalid", 0, "request", 1)


@pytest.mark.parametrize("request_id", [b"7", b'"7"', b"7.0"])
def test_a_message_that_was_repaired_is_recorded_as_it_was_read(request_id: bytes):
    leg = Leg("upstream", "docs", "stdio", "docs")
    request = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t"}}'
    data = b'{"jsonrpc":"2.0","id":%b,"result":{"x":"\\ud83d\xe9","y":NaN}}' % request_id
    pair = [Observation(leg, "out", request, 1.0, exchange=4), Observation(leg, "in", data, 2.0)]
    _, answered = observe(pair, count(1), count(1))
    assert (answered.kind, answered.exchange, answered.method) == ("result", 4, "tools/call")
    assert json.loads(answered.data)["result"] == {"x": "\ufffd\ufffd", "y": None}


ASKED = [
    ("resources/read", {"uri": "memo:1"}),
    ("tools/call", {"name": "t", "arguments": {"uri": "x"}}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "p"}}),
    ("tools/list", {}),
]
ANSWERED: list[Any] = [
    {"result": {}},
    {"result": {"isError": True, "content": []}},
    {"result": {"isError": False}},
    {"result": {"isError": "true"}},
    {"error": {"code": -32602, "message": "no", "data": {"isError": True}}},
]


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked[0])
@pytest.mark.parametrize("answered", ANSWERED)
def test_a_decoded_message_is_observed_like_its_bytes(asked: Any, answered: Any):
    (method, params), seen = asked, []
    data = json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).encode()
    back = json.dumps({"jsonrpc": "2.0", "id": 7, **answered}).encode()
    request, answer = decode_request(data), decode_reply(back) or decode_message(back)
    assert request is not None
    assert request.members is not None
    assert isinstance(answer, Reply | ErrorReply)
    says = Said("request", request.id, request.method, target_in(request.members))
    for said_of in ((None, None), (says, said_in_answer(answer, method))):
        leg = Leg("client", "c1", "http")
        messages = [
            Observation(leg, "in", data, 1.0, said=said_of[0]),
            Observation(leg, "out", back, 2.0, status=200, said=said_of[1]),
        ]
        observations = observe(messages, count(1), count(1))
        seen.append(
            [
                (observation.data, observation.at, observation.direction, *observation.facts())
                for observation in observations
            ]
        )
    assert seen[0] == seen[1]


def test_what_is_never_answered_is_forgotten():
    play = Play()
    for number in range(PENDING_LIMIT + 1):
        play.pass_(play.client, "in", id=number, method="ping")
    assert pending_exchange(play.client, "in", 0) == 0
    assert pending_exchange(play.client, "in", 1) == 2


def test_how_long_an_answer_took_is_told_to_the_microsecond():
    exchanges, leg = count(1), Leg("upstream", "docs", "stdio", "docs")
    request, answer = b'{"jsonrpc":"2.0","id":1,"method":"ping"}', b'{"jsonrpc":"2.0","id":1,"result":{}}'
    messages = [Observation(leg, "out", request, 7.0), Observation(leg, "in", answer, 7.01234567)]
    _, seen = observe(messages, exchanges, count(1))
    assert seen.ms == 12.346
