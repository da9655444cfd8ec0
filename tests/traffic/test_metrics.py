"""Counting: what passes is counted once, under labels of which there are few."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from mcpmux.channels.tap import Leg
from mcpmux.errors import Refused, RpcError
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.observer import Exchange
from mcpmux.traffic.outcome import outcome_of
from mcpmux.traffic.recorder import Recorder
from mcpmux.traffic.telemetry.metrics import NAMES_FAILED, SECONDS, Metrics


class Play:
    """A client, an upstream and a clock that goes on by a second with each message."""

    def __init__(self) -> None:
        self._metrics = Metrics()
        self.now = 0.0
        self.recorder = Recorder([self._metrics], [self._metrics], lambda: self.now)
        self.client = self.recorder.client("http")
        self.upstream = Leg("upstream", "docs#3", "stdio", "docs")

    @property
    def metrics(self) -> Metrics:
        self._metrics.settle()
        return self._metrics

    def say(self, leg: Leg, direction: Any, **message: Any) -> int:
        """Pass a message; its length."""
        self.now += 1
        data = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.recorder.message_passed(leg, direction, data)
        return len(data)

    async def exchange(self, method: str, outcome: Any, *upstreams: str, request_id: int = 1) -> None:
        """Play a client's request, the requests to upstreams for it, and its end."""
        self.say(self.client, "in", id=request_id, method=method)
        number = self.recorder.exchange_of(self.client, request_id)
        await self.recorder.admit(self.client, number, Call(method, {}, {}))
        for name in upstreams:
            self.recorder.routed(number, name)
        self.now += 1
        await self.recorder.ended(number, outcome)


def test_messages_and_bytes_are_counted_by_leg_and_direction():
    play = Play()
    first = play.say(play.client, "in", id=1, method="ping")
    second = play.say(play.client, "in", id=2, method="ping", params={})
    answer = play.say(play.client, "out", id=1, result={})
    assert play.metrics.messages_total == {
        ("client", "in", "http", "request"): 2,
        ("client", "out", "http", "result"): 1,
    }
    assert play.metrics.message_bytes_total == {
        ("client", "in", "http", "request"): first + second,
        ("client", "out", "http", "result"): answer,
    }


async def test_an_exchange_is_counted_by_method_upstream_and_outcome():
    play = Play()
    await play.exchange("resources/read", {}, "docs")
    await play.exchange("tools/list", {}, "docs", "git", "docs")
    await play.exchange("ping", {})
    assert play.metrics.exchanges_total == {
        ("resources/read", "docs", "ok"): 1,
        ("tools/list", "(several)", "ok"): 1,
        ("ping", "(none)", "ok"): 1,
    }
    durations = play.metrics.exchange_duration_seconds["resources/read", "docs"]
    assert (sum(durations[:-1]), durations[-1]) == (1, 1.0)


async def test_strangers_text_is_no_label():
    play = Play()
    play.client.name = "a client of its own making"
    await play.exchange("vendor/anything", {}, "docs")
    play.say(play.client, "in", method="notifications/vendor/x")
    play.say(play.upstream, "out", id=1, method="vendor/x", params={"name": "n", "uri": "u://x"})
    play.say(play.upstream, "in", id=1, result={})
    shown = repr([getattr(play.metrics, name) for name in dir(play.metrics)])
    assert "vendor" not in shown and "u://x" not in shown and "making" not in shown
    assert play.metrics.exchanges_total == {("other", "docs", "ok"): 1}
    assert play.metrics.notifications_total == {("client", "in", "other"): 1}
    assert play.metrics.upstream_requests_total == {("docs", "other", "ok"): 1}


async def test_many_strange_methods_take_no_memory():
    play = Play()
    for number in range(100):
        await play.exchange(f"vendor/{number}", {}, request_id=number)
    assert play.metrics.exchanges_total == {("other", "(none)", "ok"): 100}
    assert play.metrics.exchanges_in_flight == {("other",): 0}


async def test_what_is_being_worked_on_is_in_flight_until_it_has_ended():
    play = Play()
    play.say(play.client, "in", id=1, method="tools/call")
    await play.recorder.admit(play.client, 1, Call("tools/call", {}, {}))
    assert play.metrics.exchanges_in_flight == {("tools/call",): 1}
    await play.recorder.ended(1, RpcError(-32603, "x"))
    assert play.metrics.exchanges_in_flight == {("tools/call",): 0}


class Refusing:
    """A keeper that admits no exchange."""

    passes = False

    async def admit(self, _exchange: Any) -> None:
        raise Refused(-31004, "no", "audit")

    async def ended(self, *_: Any) -> None:
        raise AssertionError("it was not admitted")


