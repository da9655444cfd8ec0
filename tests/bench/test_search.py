"""The search for the highest rate: against servers whose highest rate is known."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.bench.assertion import parse_assertion
from mcpmux.bench.plan import Plan
from mcpmux.bench.results import generator_of
from mcpmux.bench.search import CLOSE, TRIES, Knee, Search, estimate
from mcpmux.bench.tally import Tally
from tests.bench.made import about
from tests.bench.scripted_load import DelayedServer, ping_mix

PROBES = 200  # more than any search takes


def search(knee: Knee, highest: float) -> int:
    """Let a knee look at a server that bears `highest`; how many probes it took."""
    for probe in range(PROBES):
        if knee.next is None:
            return probe
        knee.note(None if knee.next <= highest else "too fast")
    raise AssertionError("the search does not end")


@given(st.floats(1, 900_000), st.floats(1, 5000))
def test_it_finds_the_highest_rate_from_wherever_it_begins(highest: float, first: float) -> None:
    knee = Knee(first)
    search(knee, highest)
    assert knee.held is not None
    assert knee.held <= highest
    if knee.failed is not None:
        assert highest < knee.failed <= knee.held * (1 + CLOSE)


def test_a_server_that_bears_nothing_is_told() -> None:
    knee = Knee(50)
    search(knee, 0)
    assert knee.held is None
    assert "no rate held" in knee.describe()


def test_one_bad_try_is_outvoted() -> None:
    knee = Knee(100)
    knee.note("an unlucky moment")
    for _ in range(TRIES - 1):
        knee.note(None)
    assert knee.held == 100
    assert knee.tries[100.0] == (2, 3)


def test_what_broke_first_is_told() -> None:
    knee = Knee(100)
    search(knee, 150)
    assert "held" in knee.describe()
    assert knee.describe().endswith("broke first: too fast")


@given(st.lists(st.none() | st.just("too fast"), max_size=12))
def test_a_search_that_ends_early_says_what_it_knows(outcomes: list[str | None]) -> None:
    knee = Knee(50)
    for outcome in outcomes:
        if knee.next is not None:
            knee.note(outcome)
    sentence = knee.describe()
    assert "None" not in sentence
    assert "-" not in sentence.split()
    assert ("ended early" in sentence) == (knee.next is not None)


def looking_at(server: DelayedServer, tally: Tally, warm_up: float = 0.0) -> Search:
    conditions = (parse_assertion("p99<50ms"),)
    plan = Plan(find_max=conditions, rate="20", in_flight=64, even=True, duration=5, warm_up=warm_up)
    return Search(plan, server.sessions, ping_mix(), tally, trio.sleep_until, lambda: 0.0)


class OneAtATime(DelayedServer):
    """Each answer takes 10 ms of the only hand there is: at most 100 a second."""

    def __init__(self) -> None:
        super().__init__(lambda *_: 0.01)
        self._hand = trio.Lock()

    async def perform(self, ask, follow=None):
        async with self._hand:
            return await super().perform(ask)


async def test_the_knee_of_a_server_of_known_speed_is_found(autojump_clock) -> None:
    """With even arrivals it bears everything below 100 a second, and queues without end above."""

    tally = Tally(trio.current_time())
    looking = looking_at(OneAtATime(), tally, warm_up=0.5)
    await looking.run(trio.current_time())
    assert looking.stopped is None
    assert looking.knee.held is not None
    assert 95 <= looking.knee.held <= 102
    assert "p99<50ms" in (looking.knee.why or "")
    assert len(tally.results(about(), looking.ended, generator_of(0.0, 1.0)).steps[-1].errors) <= 1


async def test_search_of_a_server_that_dies_ends_with_what_is_known(autojump_clock) -> None:
    looking = looking_at(DelayedServer(lambda *_: 0.01, lost=22), Tally(trio.current_time()))
    await looking.run(trio.current_time())
    assert (looking.stopped or "").startswith("the server is gone")
    assert looking.knee.held == pytest.approx(40)


def test_the_time_of_a_search_counts_its_rates_and_their_tries() -> None:
    plan = Plan(find_max=(parse_assertion("p99<50ms"),), duration=4.8, warm_up=1.0)
    # 50, 100 … 1,600, and four rates between two of these; 4.8 s with a warm-up and a pause are 6.
    assert estimate(plan).endswith("a search that ends at 1,000/s takes 2.0 to 3.0 min")
