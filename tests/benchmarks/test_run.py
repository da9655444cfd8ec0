"""The benchmark runs from end to end. Its values are not judged here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.bench import UPSTREAMS, Bench, Effort
from benchmarks.load import run_bench
from benchmarks.naming import READ, exposed_subjects, exposed_uri, http_config
from benchmarks.process import Child, MeasurementFailed, Process
from benchmarks.proxies import PROXIES
from benchmarks.report import NOT_MEASURED, Row
from benchmarks.run import ASKED_FOR, NAMES, SCENARIOS, SECTIONS, Scenario, chosen, measure
from benchmarks.upstream import LEGACY
from tests.real.parts import program

PROJECT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 240

LEAN = "read 1 KB, 64 connections, modern, lean servers"
BESIDE = ("nginx", "haproxy", "a relay of bytes")
QUICK = (
    LEAN,
    *(f"{LEAN}: {name} in place of mcpmux" for name in BESIDE),
    f"{LEAN}: mcpmux beside nginx",
    "read 1 KB, 64 connections, modern",
    "read 1 KB, 64 connections, legacy",
    "read 2 MB, 4 connections, modern",
    "latency of a 1 KB read, 1 connection, mcpmux on its own core, p50",
    "latency of a 1 KB read, 1 connection, mcpmux on its own core, p99",
    "list 5 × 1,000 resources, pages of 100 at 0 ms, cold",
    "list 5 × 1,000 resources, pages of 100 at 10 ms, cold",
    "first 1,000 of 5 × 1,000 resources, remembered",
    "read 1 KB, 64 connections, modern, 100 public URIs of a server that takes 20 ms",
    "read 1 KB from a stdio upstream, 64 at a time",
    "start to first answer, 5 upstreams",
    "resident memory, idle, 10 upstreams",
)
SLOW = (
    "call a tool, 64 connections, modern",
    "latency of a 1 KB read, 1 connection, all on one core, p50",
    "latency of a 1 KB read, 1 connection, all on one core, p99",
    "read 1 KB from a stdio upstream for a stdio client, 64 in flight, modern",
    "read 1 KB, 64 connections, modern, full capture (direct: without)",
    "read 1 KB, 64 connections, modern, capture of metadata (direct: without)",
    "read 1 KB, 64 connections, modern, audit log (direct: without)",
    "read 1 KB, 64 connections, modern, admin listener with its inspector (direct: without)",
    "read 1 KB, 64 connections, modern, full capture, audit log and admin listener (direct: without)",
    "read 1 KB, 64 connections, modern, full capture, audit log and admin listener, both cores",
    "read 1 KB, 64 connections, modern, TLS to clients (direct: without)",
    "read 1 KB, 64 connections, modern, TLS to servers (direct: without)",
    "read 1 KB, 64 connections, modern, a static token (direct: without)",
    "read 1 KB, 64 connections, modern, a JWT (direct: without)",
    "memory of each of 32 reads of 2 MB in flight (direct: the payload)",
)
SLOW_NAMES = (
    *("call", "latency-one-core", "stdio-client"),
    *("capture", "capture-metadata", "audit", "admin", "watched", "watched-both"),
    *("tls-clients", "tls-servers", "token", "jwt", "large-memory"),
)


def test_quick_leaves_out_what_takes_long():
    quick = chosen(quick=True, only=(), without=())
    assert set(quick) < set(SCENARIOS)
    assert set(quick).isdisjoint(SECTIONS)


def test_everything_is_measured_unless_told_otherwise():
    assert chosen(quick=False, only=(), without=()) == [name for name in NAMES if name not in ASKED_FOR]
    assert "peers" not in chosen(quick=False, only=(), without=("peers",))


def test_only_names_what_quick_would_leave_out():
    assert chosen(quick=True, only=("peers", "call"), without=()) == ["call", "peers"]


def test_late_rows_are_measured_once():
    effort = Effort(runs=3, seconds=1)
    assert Bench(effort, print, 3600).effort == effort
    assert Bench(effort, print, 0).effort == effort._replace(runs=1)


def measured(report: Path, *options: str) -> list[list[str]]:
    """Return the rows of the report of a run with these options."""
    command = [sys.executable, "-m", "benchmarks.run", *options, "--runs=1", "--seconds=1"]
    ran = subprocess.run(
        [*command, f"--output={report}"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert report.read_text() == ran.stdout
    rows = [line.split(" | ") for line in report.read_text().splitlines() if line.startswith("| ")]
    return rows[2:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "measures"),
    [(("--quick",), QUICK), (("--quick", *(f"--only={name}" for name in SLOW_NAMES)), SLOW)],
    ids=["quick", "the rest"],
)
def test_report_has_a_row_for_every_measure(tmp_path, options, measures):
    for proxy in PROXIES.values() if measures is QUICK else ():
        program(proxy.command[0], proxy.package)
    report = tmp_path / "report.md"
    rows = measured(report, *options)
    names = [row[0].removeprefix("| ") for row in rows]
    assert len(names) >= len(measures)
    assert all(any(name.startswith(measure) for name in names) for measure in measures), names
    assert not any(NOT_MEASURED in row[-1] for row in rows)
    text = report.read_text()
    assert re.search(r"\d+ of \d+ goals were met in this run", text)
    assert re.search(r"It took \d+ s\.", text)
    picture = ElementTree.parse(report.with_suffix(".svg")).getroot()
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}circle"))) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("sessions", [0, 2], ids=["a session each", "shared sessions"])
def test_load_goes_over_sessions_of_legacy_clients(sessions: int) -> None:
    program("wrk")
    bench = Bench(Effort(1, 1), lambda _text: None)
    load = READ._replace(era=LEGACY, connections=8)
    with ExitStack() as stack:
        upstream = stack.enter_context(bench.upstream(UPSTREAMS, "--era=legacy"))
        mux = stack.enter_context(bench.mux(http_config(upstream.lines(UPSTREAMS))))
        subjects = exposed_subjects(load, UPSTREAMS)
        assert bench.load(load, mux.lines(1), subjects, sessions=sessions).exchanges >= 1


@pytest.mark.slow
def test_wrong_answers_end_a_run() -> None:
    program("wrk")
    bench = Bench(Effort(1, 1), lambda _text: None)
    with bench.upstream(1) as upstream, pytest.raises(MeasurementFailed, match="answers were wrong"):
        bench.load(READ._replace(size=2000), upstream.lines(1), READ.subjects)


@pytest.mark.slow
def test_bench_puts_load_on_servers_of_the_oldest_transport() -> None:
    core = min(os.sched_getaffinity(0))
    with Child(["benchmarks.upstream", *["--port=0"] * UPSTREAMS, "--era=legacy"], core) as upstream:
        command = ["mcpmux", "serve", "-", "--http", "127.0.0.1:0", "--log-level", "error"]
        with Child(command, core, http_config(upstream.lines(UPSTREAMS))) as mux:
            url = mux.lines(1)[0].replace("/mcp", "/sse")
            options = ["--sessions=8", "--do", f"read {exposed_uri(0)}"]
            assert run_bench(url, 8, 1, {core}, *options).exchanges >= 1


def test_lines_that_come_together_are_read_one_by_one() -> None:
    words = "print('http://one http://two', 'three', sep=chr(10)); print('four')"
    with Process([sys.executable, "-c", words], os.sched_getaffinity(0)) as process:
        assert [process.lines(1), process.lines(1)] == [["http://one http://two"], ["three"]]
        assert process.output(TIMEOUT_SECONDS) == b"four\n"


def test_a_measurement_on_one_core_leaves_the_others_free(monkeypatch) -> None:
    seen: list[set[int]] = []

    def look(_bench: Bench) -> list[Row]:
        seen.append(os.sched_getaffinity(0))
        return []

    cores = os.sched_getaffinity(0)
    monkeypatch.setitem(SCENARIOS, "read", Scenario(look, quick=True))
    bench = Bench(Effort(1, 1), lambda _text: None)
    assert measure(bench, ["read"]) == []
    assert seen == [{bench.load_core}]
    assert os.sched_getaffinity(0) == cores
