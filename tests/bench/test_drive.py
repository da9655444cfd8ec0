"""Load on a server of known delays, in virtual time: what is recorded is what the script says."""

from __future__ import annotations

import pytest
import trio

from mcpmux.bench.drive import DEAD_SECONDS
from mcpmux.bench.plan import GRACE_SECONDS, Plan
from tests.bench.scripted_load import DelayedServer, drive

STALL_FROM, STALL_TO = 3.0, 5.0


def open_load(rate: str = "100/10s", workers: int = 256, **more: object) -> Plan:
    return Plan(**{"rate": rate, "in_flight": workers, "even": True, "warm_up": 0.0, **more})  # type: ignore[arg-type]


def closed_load(clients: int, seconds: float = 10, **more: object) -> Plan:
    return Plan(**{"clients": clients, "duration": seconds, "warm_up": 0.0, **more})  # type: ignore[arg-type]


def stall(now: float, _number: int) -> float:
    """Return the delay of an answer: 10 ms, but until `STALL_TO` during the stall of two seconds."""
    return STALL_TO - now + 0.01 if STALL_FROM <= now < STALL_TO else 0.01


async def test_constant_delay_is_reported_as_it_is(autojump_clock) -> None:
    for load in (open_load(), open_load(even=False), closed_load(4)):
        recording, _, _ = await drive(DelayedServer(lambda *_: 0.02), load)
        for percent in (1, 50, 99, 99.9):
            assert recording.percentile(percent) == pytest.approx(0.02, rel=0.001)


async def test_two_delays_are_reported_with_their_shares(autojump_clock) -> None:
    server = DelayedServer(lambda _now, number: 0.1 if number % 10 == 9 else 0.01)
    recording, _, _ = await drive(server, open_load())
    assert (recording.percentile(50), recording.percentile(89)) == pytest.approx((0.01, 0.01))
    assert (recording.percentile(91), recording.percentile(99.9)) == pytest.approx((0.1, 0.1))


async def test_stall_shows_in_the_open_model(autojump_clock) -> None:
    """100 a second over 10 s: two of ten seconds' requests wait, from 2 s down to 0."""
    recording, _, _ = await drive(DelayedServer(stall), open_load())
    assert len(recording.records) == 1000
    assert recording.percentile(50) == pytest.approx(0.01, abs=0.001)
    assert recording.percentile(90) == pytest.approx(1.01, rel=0.02)
    assert recording.percentile(99) == pytest.approx(1.91, rel=0.02)


async def test_stall_shows_although_only_one_request_fits(autojump_clock) -> None:
    """Check that late requests are measured from when they were due."""
    recording, _, _ = await drive(
        DelayedServer(lambda now, _: max(stall(now, 0) - 0.005, 0)), open_load(workers=1)
    )
    waited = [record for record in recording.records if record.sent > record.intended + 0.001]
    assert len(waited) > 200
    assert all(record.done - record.sent < 0.01 for record in waited)
    assert recording.percentile(90) > 1


async def test_stall_hides_in_the_closed_model(autojump_clock) -> None:
    """A single client sends no requests while it waits: one slow answer among hundreds of fast ones."""
    recording, _, _ = await drive(DelayedServer(stall), closed_load(1))
    assert recording.percentile(99) == pytest.approx(0.01, abs=0.001)
    assert max(recording.latencies()) == pytest.approx(2.01, abs=0.02)


async def test_open_load_does_not_follow_the_server(autojump_clock) -> None:
    recording, ending, _ = await drive(DelayedServer(lambda *_: 0.5), open_load("100/5s"))
    assert len(recording.records) == 500
    assert ending.unfinished == 0


async def test_closed_load_has_as_many_in_flight_as_clients(autojump_clock) -> None:
    server = DelayedServer(lambda *_: 0.1)
    recording, _, _ = await drive(server, closed_load(3, 2))
    assert server.most == 3
    assert len(recording.records) == 60


async def test_clients_think(autojump_clock) -> None:
    recording, _, _ = await drive(DelayedServer(lambda *_: 0.1), closed_load(2, think=0.4))
    assert len(recording.records) == 40


