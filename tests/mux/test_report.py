"""Reports of a mcpmux behind another one, good and bad."""

from __future__ import annotations

from typing import Any

import pytest

from mcpmux.mux.report import ITEMS, LEFT_OUT, expose_upstream, left_out_in, problems_in, reports_in
from mcpmux.protocol.envelope import raw

LATE = "Upstream 'docs' did not answer tools/list within 10 s"


@pytest.mark.parametrize("meta", [{}, {"example.com/x": 1}, [LEFT_OUT], LEFT_OUT])
def test_other_members_are_no_reports(meta: Any):
    assert reports_in(raw(meta)) == {}


def test_upstreams_have_the_name_of_their_mcpmux_in_front():
    entry = {"state": "ready", "reason": LATE}
    reports = reports_in(raw({LEFT_OUT: {"docs": entry, "b/web": entry}}))
    assert left_out_in(reports, "a") == {
        "a/docs": {"state": "ready", "reason": LATE.replace("docs", "a/docs")},
        "a/b/web": {"state": "ready", "reason": LATE},
    }


@pytest.mark.parametrize("reported", [1, [], ["docs"], {"docs": 1}, {"docs": [LATE]}])
def test_a_report_that_is_none_names_no_upstream(reported: Any):
    assert left_out_in({LEFT_OUT: reported}, "a") == {}


def test_a_report_is_bounded():
    left_out = left_out_in({LEFT_OUT: {f"u{n}": {"reason": "x" * 10_000} for n in range(1000)}}, "a")
    assert len(left_out) == 100
    assert {len(entry["reason"]) for entry in left_out.values()} == {1000}
    [(_, problem, _)] = problems_in({ITEMS: {"docs": [{"item": "t", "problem": "x" * 10_000}]}})
    assert len(problem) == 1000


@pytest.mark.parametrize(
    ("reported", "problems"),
    [
        ({"docs": [{"item": "docs__t", "problem": "p", "leftOut": True}]}, [("docs__t", "p", True)]),
        ({"docs": [{"problem": "cut", "leftOut": False}]}, [(None, "docs: cut", False)]),
        ({"docs": [{"item": 1, "problem": "p"}, {"item": "t"}, 1], "x": 1}, [(None, "docs: p", False)]),
        (1, []),
    ],
)
def test_problems_are_those_of_items_or_of_a_whole_list(reported: Any, problems: list[Any]):
    assert list(problems_in({ITEMS: reported})) == problems


def test_only_the_name_of_an_upstream_is_exposed_in_a_sentence():
    assert expose_upstream(f"docs: {LATE}", "docs", "a") == f"docs: {LATE.replace('docs', 'a/docs')}"
