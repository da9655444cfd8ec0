"""Several runs of one target told as one: each request is counted once."""

from __future__ import annotations

import msgspec
import pytest

from mcpmux.bench.report.tables import tables_of
from mcpmux.bench.results import Generator, by_name, pool, pooled
from tests.bench.made import made, pushes
from tests.bench.reported import broken

RUNS = [made(seed=seed, operations=("read", "list"), rate=100 * seed) for seed in (1, 2, 3)]


def test_counts_times_and_bytes_add_up():
    whole = pool(RUNS)
    assert whole.seconds == sum(run.seconds for run in RUNS)
    assert set(whole.operations) == {"read", "list"}
    for name, part in whole.operations.items():
        parts = [run.operations[name] for run in RUNS]
        assert part.count == sum(run.count for run in parts)
        assert part.latency.count == sum(run.latency.count for run in parts)
        assert part.latency.most == max(run.latency.most for run in parts)
        assert part.sent_bytes == sum(run.sent_bytes for run in parts)
    assert whole.rate(whole.overall()) == pytest.approx(200, rel=0.01)
    assert whole.connections.count == 30
    assert sum(whole.series.count) == pytest.approx(whole.overall().count, rel=0.01)


def test_a_single_run_is_what_it_was():
    assert pool(RUNS[:1]) is RUNS[0]


def test_what_spoils_one_run_spoils_the_whole():
    stopped = broken(made(steps=(10, 20)))
    busy = msgspec.structs.replace(made(steps=(10, 20)), generator=Generator(cpu_share=1.0, warning="busy"))
    whole = pool([made(steps=(10, 20)), stopped, busy])
    assert (whole.stopped, whole.unfinished, whole.generator.warning) == ("the server ended", 3, "busy")
    assert [step.count for step in whole.steps] == [3 * step.count for step in busy.steps]


def test_pushes_add_up():
    whole = pool([made(fan_out=pushes(3)), made(fan_out=pushes(4)), made()]).fan_out
    assert whole is not None
    assert (whole.changes, whole.losses, whole.delay.count) == (20, 7, 2 * 997)


def test_targets_are_told_apart_and_their_runs_stand_in_a_table():
    results = [made(name=name, seed=seed) for seed in (1, 2) for name in ("docs", "mail")]
    assert {name: len(runs) for name, runs in by_name(results).items()} == {"docs": 2, "mail": 2}
    assert [result.about.name for result in pooled(results)] == ["docs", "mail"]
    tables = {table.title: table for table in tables_of(results)}
    assert [row[0].text for row in tables["Throughput"].rows] == ["docs", "mail"]
    for name in ("docs", "mail"):
        rows = [[cell.text for cell in row] for row in tables[f"Runs of {name}"].rows]
        assert [row[0] for row in rows] == ["1", "2", "spread"]
        assert rows[0][1] == "2,000"
        assert rows[-1][3].startswith("±")