async def test_no_more_in_flight_than_there_is_room_for(autojump_clock) -> None:
    server = DelayedServer(lambda *_: 0.1)
    await drive(server, open_load("1000/1s", workers=7))
    assert server.most == 7


async def test_count_ends_a_run(autojump_clock) -> None:
    for load in (open_load(count=25), closed_load(4, count=25)):
        began = trio.current_time()
        recording, ending, _ = await drive(DelayedServer(lambda *_: 0.01), load)
        assert len(recording.records) == 25
        assert ending.ended - began < 1
        assert ending.stopped is None


async def test_warm_up_comes_before_and_does_not_take_of_the_count(autojump_clock) -> None:
    recording, _, started = await drive(DelayedServer(lambda *_: 0.01), open_load("100/1s", warm_up=1.0))
    assert len(recording.records) == 200
    assert len(recording.latencies(started + 1.0)) == 100
    recording, _, started = await drive(DelayedServer(lambda *_: 0.01), closed_load(1, 5, warm_up=1, count=5))
    assert len(recording.latencies(started + 1.0)) == 5


async def test_steps_are_offered_one_after_another(autojump_clock) -> None:
    recording, _, started = await drive(DelayedServer(lambda *_: 0.01), open_load("10,50,100/2s"))
    seconds = [int((record.intended - started) // 2) for record in recording.records]
    assert [seconds.count(step) for step in range(3)] == [20, 100, 200]


async def test_request_without_answer_times_out_and_the_next_goes_on(autojump_clock) -> None:
    server = DelayedServer(lambda _now, number: 1000 if number == 3 else 0.1)
    recording, _, _ = await drive(server, closed_load(1, timeout=2))
    outcomes = [record.outcome for record in recording.records]
    assert outcomes.count("timeout") == 1
    assert outcomes.count("ok") > 70
    (slow,) = [record for record in recording.records if record.outcome == "timeout"]
    assert slow.latency == pytest.approx(2, abs=0.11)


async def test_what_is_unanswered_at_the_end_is_recorded_with_its_wait(autojump_clock) -> None:
    """Check requests that could not leave: no answer comes from second 5 on, and ten fit."""
    server = DelayedServer(lambda now, _: 0.01 if now < 5 else 1000)
    recording, ending, started = await drive(server, open_load(workers=10, timeout=60))
    unfinished = [record for record in recording.records if record.outcome == "unfinished"]
    assert len(recording.records) == 1000
    assert len(unfinished) == ending.unfinished == 500
    assert all(record.done == pytest.approx(started + 10 + GRACE_SECONDS) for record in unfinished)
    assert recording.percentile(75) == pytest.approx(GRACE_SECONDS + 2.5, rel=0.02)


async def test_a_server_that_is_gone_ends_the_run_and_keeps_what_was(autojump_clock) -> None:
    for load in (open_load(), closed_load(4)):
        began = trio.current_time()
        recording, ending, _ = await drive(DelayedServer(lambda *_: 0.01, lost=3), load)
        assert ending.stopped == "the server is gone: the stream has ended"
        assert trio.current_time() - began == pytest.approx(3 + DEAD_SECONDS, abs=0.2)
        assert {record.outcome for record in recording.records} == {"ok", "connection lost"}


async def test_lost_connections_now_and_then_end_nothing(autojump_clock) -> None:
    class Flaky(DelayedServer):
        async def perform(self, ask, follow=None):
            answer = await super().perform(ask)
            return answer._replace(outcome="connection lost", lost="reset") if self.asked % 2 else answer

    recording, ending, _ = await drive(Flaky(lambda *_: 0.01), closed_load(1))
    assert ending.stopped is None
    assert {record.outcome for record in recording.records} == {"ok", "connection lost"}


async def test_the_same_seed_asks_at_the_same_times(autojump_clock) -> None:
    async def moments(seed: int) -> list[float]:
        load = open_load(even=False)
        recording, _, started = await drive(DelayedServer(lambda *_: 0.01), load, seed)
        return [round(record.intended - started, 6) for record in recording.records]

    assert await moments(1) == await moments(1)
    assert await moments(1) != await moments(2)
