from __future__ import annotations

import json

import pytest

from tests.real.server_conformance.suite import Report, read_report, verdict_on


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [
        (["SUCCESS", "INFO"], "SUCCESS"),
        (["SUCCESS", "WARNING"], "WARNING"),
        (["WARNING", "FAILURE", "SUCCESS"], "FAILURE"),
        (["SKIPPED", "INFO"], "SKIPPED"),
        (["SKIPPED", "SUCCESS"], "SUCCESS"),
        (["INFO"], "EMPTY"),
        ([], "EMPTY"),
    ],
)
def test_a_scenario_counts_for_the_worst_of_its_checks(statuses, verdict):
    assert verdict_on([{"status": status} for status in statuses]) == verdict


def test_a_report_names_each_scenario_and_what_is_wrong_with_it(tmp_path):
    written = {
        "server-ping-2026-11-21T11-39-30-237Z": [
            {"id": "ping", "status": "SUCCESS", "description": "It answers"},
            {"id": "wire", "status": "FAILURE", "description": "It is valid", "errorMessage": "It is not"},
        ],
        "server-server-sse-2026-11-21T11-39-31-001Z": [
            {"id": "kind", "status": "INFO", "description": "Its kind", "details": {"message": "It was JSON"}}
        ],
    }
    for name, checks in written.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "checks.json").write_text(json.dumps(checks))
    report = read_report(tmp_path)
    assert report.verdicts == {"ping": "FAILURE", "server-sse": "EMPTY"}
    assert report.successful == set()
    assert report.held == {("ping", "ping")}
    assert report.problems == ["ping: FAILURE wire: It is not", "server-sse: EMPTY: It was JSON"]


def test_a_later_run_replaces_what_it_ran_and_nothing_else():
    first = Report({"a": "FAILURE", "b": "WARNING"}, {("a", "1"), ("b", "1")}, ["a: x", "b: y"])
    later = Report({"a": "SUCCESS"}, {("a", "2")}, [])
    assert first.corrected_by(later) == Report(
        {"a": "SUCCESS", "b": "WARNING"}, {("a", "2"), ("b", "1")}, ["b: y"]
    )
