"""The live view shows what a tally counts, and says nothing where nobody looks on."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mcpmux.bench.live_view import LiveView
from mcpmux.bench.tally import Tally


def shown(terminal: bool, planned: float | None = 10.0, width: int = 100) -> str:
    file = io.StringIO()
    tally = Tally(0.0, warm_up=1.0)
    with LiveView(Console(file=file, force_terminal=terminal, width=width), "docs[bold]", planned) as view:
        view.update(tally.snapshot(0.5))
        for second in range(1, 6):
            for number in range(20 * second):
                at = second - 1 + number / 200
                tally.record("read", at, at, at + 0.012, "ok" if number else "timeout", 1, 1)
            if second == 4:
                tally.begin_step(4.0, "step 2")
            view.update(tally.snapshot(float(second), in_flight=3))
    return file.getvalue()


def test_it_shows_rate_errors_percentiles_and_how_far_it_is():
    text = shown(terminal=True)
    for words in (
        "docs[bold]",
        "5 s",
        " of 10 s",
        "100/s",
        "in flight",
        "(1.43 %)",
        "12.0 ms",
        "step 2",
        "█",
        "━",
    ):
        assert words in text, words
    first, *_ = text.split(" 2 s")
    assert "warm-up, not counted" in first


def test_it_is_quiet_when_not_on_a_terminal():
    assert shown(terminal=False) == ""


@pytest.mark.parametrize("width", [20, 40, 300])
def test_it_fits_into_any_terminal(width: int):
    assert "rate" in shown(terminal=True, planned=None, width=width)


def test_two_snapshots_of_one_moment_do_no_harm():
    tally = Tally(0.0)
    with LiveView(Console(file=io.StringIO(), force_terminal=True), "docs") as view:
        view.update(tally.snapshot(0.0))
        view.update(tally.snapshot(0.0))
