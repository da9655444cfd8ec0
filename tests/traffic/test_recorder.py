"""Sinks get messages at once, an archive gets many at a time, and each message has its exchange's number."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mcpmux.channels.tap import (
    EXCHANGE,
    INTRODUCTION_LENGTH,
    NAME_CHARS,
    NO_HEADERS,
    ORIGIN,
    Leg,
    Origin,
    identify,
)
from mcpmux.protocol.call import CLIENT_INFO, VERSION, Call
from mcpmux.protocol.envelope import raw
from mcpmux.traffic.observer import BATCH, LONG_BYTES, Observation
from mcpmux.traffic.recorder import Recorder


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
