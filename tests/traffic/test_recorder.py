"""Sinks get messages at once, an archive gets many at a time, and each message has its exchange's number."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest

from mcpmux.channels.tap import (
    EXCHANGE,
    INTRODUCTION_LENGTH,
    NAME_CHARS,
    NO_HEADERS,
    ORIGIN,
    Leg,
    Origin,
    Said,
    identify,
    said_in_answer,
)
from mcpmux.protocol.call import CLIENT_INFO, VERSION, Call, target_in
from mcpmux.protocol.envelope import ErrorReply, Reply, decode_message, decode_reply, decode_request, raw
from mcpmux.traffic.observer import BATCH, LONG_BYTES, Observation
from mcpmux.traffic.recorder import PENDING_LIMIT, Recorder, observe, pending_exchange


def ping(request_id: int) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,"method":"ping"}' % request_id


def pong(request_id: int) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,"result":{}}' % request_id


class Shelf:
    """An archive that settles only on demand."""

    def __init__(self, most_waiting: int = BATCH) -> None:
        self.most_waiting = most_waiting
        self.batches: list[list[Observation]] = []
        self.expected = 0
        self.settle: Callable[[], None] = lambda: None

    def expect(self, settle: Callable[[], None]) -> None:
        self.expected += 1
        self.settle = settle

    def take_all(self, batch: Sequence[Observation]) -> None:
        self.batches.append(list(batch))


def watched() -> tuple[Recorder, Shelf, Leg]:
    shelf = Shelf()
    recorder = Recorder([shelf], (), lambda: 1.0)
    return recorder, shelf, recorder.client("http")


def test_an_archive_is_woken_once_and_then_gets_all_that_waits():
    recorder, shelf, client = watched()
    recorder.message_passed(client, "in", ping(1), 200)
    recorder.message_passed(client, "out", pong(1), 404)
    assert (shelf.expected, shelf.batches) == (1, [])
    shelf.settle()
    shelf.settle()
    (batch,) = shelf.batches
    assert [(seen.kind, seen.method, seen.exchange, seen.status) for seen in batch] == [
        ("request", "ping", 1, 200),
        ("result", "ping", 1, 404),
    ]
    recorder.message_passed(client, "in", ping(2))
    assert shelf.expected == 2


def test_what_waits_is_bounded():
    recorder, shelf, client = watched()
    for number in range(2 * BATCH + 1):
        recorder.message_passed(client, "in", ping(number))
    assert [len(batch) for batch in shelf.batches] == [BATCH, BATCH]
    recorder.message_passed(client, "in", b" " * LONG_BYTES + ping(1000))
    assert [seen.id for seen in shelf.batches[2]] == [2 * BATCH, 1000]


def test_a_request_has_its_number_before_anybody_looks_at_it():
    recorder, shelf, client = watched()
    other = recorder.client("http")
    for leg, first in ((client, 1), (other, 3)):  # two clients with the same ids, each of which comes again
        for number in (first, first + 1):
            message = ping(7)
            recorder.message_passed(leg, "in", message)
            assert recorder.exchange_of(leg, 7, message) == number
            recorder.message_passed(leg, "out", pong(7))
        assert len(shelf.batches) == first // 2  # these messages are not looked at yet
        recorder.settle()
    assert [[seen.exchange for seen in batch] for batch in shelf.batches] == [[1, 1, 2, 2], [3, 3, 4, 4]]


def test_a_request_that_was_not_the_last_is_looked_up():
    recorder, shelf, client = watched()
    first, second = ping(1), ping(2)
    recorder.message_passed(client, "in", first)
    recorder.message_passed(client, "in", second)
    assert recorder.exchange_of(client, 1, first) == 1
    assert recorder.exchange_of(client, 2, second) == 2
    assert recorder.exchange_of(client, 3, ping(3)) == 0
    assert [seen.exchange for batch in shelf.batches for seen in batch] == [1, 2]


def test_a_message_belongs_to_the_exchange_in_work_when_it_passed():
    recorder, shelf, client = watched()
    docs = Leg("upstream", "docs", "stdio", "docs")
    recorder.message_passed(client, "in", request := ping(1))
    token = EXCHANGE.set(recorder.exchange_of(client, 1, request))
    recorder.message_passed(docs, "out", ping(50))
    EXCHANGE.reset(token)
    recorder.message_passed(docs, "in", pong(50))
    recorder.settle()
    assert [seen.exchange for seen in shelf.batches[0]] == [1, 1, 1]


def test_a_leg_that_is_gone_is_forgotten_after_what_it_said_last():
    recorder, shelf, client = watched()
    recorder.message_passed(client, "in", ping(1))
    recorder.gone(client)
    assert [seen.id for seen in shelf.batches[0]] == [1]
    assert recorder.exchange_of(client, 1) == 0


def test_an_observer_gets_each_message_at_once_and_the_archive_with_it():
    shelf, other = Shelf(), Shelf(most_waiting=1)
    recorder = Recorder([shelf, other], (), lambda: 1.0)
    client = recorder.client("http")
    recorder.message_passed(client, "in", ping(1))
    assert [seen.kind for seen in other.batches[0]] == ["request"]
    assert shelf.batches == other.batches
    assert recorder.exchange_of(client, 1) == 1


def test_a_client_is_who_its_last_call_says():
    recorder, _, client = watched()
    token = ORIGIN.set(Origin(client, NO_HEADERS))
    long = "x" * INTRODUCTION_LENGTH
    for name, revision in (("a", "1"), ("b", "1"), (long, "1"), (long, "2"), ("b", "2"), ("b", "2")):
        meta = {CLIENT_INFO: raw({"name": name, "version": "1"}), VERSION: raw(revision)}
        identify(Call("ping", {}, meta))
        assert (client.name, client.revision) == (name[:NAME_CHARS], revision)
    identify(Call("ping", {}, {}))
    assert (client.name, client.revision) == (None, None)
    ORIGIN.reset(token)
    recorder.gone(client)


def test_exchanges_have_numbers_when_nobody_is_told_of_messages():
    recorder = Recorder((), (), lambda: 1.0)
    client = recorder.client("http")
    for number in (1, 2):
        message = ping(7)
        recorder.message_passed(client, "in", message)
        assert recorder.exchange_of(client, 7, message) == number
        recorder.message_passed(client, "out", pong(7))
    assert client.notes is None  # no sink wants notes


# Matching: answers to their requests, and both to their exchange.


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
