"""Results as tables on a terminal and elsewhere: tables are complete, and names from servers do no harm."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from contextlib import redirect_stdout

import msgspec
import pytest

from mcpmux.bench.assertion import judge_all, parse_assertion
from mcpmux.bench.report.compare import compare_reports
from mcpmux.bench.report.tables import parts_of, verdicts_of
from mcpmux.bench.results import Results
from mcpmux.cli.bench.command import WRITTEN, bench, render, render_results
from tests.bench.made import about, made, report
from tests.bench.reported import EMPTY, STEPPED, WHOLE, broken, evil

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed_by(render: Callable[[], None], terminal: bool = False, width: int = 160) -> str:
    file = Screen() if terminal else io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(file):
        patch.setenv("COLUMNS", str(width))
        patch.setenv("TERM", "xterm-256color")
        patch.delenv("NO_COLOR", raising=False)
        render()
    return file.getvalue()


def printed(*results: Results, terminal: bool = False, width: int = 160) -> str:
    def show() -> None:
        render_results(results)
        render(parts_of(results, {}, ()))

    return printed_by(show, terminal, width)


def test_the_table_tells_everything():
    text = printed(WHOLE)
    for words in (
        "http://127.0.0.1:8000/docs  Streamable HTTP, 2026-07-28",
        "open, 100/s, 20 s; measured 20.0 s",
        "2,000", "p50", "p99.9", "max", "234 KiB", "1.72 MiB", "connect p50", "generator CPU", "20.0 %",
        "read", "list", "all", "rpc -32602", "timeout", "997 of 1,000",
    ):  # fmt: skip
        assert words in text, words


def test_targets_stand_side_by_side_with_what_spoils_them():
    text = printed(WHOLE, broken(STEPPED), EMPTY)
    throughput = text.split("Throughput\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in throughput] == ["target", "docs", "stepped", "empty"]
    for words in (
        "note: stepped: ended before its time: the server ended",
        "note: stepped: 3 requests had no answer",
        "note: stepped: the load generator used 100%",
        "no: p99 was 60 ms",
        "Steps of stepped",
        "Errors of docs",
    ):
        assert words in text, words


def test_a_few_requests_do_not_pretend_to_have_a_p99_9():
    assert "so p99.9 is the slowest of them" in printed(made(seconds=5))
    assert "so p99.9 is the slowest of them" not in printed(WHOLE)


def test_nothing_measured_is_told_as_nothing():
    text = printed(EMPTY)
    assert "-" in text.split()
    assert "nan" not in text


def test_where_nobody_looks_on_there_are_no_colours_and_nothing_is_cut():
    long = msgspec.structs.replace(WHOLE, about=about("x" * 150))
    text = printed(long, STEPPED, width=40)
    assert "\x1b" not in text
    assert "…" not in text
    assert "x" * 150 in text
    assert not any(line.endswith(" ") for line in text.splitlines())
    assert "\x1b[" in printed(WHOLE, terminal=True)


def test_strangers_texts_do_not_reach_a_terminal_raw():
    assert not CONTROL.search(printed(evil()))
    assert "[bold]" in printed(evil())


def test_comparisons_and_judgements_are_printed():
    slow = made(lambda random, at: random.lognormvariate(-4, 0.4), seed=5)
    conditions = [parse_assertion("p99<1us"), parse_assertion("rate>1/s")]
    comparisons, judgements = compare_reports(report(made()), report(slow)), judge_all(conditions, [slow])
    parts = *parts_of([slow], {"docs": "200/s held"}, comparisons), verdicts_of(judgements)
    text = printed_by(lambda: render(parts))
    assert "docs: 200/s held\n" in text
    assert "docs: compared 1 old and 1 new run, in turns, pair by pair" in text
    assert re.search(r"p50 .* \+.* % \(.*\)  too few runs", text)
    assert "note: with fewer than 5 runs" in text
    assert "✗ docs: p99<1us does not hold" in text
    assert "✓ docs: rate>1/s holds" in text


def test_written_options_hold_no_secrets_and_no_targets():
    words = ["http://127.0.0.1/mcp?key=1", "--token", "secret", "--header", "X-Key=secret", "--rate", "200"]
    context = bench.make_context("bench", [*words, "--do", "8 read a*", "--do", "list tools", "--even"])
    assert context.meta[WRITTEN] == ["--do", "8 read a*", "--do", "list tools", "--rate", "200", "--even"]
