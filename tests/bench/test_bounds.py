"""The load generator's memory does not depend on how many requests it makes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from itertools import islice
from random import Random
from types import FunctionType, ModuleType
from typing import Any

import pytest
import trio

from mcpmux.bench import answer
from mcpmux.bench.answer import Checker
from mcpmux.bench.drive import Drive
from mcpmux.bench.operation import Ask, parse_arguments
from mcpmux.bench.plan import Plan
from mcpmux.bench.push import Deliveries
from mcpmux.bench.schedule import Ramp, arrivals
from mcpmux.bench.tally import Tally
from mcpmux.bench.workload import bind_mix, parse_flow
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import raw
from tests.bench.scripted_load import DelayedServer, ping_mix

FEW, MANY = 4_000, 40_000
ROOM = 1.1  # how much larger something may be after ten times as many


def size_of(thing: object) -> int:
    """Return the bytes of everything reachable from an object, without classes, functions and modules."""
    seen: set[int] = set()
    waiting: list[object] = [thing]
    size = 0
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, type | ModuleType | FunctionType):
            continue
        seen.add(id(item))
        size += sys.getsizeof(item)
        waiting += gc.get_referents(item)
    return size


def tally_of(count: int) -> Tally:
    """Return the tally of a minute, with many names and kinds of errors, some late, some slow."""
    random = Random(1)
    tally = Tally(0.0, 1.0, 60.0)
    for number in range(5):
        tally.begin_step(number * 10.0, f"{number}/s")
    for number in range(count):
        at = number / count * 60
        sent = at + random.choice((0.0, 0.001))
        outcome = random.choice(("ok", "ok", "timeout", f"rpc {random.randrange(100)}"))
        name = f"tool {random.randrange(8)}"
        tally.record(name, at, sent, sent + random.choice((0.001, 0.002, 1.0)), outcome, 10, 10)
        if number % 100 == 0:
            tally.connected(0.01, random.choice(("ok", f"http {random.randrange(400, 600)}")))
            tally.lost_connection()
    return tally


def checker_of(count: int) -> Checker:
    checker = Checker("hash")
    for number in range(count):
        ask = Ask("template", Call("resources/read", {}, {}), f"memo:{number}")
        checker.judge(ask, {"contents": raw([number])})
    return checker


def deliveries_of(count: int) -> Deliveries:
    deliveries, random = Deliveries(50, 10), Random(1)
    for number in range(count // 50):
        uri = f"memo:{number % 10}"
        deliveries.change(uri, float(number))
        for subscriber in range(50):
            deliveries.hear(subscriber, uri, number + random.choice((0.01, 0.02)))
    return deliveries


def mix_of(count: int) -> object:
    flows = [parse_flow('2 tool echo {"text": "{{n}}"}'), parse_flow("1 read")]
    mix = bind_mix(flows, tuple(f"memo:{number}" for number in range(100)), Random(1))
    for _ in range(count):
        mix.next()
    return mix


def template_of(count: int) -> object:
    """Check that no made arguments are kept."""
    template = parse_arguments('{"a": "{{n}}", "b": {{1..9}}}')
    flow = bind_mix([parse_flow('tool t {"a": "{{n}}"}')], (), Random(1))
    for _ in range(count):
        flow.next()
    return template, flow


def schedule_of(count: int) -> object:
    random = Random(1)
    moments = arrivals((Ramp(1000.0, 1000.0, 1e6),), random)
    for _ in islice(moments, count):
        pass
    return moments


GROWING: dict[str, Callable[[int], object]] = {
    "tally": tally_of,
    "checker": checker_of,
    "deliveries": deliveries_of,
    "mix": mix_of,
    "templates": template_of,
    "schedule": schedule_of,
}


@pytest.mark.parametrize("make", GROWING.values(), ids=GROWING)
def test_ten_times_as_many_take_no_more_memory(make: Callable[[int], object], monkeypatch: Any) -> None:
    monkeypatch.setattr(answer, "MOST_KNOWN", 1000)
    few, many = size_of(make(FEW)), size_of(make(MANY))
    assert few > 500
    assert many <= few * ROOM


def test_the_size_of_what_grows_is_seen() -> None:
    assert size_of(list(range(MANY))) > 5 * size_of(list(range(FEW)))


class Counter:
    """Only counts."""

    def __init__(self) -> None:
        self.count = 0

    def record(self, *_: object) -> None:
        self.count += 1


@pytest.mark.parametrize("open_model", [False, True])
async def test_a_drive_keeps_nothing_of_its_requests(autojump_clock, open_model: bool) -> None:
    sizes = []
    for seconds in (5.0, 50.0):
        recorder = Counter()
        model: dict[str, Any] = (
            {"rate": "100", "even": True, "in_flight": 4} if open_model else {"clients": 4}
        )
        plan = Plan(duration=seconds, warm_up=0.0, **model)
        server = DelayedServer(lambda _at, _number: 0.02)
        drive = Drive(plan, server.sessions, ping_mix(), recorder.record, Random(1))
        await drive.run(trio.current_time())
        assert recorder.count > 90 * seconds
        drive._scope = drive._turn = None  # type: ignore[assignment]  # they reach into trio itself
        drive._workers = [None for _ in drive._workers]  # type: ignore[misc]
        sizes.append(size_of(drive))
    assert sizes[1] <= sizes[0] * ROOM
