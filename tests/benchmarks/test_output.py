"""A report goes by its day and its machine, unless a user says where it goes."""

from __future__ import annotations

import platform
import re
from datetime import date

import pytest
from click.testing import CliRunner

from benchmarks import output, run
from benchmarks.output import RESULTS, heading, machine_name, processor, result_path
from benchmarks.run import default_output


@pytest.fixture(autouse=True)
def _a_xeon(monkeypatch: pytest.MonkeyPatch) -> None:
    class Day(date):
        @classmethod
        def today(cls) -> Day:
            return cls(2026, 11, 27)

    monkeypatch.setattr(output, "date", Day)
    monkeypatch.setattr(output, "processor", lambda: "Intel(R) Xeon(R) Processor @ 2.60GHz")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Intel(R) Xeon(R) Processor @ 2.60GHz", "intel-xeon"),
        ("Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz", "intel-xeon-platinum-8370c"),
        ("AMD EPYC", "amd-epyc"),
        ("AMD EPYC 7763 64-Core Processor", "amd-epyc-7763"),
        ("Intel(R) Core(TM) i7-8565U CPU @ 1.80GHz", "intel-core-i7-8565u"),
        ("aarch64", "aarch64"),
        ("../../x", "x"),
        ("", "unknown"),
    ],
)
def test_a_processor_has_a_short_name_in_lower_case(model, name):
    assert machine_name(model) == name


def test_a_processor_has_its_model_or_its_architecture_as_name():
    assert processor("processor\t: 0\nmodel name\t: AMD EPYC\nflags\t: fpu\n") == "AMD EPYC"
    assert processor("processor\t: 0\nmodel name\t:\nflags\t: fpu\n") == platform.machine()
    assert processor("processor\t: 0\nBogoMIPS\t: 50.00\n") == platform.machine()


def test_a_report_is_named_after_its_day_and_machine():
    assert result_path() == RESULTS / "2026-11-27-intel-xeon.md"
    assert result_path("peers", "part") == RESULTS / "2026-11-27-intel-xeon-peers-part.md"
    assert heading() == "# Benchmarks of 2026-11-27, Intel(R) Xeon(R) Processor @ 2.60GHz"


@pytest.mark.parametrize(
    ("quick", "only", "without"), [(True, (), ()), (False, ("read",), ()), (False, (), ("peers",))]
)
def test_a_run_that_leaves_something_out_does_not_replace_a_whole_one(quick, only, without):
    assert default_output(quick=quick, only=only, without=without).name == "2026-11-27-intel-xeon-part.md"
    assert default_output(quick=False, only=(), without=()).name == "2026-11-27-intel-xeon.md"


def test_help_says_where_a_report_goes():
    shown = CliRunner().invoke(run.main, ["--help"]).output
    assert re.search(r"benchmarks/results/DATE-\s*MACHINE", shown)