async def test_what_a_later_keeper_refuses_is_counted_and_not_left_in_flight():
    metrics = Metrics()
    recorder = Recorder([], [metrics, Refusing()], lambda: 0.0)
    with pytest.raises(Refused):
        await recorder.admit(recorder.client("http"), 1, Call("ping", {}, {}))
    assert metrics.exchanges_in_flight == {("ping",): 0}
    assert metrics.exchanges_total == {("ping", "(none)", "refused"): 1}


async def test_a_listen_is_counted_and_has_no_duration():
    play = Play()
    await play.exchange("subscriptions/listen", {})
    assert play.metrics.exchanges_total == {("subscriptions/listen", "(none)", "ok"): 1}
    assert play.metrics.exchange_duration_seconds == {}


@pytest.mark.parametrize(
    ("message", "outcome"),
    [
        ({"result": {}}, "ok"),
        ({"result": {"isError": True}}, "tool_error"),
        ({"error": {"code": -32601, "message": "m"}}, "method_not_found"),
        ({"error": {"code": 7, "message": "m"}}, "error"),
    ],
)
def test_an_upstreams_answer_is_counted_under_its_configured_name(message: Any, outcome: str):
    play = Play()
    play.say(play.upstream, "out", id=1, method="tools/call", params={"name": "t"})
    play.say(play.upstream, "in", id=1, **message)
    assert play.metrics.upstream_requests_total == {("docs", "tools/call", outcome): 1}
    assert play.metrics.upstream_request_duration_seconds["docs", "tools/call"][-1] == 1.0


def test_an_answer_to_nothing_is_no_call_of_an_upstream():
    play = Play()
    play.say(play.upstream, "in", id=9, result={})
    assert play.metrics.upstream_requests_total == {}


def test_what_a_server_asks_is_no_call_of_an_upstream():
    play = Play()
    play.say(play.upstream, "in", id=1, method="sampling/createMessage")
    play.say(play.upstream, "out", id=1, result={})
    assert play.metrics.upstream_requests_total == {}


async def cancelled() -> BaseException:
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            caught = error
            raise
    return caught


async def test_every_end_has_a_word():
    failed = {"isError": raw(True)}
    cases: list[tuple[str, Fields | BaseException, str]] = [
        ("tools/call", {}, "ok"),
        ("tools/call", {"resultType": raw("complete")}, "ok"),
        ("tools/call", {"resultType": raw("input_required")}, "input_required"),
        ("tools/call", failed, "tool_error"),
        ("tools/call", {"isError": raw("true")}, "ok"),
        ("prompts/get", failed, "ok"),
        ("ping", RpcError(-31001, "x"), "unavailable"),
        ("ping", RpcError(-31002, "x"), "timeout"),
        ("ping", RpcError(-31003, "x"), "busy"),
        ("ping", RpcError(-32002, "x"), "not_found"),
        ("ping", RpcError(12345, "x"), "error"),
        ("ping", Refused(-32602, "x", "rule"), "refused"),
        ("ping", await cancelled(), "cancelled"),
        ("ping", ZeroDivisionError(), "broken"),
    ]
    assert [outcome_of(method, outcome) for method, outcome, _ in cases] == [word for *_, word in cases]


async def test_a_value_is_in_the_first_bucket_that_can_hold_it():
    metrics, exchange = Metrics(), Exchange(1, Leg("client", "c1", "http"), Call("ping", {}, {}), 0.0, [], {})
    for seconds in (0.0, 0.001, 0.002, 0.0025, 0.002501, 99.0):
        await metrics.ended(exchange, {}, seconds)
    *counts, total = metrics.exchange_duration_seconds["ping", "(none)"]
    assert [counts[place] for place in (0, 1, 2, -1)] == [2, 2, 1, 1]
    assert (len(counts), sum(counts)) == (len(SECONDS) + 1, 6)
    assert total == pytest.approx(99.008001)


async def test_durations_by_name_are_of_names_that_have_answered_and_bounded():
    play = Play()

    async def call(name: str, outcome: Any) -> None:
        play.say(play.client, "in", id=1, method="tools/call", params={"name": name})
        number = play.recorder.exchange_of(play.client, 1)
        await play.recorder.admit(play.client, number, Call("tools/call", {"name": raw(name)}, {}))
        play.now += 2
        await play.recorder.ended(number, outcome)

    error = RpcError(-32602, "no such tool")
    await call("invented", error)
    await call("find", {})
    await call("find", error)
    durations = play.metrics.exchange_duration_by_name_seconds
    assert {name: sum(counts[:-1]) for (_, name), counts in durations.items()} == {"(others)": 1, "find": 2}
    for number in range(2 * NAMES_FAILED):
        await call(f"tool-{number}", {"isError": raw(True)})
    assert len(durations) == NAMES_FAILED + 2
