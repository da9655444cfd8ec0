"""The live view shows what a tally counts."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mcpmux.bench.tally import Tally
from mcpmux.cli.bench.run import LiveView


def shown(planned: float | None = 10.0, width: int = 100) -> str:
    file = io.StringIO()
    tally = Tally(0.0, warm_up=1.0)
    with LiveView(Console(file=file, force_terminal=True, width=width), "docs[bold]", planned) as view:
        view.show({"docs": tally.snapshot(0.5)})
        for second in range(1, 6):
            for number in range(20 * second):
                at = second - 1 + number / 200
                tally.record("read", at, at, at + 0.012, "ok" if number else "timeout", 1, 1)
            if second == 4:
                tally.begin_step(4.0, "step 2")
            view.show({"docs": tally.snapshot(float(second), in_flight=3)})
    return file.getvalue()


def test_it_shows_rate_errors_percentiles_and_how_far_it_is():
    text = shown()
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


@pytest.mark.parametrize("width", [20, 40, 300])
def test_it_fits_into_any_terminal(width: int):
    assert "rate" in shown(planned=None, width=width)


def test_two_snapshots_of_one_moment_do_no_harm():
    tally = Tally(0.0)
    with LiveView(Console(file=io.StringIO(), force_terminal=True), "docs") as view:
        view.show({"docs": tally.snapshot(0.0)})
        view.show({"docs": tally.snapshot(0.0)})


def test_each_run_of_a_target_has_its_own_rate():
    file = io.StringIO()
    with LiveView(Console(file=file, force_terminal=True, width=100), "docs") as view:
        for rate in (100, 20):
            tally = Tally(0.0)
            for second in range(2):
                for number in range(rate):
                    tally.record("read", second, second, second + number / rate, "ok", 1, 1)
                view.show({"docs": tally.snapshot(second + 1.0)})
    assert "20.0/s" in file.getvalue().rpartition("rate ")[2]


def side_by_side(names: list[str], height: int = 40, width: int = 140) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, height=height, color_system=None)
    tallies = {name: Tally(0.0) for name in names}
    with LiveView(console, "all of them", 10.0) as view:
        view.show({})
        for second in (1, 2):
            for place, (_name, tally) in enumerate(tallies.items()):
                for _ in range(10 * (place + 1)):
                    tally.record("read", second - 1, second - 1, second - 1 + 0.01 * (place + 1), "ok", 1, 1)
            snapshots = {name: tally.snapshot(float(second)) for name, tally in tallies.items()}
            view.show(snapshots, "run 2 of 5")
    return file.getvalue()


def test_several_targets_stand_side_by_side_each_with_its_own_numbers():
    text = side_by_side(["docs", "mail[bold]\x1b[31m"])
    last = text.rpartition("all of them")[2]
    assert "run 2 of 5" in last
    docs, mail = (line for line in last.splitlines() if line.startswith(("docs", "mail")))
    assert docs.split()[1] == "10.0/s"
    assert [word for word in ("20", "10.0") if word in docs.split()] == ["20", "10.0"]
    assert mail.startswith("mail[bold]\\x1b[31m")
    assert [word for word in ("40", "20.0") if word in mail.split()] == ["40", "20.0"]


@pytest.mark.parametrize("width", [40, 80, 300])
def test_more_targets_than_the_screen_is_high_are_counted(width: int):
    last = side_by_side([f"t{number}" for number in range(30)], height=12, width=width).rpartition("all of")[
        2
    ]
    assert "t7" in last
    assert "t8" not in last
    assert "and 22 more" in last
