"""An exchange through mcpmux takes no more instructions and system calls than it did.

Instructions depend on the Python that runs and on its libraries, so they are divided by those of an exchange
with the yardstick, which never changes, counted in the same run.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from benchmarks.counting import (
    READY_SECONDS,
    RECEIVES,
    SENDS,
    STRACE,
    VALGRIND,
    WAITS,
    count_instructions,
)
from benchmarks.instructions import (
    CONNECTIONS,
    LEGACY_CALL,
    LEGACY_READ,
    MODERN_READ,
    SCENARIOS,
    STDIO_CLIENT_READ,
    STDIO_READ,
    STREAMED_CALL,
    Cost,
    Scenario,
    asking_in_rounds,
    calls_of,
    instructions_of,
    table,
)
from benchmarks.naming import READ
from benchmarks.process import Child, MeasurementFailed
from tests.real.parts import program

ROUNDS = 20
ATTEMPTS = 4  # a machine that stands still for a while wakes mcpmux for its clocks on top
MORE = 1.2  # times what was written down here: a regression of a quarter is seen
LESS = 0.8  # what has become so much cheaper is to be written down anew, or the next regression is not seen


@pytest.fixture(scope="module")
def yardstick() -> float:
    """Return the instructions of one exchange with the server that never changes."""
    program(VALGRIND)

    @contextmanager
    def prepare(child: Child) -> Iterator[Callable[[], None]]:
        (url,) = child.lines(1, READY_SECONDS)
        with asking_in_rounds(url, READ, READ.subjects, CONNECTIONS, ROUNDS) as work:
            yield work

    core = min(os.sched_getaffinity(0))
    total = count_instructions(["tests.benchmarks.yardstick"], core, "", prepare)
    return total / (ROUNDS * CONNECTIONS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "written_down"),
    [
        (MODERN_READ, 0.28),
        (LEGACY_READ, 0.306),
        (LEGACY_CALL, 0.323),
        (STREAMED_CALL, 0.372),
        (STDIO_READ, 0.235),
        (STDIO_CLIENT_READ, 0.2),
    ],
    ids=lambda value: value.name if isinstance(value, Scenario) else "",
)
def test_exchange_takes_no_more_instructions(
    yardstick: float, scenario: Scenario, written_down: float
) -> None:
    cost = instructions_of(scenario, ROUNDS) / yardstick
    assert cost <= written_down * MORE, f"{cost:.3f} exchanges of the yardstick instead of {written_down}"
    assert cost >= written_down * LESS, f"cheaper: write {cost:.3f} instead of {written_down}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "most"),
    [
        (MODERN_READ, {RECEIVES: 2, SENDS: 2, WAITS: 7}),  # some look whether an answer comes at once
        (STDIO_READ, {RECEIVES: 3, SENDS: 2, WAITS: 8}),
    ],
    ids=["modern", "stdio"],
)
def test_exchange_takes_no_more_system_calls(scenario: Scenario, most: dict[frozenset[str], float]) -> None:
    program(STRACE)
    others = 2  # epoll_ctl
    costs: list[Cost] = []
    for _ in range(ATTEMPTS):
        costs.append(Cost(scenario, 0, calls_of(scenario, ROUNDS), ROUNDS))
        del costs[-1].calls["sched_yield"]  # as many as fit in a moment, for others that want the processor
        if is_within(costs[-1], most, others):
            return
    raise AssertionError(costs)


def is_within(cost: Cost, most: dict[frozenset[str], float], others: float) -> bool:
    """Return whether an exchange takes no more calls than `most` of each kind and `others`, but some."""
    total = cost.calls.total() / cost.exchanges
    kinds_fit = all(0 < cost.each(names) <= count * MORE for names, count in most.items())
    return kinds_fit and total <= (sum(most.values()) + others) * MORE


def test_calls_of_all_kinds_count() -> None:
    most: dict[frozenset[str], float] = {RECEIVES: 2}
    assert is_within(Cost(MODERN_READ, 0, Counter(recvfrom=4, futex=2), 2), most, 1)
    assert not is_within(Cost(MODERN_READ, 0, Counter(recvfrom=6), 2), most, 1)
    assert not is_within(Cost(MODERN_READ, 0, Counter(recvfrom=4, futex=6), 2), most, 1)
    assert not is_within(Cost(MODERN_READ, 0, Counter(futex=2), 2), most, 1)


def test_table_has_the_calls_of_one_exchange() -> None:
    calls = Counter({"recvfrom": 4, "read": 4, "sendto": 6, "epoll_wait": 3, "futex": 1})
    row = table([Cost(MODERN_READ, 534_489.4, calls, 2)]).splitlines()[-1]
    assert row == "| read 1 KB, modern | 534,489 | 4.0 | 3.0 | 1.5 | 0.5 |"


def test_every_exchange_of_the_table_has_a_name_of_its_own() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)


def test_missing_program_is_told_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MeasurementFailed, match="apt-get install valgrind"):
        instructions_of(STDIO_READ)
