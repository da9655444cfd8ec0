"""The official suite's `auth/*` client scenarios, with mcpmux's commands as the client.

In the newest revision that has them, and some in an older one; also those of the extensions that mcpmux has.
Where the suite's authorization server does what a client must refuse, mcpmux has to say why it gave up, for a
client that just ends is not wrong, either.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.client_conformance.suite import run_auth_scenario

SCENARIOS = [
    ("2026-07-28", "metadata-default", 16),
    ("2026-07-28", "metadata-var1", 16),
    ("2026-07-28", "metadata-var2", 16),
    ("2026-07-28", "metadata-var3", 16),
    ("2026-07-28", "basic-cimd", 10),
    ("2026-07-28", "scope-from-www-authenticate", 12),
    ("2026-07-28", "scope-from-scopes-supported", 12),
    ("2026-07-28", "scope-omitted-when-undefined", 12),
    ("2026-07-28", "scope-step-up", 14),
    ("2026-07-28", "scope-retry-limit", 11),
    ("2026-07-28", "token-endpoint-auth-basic", 17),
    ("2026-07-28", "token-endpoint-auth-post", 17),
    ("2026-07-28", "token-endpoint-auth-none", 17),
    ("2026-07-28", "pre-registration", 10),
    ("2026-07-28", "offline-access-scope", 10),
    ("2026-07-28", "offline-access-not-supported", 12),
    ("2026-07-28", "authorization-server-migration", 14),
    ("2026-07-28", "iss-supported", 12),
    ("2026-07-28", "iss-not-advertised", 12),
    ("2026-07-28", "client-credentials-jwt", 5),
    ("2026-07-28", "client-credentials-basic", 5),
    ("2026-07-28", "enterprise-managed-authorization", 6),
    ("2025-11-25", "metadata-default", 15),
    ("2025-11-25", "basic-cimd", 10),
    ("2025-11-25", "scope-step-up", 12),
    ("2025-11-25", "pre-registration", 10),
    ("2025-06-18", "token-endpoint-auth-basic", 16),
    ("2025-03-26", "2025-03-26-oauth-metadata-backcompat", 9),
    ("2025-03-26", "2025-03-26-oauth-endpoint-fallback", 4),
]
"""(revision of the suite's server, scenario, checks in it that hold)."""

REFUSED = [
    ("resource-mismatch", 2, "its resource metadata is that of another resource"),
    ("iss-supported-missing", 8, "the answer does not say that it is of"),
    ("iss-wrong-issuer", 8, "the answer is not of"),
    ("iss-unexpected", 8, "the answer is not of"),
    ("iss-normalized", 8, "the answer is not of"),
    ("metadata-issuer-mismatch", 3, "is that of another issuer"),
]
"""(scenario, checks in it that hold, what mcpmux says of it), in the newest revision."""

ALWAYS = {("2026-07-28", "basic-cimd"), ("2026-07-28", "scope-step-up"), ("2026-07-28", "iss-wrong-issuer")}
"""One plain login, one that has to be done again, one that is refused; the rest takes minutes."""


def runs() -> list[object]:
    """Return (revision, scenario, checks, mcpmux's refusal if any) of every run."""
    scenarios = [(*scenario, None) for scenario in SCENARIOS]
    refused = [("2026-07-28", *scenario) for scenario in REFUSED]
    return [
        pytest.param(*run, marks=() if run[:2] in ALWAYS else pytest.mark.slow)
        for run in (*scenarios, *refused)
    ]


@pytest.mark.parametrize(("revision", "scenario", "checks", "refusal"), runs())
def test_auth_scenario(tmp_path: Path, revision: str, scenario: str, checks: int, refusal: str | None):
    verdict = run_auth_scenario(revision, f"auth/{scenario}", tmp_path)
    assert verdict.problems == [], verdict.output
    assert verdict.code == 0, verdict.output
    assert len(verdict.fulfilled) == checks, (sorted(verdict.fulfilled), verdict.output)
    if refusal is not None:
        assert refusal in verdict.output
        assert "Logged in" not in verdict.output
