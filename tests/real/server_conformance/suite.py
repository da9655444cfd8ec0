"""One run of the official conformance suite against a server, and its report.

The suite writes the checks of each scenario into a separate directory. The worst check determines the verdict
on a scenario: a failure, a warning, then success; without any of these it was skipped or is empty.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from tests.real.official_suite import run_official_suite

Json = dict[str, Any]

SUITE_SECONDS = 120  # for all scenarios of a revision, on a busy machine
VERDICTS = ("FAILURE", "WARNING", "SUCCESS", "SKIPPED")  # the worst first
EMPTY = "EMPTY"
IMPATIENT = "server-stateless"
"""Gives a server half a second for an answer, which a busy machine may miss: it has a second chance."""

_DIRECTORY = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z")


class Report(NamedTuple):
    """The result of a run: the verdict on each scenario, each check that held, each that did not and why."""

    verdicts: dict[str, str]
    held: set[tuple[str, str]]
    problems: list[str]

    @property
    def successful(self) -> set[str]:
        """The scenarios that are fulfilled."""
        return {scenario for scenario, verdict in self.verdicts.items() if verdict == "SUCCESS"}

    def corrected_by(self, later: Report) -> Report:
        """Return this report, corrected for the scenarios that a later run ran again."""
        held = {check for check in self.held if check[0] not in later.verdicts}
        problems = [text for text in self.problems if text.partition(":")[0] not in later.verdicts]
        return Report(self.verdicts | later.verdicts, held | later.held, problems + later.problems)


def run_suite(url: str, revision: str, directory: Path) -> Report:
    """Run all scenarios of a revision against the server at `url`."""
    report = _run(["--suite", "all"], url, revision, directory)
    if IMPATIENT in report.verdicts.keys() - report.successful:
        return report.corrected_by(_run(["--scenario", IMPATIENT], url, revision, directory / "again"))
    return report


def run_scenario(scenario: str, url: str, revision: str, directory: Path) -> Report:
    """Run one scenario against the server at `url`, which may be one of an extension."""
    return _run(["--scenario", scenario, "--force"], url, revision, directory)


def _run(which: list[str], url: str, revision: str, directory: Path) -> Report:
    options = ["--url", url, *which, "--spec-version", revision, "--output-dir", str(directory)]
    done = run_official_suite("server", *options, seconds=SUITE_SECONDS)
    report = read_report(directory)
    assert report.verdicts, f"the suite has not run:\n{done.stdout}{done.stderr}"
    return report


def read_report(directory: Path) -> Report:
    """Read the suite's output directory."""
    verdicts: dict[str, str] = {}
    held: set[tuple[str, str]] = set()
    problems: list[str] = []
    for path in sorted(directory.glob("*/checks.json")):
        named = _DIRECTORY.fullmatch(path.parent.name)
        assert named, f"{path.parent.name} does not look like a scenario of the suite"
        scenario, checks = named[1], json.loads(path.read_text())
        verdicts[scenario] = verdict = verdict_on(checks)
        held |= {(scenario, check["id"]) for check in checks if check["status"] == "SUCCESS"}
        problems += [f"{scenario}: {_describe(check)}" for check in checks if _is_problem(check)]
        if verdict == EMPTY:
            messages = [check.get("details", {}).get("message", check["description"]) for check in checks]
            problems.append(f"{scenario}: EMPTY: {messages[-1] if messages else 'no checks'}")
    return Report(verdicts, held, problems)


def verdict_on(checks: list[Json]) -> str:
    """Return the verdict on the checks of one scenario."""
    statuses = {check["status"] for check in checks}
    return next((verdict for verdict in VERDICTS if verdict in statuses), EMPTY)


def _is_problem(check: Json) -> bool:
    return check["status"] in ("FAILURE", "WARNING", "SKIPPED")


def _describe(check: Json) -> str:
    return f"{check['status']} {check['id']}: {check.get('errorMessage') or check['description']}"
