"""The text format, read back by the parser of the Prometheus client library."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from mcpmux import __version__
from mcpmux.config import Caching
from mcpmux.traffic.telemetry.metrics import SECONDS, Metrics
from mcpmux.traffic.telemetry.prometheus import Family, gauge, mux_gauges, render, snapshot
from tests.peers.server import ScriptedServer
from tests.runtime.world import open_world
from tests.traffic.test_metrics import Play


def rendered(metrics: Metrics, gauges: Iterable[Family] = ()) -> bytes:
    return render(snapshot(metrics, gauges))


def parse(text: bytes) -> dict[str, dict[tuple[str, ...], float]]:
    """Sample name → values of its labels, by their names → value, as the oracle reads it."""
    samples: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text.decode()):
        assert family.documentation, family.name
        assert family.type in ("counter", "gauge", "histogram")
        for sample in family.samples:
            labels = tuple(sample.labels.values())
            assert labels not in samples.setdefault(sample.name, {}), "a sample is there twice"
            samples[sample.name][labels] = sample.value
    return samples


def test_nothing_counted_is_valid_text():
    assert parse(rendered(Metrics())) == {"mcpmux_build_info": {(__version__,): 1.0}}


async def test_counts_are_read_back():
    play = Play()
    await play.exchange("resources/read", {}, "docs")
    length = play.say(play.client, "out", method="notifications/message")
    metrics = parse(rendered(play.metrics))
    assert metrics["mcpmux_messages_total"]["in", "request", "client", "http"] == 1
    assert metrics["mcpmux_message_bytes_total"]["out", "notification", "client", "http"] == length
    assert metrics["mcpmux_notifications_total"]["out", "client", "notifications/message"] == 1
    assert metrics["mcpmux_exchanges_total"]["resources/read", "ok", "docs"] == 1
    assert metrics["mcpmux_exchanges_in_flight"][("resources/read",)] == 0


async def test_buckets_are_cumulative_and_end_with_the_count():
    play = Play()
    for seconds in (0.0, 0.003, 0.003, 7.0, 1000.0):
        await play.exchange("tools/call", {}, "docs")
        durations = play.metrics.exchange_duration_seconds["tools/call", "docs"]
        durations[-1] += seconds - 1
        durations[SECONDS.index(1.0)] -= 1
        durations[bisect_left(SECONDS, seconds)] += 1
    metrics = parse(rendered(play.metrics))
    name = "mcpmux_exchange_duration_seconds"
    buckets = {float(labels[0]): value for labels, value in metrics[f"{name}_bucket"].items()}
    assert list(buckets) == [*SECONDS, math.inf]
    assert buckets[0.001] == 1 and buckets[0.0025] == 1 and buckets[0.005] == 3
    assert buckets[5.0] == 3 and buckets[10.0] == 4 and buckets[60.0] == 4 and buckets[math.inf] == 5
    assert metrics[f"{name}_count"]["tools/call", "docs"] == 5
    assert metrics[f"{name}_sum"]["tools/call", "docs"] == pytest.approx(1007.006)


async def test_what_is_counted_while_the_text_is_made_is_not_in_it():
    play = Play()
    await play.exchange("tools/call", {}, "docs")
    families = snapshot(play.metrics, [gauge("x", "x", len(play.metrics.exchanges_total))])
    metrics = parse(render(families))
    await play.exchange("tools/call", {}, "docs")
    await play.exchange("ping", {})
    assert parse(render(families)) == metrics


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_any_label_value_comes_back_as_it_was(text: str):
    family = Family("mcpmux_x", 'help with a \\ and a "quote"\nand a line', ("a",), {(text,): 2})
    assert parse(render([family]))["mcpmux_x"] == {(text,): 2.0}


@given(st.floats(allow_nan=False))
def test_any_number_comes_back_as_it_was(value: float):
    metrics = parse(rendered(Metrics(), [gauge("x", "x", value)]))
    assert metrics["mcpmux_x"] == {(): value}


async def test_upstreams_and_clients_are_gauges(autojump_clock: object):
    servers = {
        "docs": ScriptedServer(resources=[{"uri": "memo:1", "name": "1"}]),
        "gone": None,
    }
    async with open_world(servers) as world:
        await world.mux.upstreams.settled(legacy=False)
        metrics = parse(rendered(Metrics(), mux_gauges(world.mux.upstreams, world.mux.hub)))
        assert metrics["mcpmux_upstream_up"] == {("docs",): 1, ("gone",): 0}
        assert metrics["mcpmux_upstream_connects_total"] == {("docs",): 1, ("gone",): 0}
        assert metrics["mcpmux_upstream_reconnects_total"] == {("docs",): 0, ("gone",): 0}
        assert metrics["mcpmux_upstream_sessions"] == {("docs",): 1, ("gone",): 0}
        assert metrics["mcpmux_client_sessions"] == {(): 0}
        client = world.client()
        await client.initialize("2025-06-18")
        await world.kill("docs")
        await client.request("resources/list")
        metrics = parse(rendered(Metrics(), mux_gauges(world.mux.upstreams, world.mux.hub)))
        assert metrics["mcpmux_upstream_connects_total"]["docs",] == 2
        assert metrics["mcpmux_upstream_reconnects_total"]["docs",] == 1
        assert metrics["mcpmux_client_sessions"] == {(): 1}
        assert metrics["mcpmux_listening_clients"] == {(): 1}


async def test_what_is_served_from_memory_is_counted(autojump_clock: object):
    server = ScriptedServer(
        resources=[], capabilities={"resources": {"listChanged": True}}, revision="2025-11-25"
    )
    async with open_world({"docs": server}, caching=Caching(trust_announcements=True)) as world:
        await world.mux.upstreams.settled(legacy=False)
        client, store = world.client(), world.mux.store
        for _ in range(3):
            await client.request("resources/list")
        metrics = parse(rendered(Metrics(), mux_gauges(world.mux.upstreams, world.mux.hub, store)))
        assert metrics["mcpmux_cache_hits_total"] == {("docs",): 0, ("",): 2}
        assert metrics["mcpmux_cache_misses_total"] == {("docs",): 1, ("",): 1}
        assert metrics["mcpmux_cache_shared_total"] == {("docs",): 0, ("",): 0}
        assert metrics["mcpmux_cache_entries"] == {(): 2}
        assert metrics["mcpmux_cache_bytes"][()] == store.cache.bytes > 0
