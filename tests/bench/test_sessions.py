"""Sessions that are lost in the middle of a run are opened again, as long as that leads anywhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcpmux.bench.results import Results
from mcpmux.bench.session import PAUSE_SECONDS, REOPENINGS, STEADY_SECONDS
from mcpmux.config import Upstream
from mcpmux.errors import TransportError
from tests.bench.test_run import ERAS, LEGACY, MODERN, Place, make_server, measure


class Mortal(Place):
    """Each session is lost `life` seconds after it was opened, `deaths` times; then `down` openings fail."""

    def __init__(
        self, revision: str, life: float, deaths: float, down: int = 0, answer: float = 0.01
    ) -> None:
        super().__init__(*(make_server(revision, answer) for _ in range(100)))
        self._life = life
        self._deaths = deaths
        self._down = down
        self.opened: list[float] = []
        self.refused = 0

    @asynccontextmanager
    async def open(self, upstream: Upstream, hear: Any, watch: Any = None) -> AsyncIterator[Any]:
        if self.opened and self.refused < self._down:
            self.refused += 1
            raise TransportError("it is starting")
        self.opened.append(trio.current_time())
        async with super().open(upstream, hear, watch) as link, trio.open_nursery() as nursery:
            if len(self.opened) <= self._deaths:
                nursery.start_soon(self._die)
            yield link
            nursery.cancel_scope.cancel()

    async def _die(self) -> None:
        await trio.sleep(self._life)
        await self.cut()


def good(results: Results) -> int:
    whole = results.overall()
    return whole.count - whole.failed


@ERAS
async def test_a_lost_session_is_opened_again_and_the_run_goes_on(autojump_clock, revision: str) -> None:
    """Two clients, an answer each 10 ms, for 4 seconds; the stream ends after one second."""
    place = Mortal(revision, life=1.005, deaths=1)
    results = await measure(place, clients=2, duration=4.0)
    assert results.stopped is None
    assert len(place.opened) == 2
    assert place.opened[1] - place.opened[0] == pytest.approx(1.005 + PAUSE_SECONDS, abs=0.02)
    assert (results.connections.count, results.connections.lost, results.connections.errors) == (2, 1, {})
    assert results.overall().errors == {"connection lost": 2}
    assert good(results) == pytest.approx(2 * (400 - 11), abs=8)


async def test_openings_that_fail_are_counted_and_tried_again(autojump_clock) -> None:
    place = Mortal(MODERN, life=1.005, deaths=1, down=3)
    results = await measure(place, clients=1, duration=6.0)
    assert results.stopped is None
    assert results.connections.errors == {"connection lost": 3}
    assert (results.connections.count, results.connections.lost) == (5, 1)
    pauses = PAUSE_SECONDS * (1 + 2 + 4 + 8)
    assert place.opened[1] - place.opened[0] == pytest.approx(1.005 + pauses, abs=0.02)


async def test_a_server_that_dies_again_and_again_is_given_up(autojump_clock) -> None:
    place = Mortal(LEGACY, life=0.205, deaths=1000)
    results = await measure(place, clients=3, duration=3600.0)
    assert (results.stopped or "").startswith("the server is gone: ")
    assert len(place.opened) == 1 + REOPENINGS
    assert results.connections.lost == 1 + REOPENINGS
    assert good(results) > 3 * 20 * REOPENINGS


async def test_a_server_that_holds_for_a_while_is_opened_without_limit(autojump_clock) -> None:
    place = Mortal(LEGACY, life=STEADY_SECONDS + 1, deaths=1000, answer=0.2)
    results = await measure(place, clients=1, duration=10 * (STEADY_SECONDS + 1))
    assert results.stopped is None
    assert len(place.opened) == pytest.approx(10, abs=1)
    assert len(place.opened) > REOPENINGS + 2


async def test_a_session_that_is_being_opened_at_the_end_holds_nothing_up(autojump_clock) -> None:
    place = Mortal(LEGACY, life=1.005, deaths=1, down=4)
    began = trio.current_time()
    results = await measure(place, clients=1, duration=2.0, timeout=0.5)
    assert results.stopped is None
    assert trio.current_time() - began < 3.0
    assert set(results.overall().errors) <= {"connection lost", "timeout", "unfinished"}
