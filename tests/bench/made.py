"""Results made from a script of latencies, without any server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from mcpmux.bench.results import About, FanOut, Generator, LoadDescription, Report, Results, generator_of
from mcpmux.bench.tally import Tally
from mcpmux.traffic.reading.histogram import Histogram

WHEN = "2026-11-01T12:00:00Z"


def about(name: str = "docs", when: str = WHEN, load: str = "open, 100/s, 20 s") -> About:
    return About(
        name=name,
        target=f"http://127.0.0.1:8000/{name}",
        transport="Streamable HTTP",
        revision="2026-07-28",
        when=when,
        load=LoadDescription(text=load, settings={"text": load}),
    )


def made(
    latency: Callable[[Random, float], float] = lambda random, at: random.lognormvariate(-5, 0.4),
    *,
    seed: int = 1,
    rate: float = 100,
    seconds: float = 20,
    outcome: Callable[[Random], str] = lambda random: "ok",
    operations: Iterable[str] = ("read",),
    name: str = "docs",
    when: str = WHEN,
    steps: Iterable[float] = (),
    fan_out: FanOut | None = None,
    generator: Generator | None = None,
) -> Results:
    """Return an open run: arrivals evenly at a rate (requests a second), latencies by a function of time.

    `steps`: rates one after the other, instead of `rate`, each for an equal part of the time.
    """
    random = Random(seed)
    tally = Tally(0.0, 0.0, seconds)
    rates = tuple(steps)
    names = tuple(operations)
    done = []
    for place, offered in enumerate(rates or (rate,)):
        part = seconds / max(len(rates), 1)
        for number in range(int(offered * part)):
            at = place * part + number / offered
            done.append((at + latency(random, at), at, random.choice(names), outcome(random)))
    begins = [place * seconds / len(rates) for place in range(len(rates))]
    for end, at, operation, how in sorted(done):
        while begins and begins[0] <= end:
            offered = rates[len(rates) - len(begins)]
            tally.begin_step(begins.pop(0), f"{offered:g}/s", offered=offered)
        tally.record(operation, at, at + 2e-5, end, how, 120, 900)
    for number in range(10):
        tally.connected(0.002 + number * 0.0003)
    return tally.results(
        about(name, when), seconds, generator or generator_of(0.2 * seconds, seconds), fan_out=fan_out
    )


def report(*results: Results) -> Report:
    machine: dict[str, str | int | float] = {"processors": 2}
    return Report(tool="mcpmux 0", when=WHEN, command="mcpmux bench", machine=machine, results=results)


def pushes(losses: int = 3) -> FanOut:
    delays = Histogram()
    for place in range(997):
        delays.record(0.001 + place * 1e-5)
    return FanOut(
        subscribers=100,
        resources=10,
        changes=10,
        expected=997 + losses,
        deliveries=997,
        duplicates=1,
        delay=delays.freeze(),
    )
