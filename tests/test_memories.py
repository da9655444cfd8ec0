"""Memories that keep texts of peers: filled with the longest texts that peers may send, they stay small.

A row fills one memory through its public methods. A bound on the number of entries alone lets each of these
hold tens or hundreds of MiB.
"""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from mcpmux.app.workers.traffic_forwarder import TrafficCollector
from mcpmux.channels.tap import Leg
from mcpmux.config import AccessRule, Capture, CaptureRule
from mcpmux.mux.pattern import URI_LIMIT, matches_template
from mcpmux.mux.policy import Policy, Rule
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.headers import OriginPolicy, ToolHeaders
from mcpmux.protocol.principal import Principal
from mcpmux.protocol.raw_json import SHORT_CHARS
from mcpmux.traffic.admin.ring import LiveRing
from mcpmux.traffic.capture.capture import Levels
from mcpmux.traffic.capture.line import to_record
from mcpmux.traffic.observer import Observation
from mcpmux.traffic.reading import summary
from mcpmux.traffic.reading.summary import Summarizer, Targets, pair_up
from mcpmux.traffic.record import Run
from mcpmux.traffic.recorder import observe
from mcpmux.traffic.redaction.redactor import Redactor
from mcpmux.transports.http.message import encode_request_head, encode_response_head
from tests.traffic.made import record

MIB = 2**20
HEAD = 60_000  # characters of a field; all fields of a head may have 64 KiB


def long(number: int, length: int = SHORT_CHARS, letter: str = "\N{SNOWMAN}") -> str:
    """Return another text for each number."""
    return f"{number}/".ljust(length, letter)


def levels_of_methods() -> object:
    levels = Levels(Capture(level="full", rules=(CaptureRule(upstream="hr", level="off"),)), {"hr": "hr"})
    leg = Leg("upstream", "hr", "stdio", "hr")
    for number in range(3000):
        levels.level(Observation(leg, "out", b"{}", 0.0, "request", number + 1, long(number), 1))
    return levels


def requests_without_answers() -> object:
    leg, numbers = Leg("client", "c1", "http"), itertools.count(1)
    for number in range(2000):
        message = {"jsonrpc": "2.0", "id": long(number), "method": long(number)}
        observe(
            [Observation(leg, "in", msgspec.json.encode(message), 0.0)],
            numbers,
            itertools.count(1),
        )
    return leg


def rules_by_method() -> object:
    policy = Policy([Rule(AccessRule(effect="allow"), "1")])
    for number in range(3000):
        policy.decide(Principal("a"), "docs", long(number), None)
    return policy


def rules_by_view() -> object:
    policy = Policy([Rule(AccessRule(effect="allow"), "1")])
    for number in range(3000):
        policy.decide(Principal("a", view=long(number)), "docs", "tools/call", "x")
    return policy


def hosts_and_origins() -> object:
    policy = OriginPolicy("127.0.0.1", (), ())
    for number in range(300):
        policy.refuses(long(number, HEAD, "x"), long(number, HEAD, "y"))
        policy.grants(long(number, HEAD, "z"))
    return policy


def templates() -> object:
    for number in range(2000):
        matches_template(long(number, URI_LIMIT), "docs:///a")
    return None


def annotated_tools() -> object:
    headers = ToolHeaders()
    schema = {"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "A"}}}
    for start in range(0, 3000, 100):
        tools = [{"name": long(start + number), "inputSchema": schema} for number in range(100)]
        headers.learn({"tools": raw(tools)})
    return headers


def request_heads() -> object:
    for number in range(1000):
        encode_request_head("POST", "/mcp", (("Mcp-Session-Id", long(number, HEAD, "x")),))
    return None


def response_heads() -> object:
    for number in range(1000):
        encode_response_head(302, (("Location", long(number, HEAD, "x")),))
    return None


def sessions() -> object:
    run, redactor = Run("run", 0.0, 0.0), Redactor()
    for number in range(1000):
        leg = Leg("upstream", "docs", "http", "docs", session=long(number, HEAD, "x"))
        to_record(Observation(leg, "in", b"{}", 0.0, "result"), run, redactor)
    return redactor


def targets() -> object:
    memory = Targets()
    for number in range(3000):
        memory.fill(record(number, id=number, target=long(number)))
    return memory


def requests_to_pair() -> object:
    pairs = pair_up(record(number, id=number, target=long(number)) for number in range(3000))
    return pairs, sum(1 for _ in itertools.islice(pairs, 2900))


def exchanges_to_sum_up() -> object:
    summarizer = Summarizer()
    for number in range(3000):
        list(summarizer.add(record(number, id=1, exchange=number + 1, target=long(number))))
    return summarizer


ROWS: list[tuple[Callable[[], object], int]] = [
    (levels_of_methods, 2 * MIB),
    (requests_without_answers, 2 * MIB),
    (rules_by_method, 6 * MIB),
    (rules_by_view, 6 * MIB),
    (hosts_and_origins, MIB),
    (templates, 12 * MIB),
    (annotated_tools, 6 * MIB),
    (request_heads, 16 * MIB),
    (response_heads, 16 * MIB),
    (sessions, 2 * MIB),
    (targets, 4 * MIB),
    (requests_to_pair, 4 * MIB),
    (exchanges_to_sum_up, 4 * MIB),
]


def kept_by(fill: Callable[[], object]) -> int:
    """Return the bytes that are held after `fill`, as long as what it returns is."""
    gc.collect()
    tracemalloc.start()
    try:
        held = fill()
        gc.collect()
        size = tracemalloc.get_traced_memory()[0]
        del held
        return size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("fill", "most"), ROWS, ids=[fill.__name__ for fill, _ in ROWS])
def test_a_memory_of_texts_of_peers_is_bounded_in_bytes(
    monkeypatch: pytest.MonkeyPatch, fill: Callable[[], object], most: int
) -> None:
    monkeypatch.setattr(summary, "OPEN_BYTES", 2 * MIB, raising=False)  # the real one would take long to fill
    assert kept_by(fill) < most


async def test_legs_of_workers_are_bounded_in_bytes() -> None:
    collector = TrafficCollector(LiveRing(1, MIB), 2)
    collector.begin(1)
    seen = Observation(Leg("client", "c1", "http"), "in", b"{}", 0.0, "notification", 0, "x")

    def fill() -> Any:
        for number in range(1000):
            facts = ("client", f"c{number}", "http", None, None, long(number, HEAD, "x"), long(number))
            collector.take(1, [(facts, 2, ("in", b"{}", 0.0, *seen.facts()))])
        return collector

    assert kept_by(fill) < 12 * MIB
