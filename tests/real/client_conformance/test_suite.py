"""Reading the suite's report."""

from __future__ import annotations

import pytest

from tests.real.client_conformance.suite import Json, Verdict


def check(status: str, **more: object) -> Json:
    return {"name": status.title(), "status": status, "description": "something holds", **more}


LATE = check("WARNING", details={"slightlyLate": True})


def test_failures_and_warnings_are_problems_with_their_words():
    checks = [check("SUCCESS"), check("INFO"), check("SKIPPED"), check("FAILURE", errorMessage="it does not")]
    verdict = Verdict(1, [*checks, check("WARNING", details={"a": 1})], "")
    assert verdict.problems == [
        "FAILURE Failure: it does not {}",
        'WARNING Warning: something holds {"a": 1}',
    ]
    assert verdict.fulfilled == {"Success"}


@pytest.mark.parametrize(
    ("checks", "late"),
    [
        ([LATE, check("SUCCESS")], True),
        ([LATE, check("FAILURE")], False),
        ([LATE, check("WARNING", details={})], False),
        ([check("WARNING")], False),
        ([check("SUCCESS", details={"slightlyLate": True})], False),
        ([], False),
    ],
)
def test_only_a_little_delay_and_nothing_else_is_late(checks: list[Json], late: bool):
    assert Verdict(1, checks, "").late is late
