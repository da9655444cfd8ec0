"""The official suite's client scenarios, with mcpmux as the client: what its upstream side sends is right.

All of them but `auth/*`, in the revisions that the suite knows. Through mcpmux every check holds that holds
with the same client alone, in both eras of the client. With `MCPMUX_WHOLE` the client runs alone, too, which
shows the failures of the suite itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.client_conformance.suite import run_scenario
from tests.whole import WHOLE

SCENARIOS = [
    ("2025-06-18", "initialize", 1),
    ("2025-06-18", "tools_call", 2),
    ("2025-11-25", "initialize", 1),
    ("2025-11-25", "tools_call", 2),
    ("2025-11-25", "elicitation-sep1034-client-defaults", 5),
    ("2025-11-25", "sse-retry", 3),
    ("2025-11-25", "json-schema-2020-12-preservation", 9),
    ("2026-07-28", "tools_call", 2),
    ("2026-07-28", "request-metadata", 8),
    ("2026-07-28", "sep-2322-client-request-state", 5),
    ("2026-07-28", "http-standard-headers", 9),
    ("2026-07-28", "http-custom-headers", 18),
    ("2026-07-28", "http-invalid-tool-headers", 12),
    ("2026-07-28", "json-schema-ref-no-deref", 1),
    ("2026-07-28", "json-schema-2020-12-preservation", 9),
]
"""(revision of the suite's server, scenario, checks in it that are not skipped)."""

CROSSED = {
    "elicitation-sep1034-client-defaults",
    "sse-retry",
    "json-schema-2020-12-preservation",
    "sep-2322-client-request-state",
    "http-custom-headers",
    "http-invalid-tool-headers",
}
"""Where a client of the other era makes a difference.

Not so `request-metadata` and `http-standard-headers`: to serve a legacy client in its era mcpmux tries
`initialize`, which these take for a malformed modern request.
"""

RUNS = [
    (route, *scenario)
    for route in ("mcpmux", "crossed", *(("direct",) if WHOLE else ()))
    for scenario in SCENARIOS
    if route != "crossed" or scenario[1] in CROSSED
]
"""(route, revision, scenario, checks) of every run."""


@pytest.mark.parametrize(("route", "revision", "scenario", "checks"), RUNS)
def test_scenario(tmp_path: Path, route: str, revision: str, scenario: str, checks: int):
    verdict = run_scenario(revision, scenario, route, tmp_path / "first")
    if verdict.late:  # on a busy machine, through no fault of the client
        verdict = run_scenario(revision, scenario, route, tmp_path / "second")
    assert verdict.problems == [], verdict.output
    assert verdict.code == 0, verdict.output
    assert len(verdict.fulfilled) == checks, (sorted(verdict.fulfilled), verdict.output)
    assert "upstream down" not in verdict.output  # it may not take a second connection to get things right
