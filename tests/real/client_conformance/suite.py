"""One run of the official conformance suite against a client, and what it found."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.real.official_suite import official_node, run_official_suite
from tests.real.parts import npm_env

Json = dict[str, Any]

SUITE_SECONDS = 60  # for the client to finish, on a busy machine
AUTH_SECONDS = 240  # for the client of `auth/*`, which is up to six runs of mcpmux
STOP_SECONDS = 20  # more, for the suite itself

_ADAPTER = "tests.real.client_conformance.adapter"
_AUTH_CLIENT = "tests.real.client_conformance.auth_client"


class Verdict(NamedTuple):
    """The result of one run. `output` is everything that suite and client printed."""

    code: int
    checks: list[Json]
    output: str

    @property
    def problems(self) -> list[str]:
        """Each check that is not fulfilled; a warning counts, as it does for the suite."""
        return [_describe(check) for check in self.checks if check["status"] in ("FAILURE", "WARNING")]

    @property
    def late(self) -> bool:
        """Whether the one problem is that the client did something right, but a little late."""
        statuses = [check["status"] for check in self.checks]
        details = [check.get("details", {}) for check in self.checks if check["status"] == "WARNING"]
        return "FAILURE" not in statuses and len(details) == 1 and details[0].get("slightlyLate") is True

    @property
    def fulfilled(self) -> set[str]:
        """The names of the checks that were made and held."""
        return {check["name"] for check in self.checks if check["status"] == "SUCCESS"}


def _describe(check: Json) -> str:
    text = check.get("errorMessage") or check["description"]
    return f"{check['status']} {check['name']}: {text} {json.dumps(check.get('details', {}))}"


def run_scenario(revision: str, scenario: str, route: str, directory: Path) -> Verdict:
    """Run one scenario over a route of the adapter. `directory` takes the suite's files."""
    client = [_ADAPTER, route, official_node(), str(npm_env("clients"))]
    return _run(revision, scenario, client, directory, SUITE_SECONDS)


def run_auth_scenario(revision: str, scenario: str, directory: Path) -> Verdict:
    """Run one of `auth/*`, where mcpmux's commands are the client. `directory` takes the suite's files."""
    return _run(revision, scenario, [_AUTH_CLIENT], directory, AUTH_SECONDS)


def _run(revision: str, scenario: str, module: list[str], directory: Path, seconds: int) -> Verdict:
    """Run the suite. `module`: our client, and its arguments before the URL. `seconds`: its limit."""
    client = shlex.join([sys.executable, "-m", *module])
    options = ["--scenario", scenario, "--spec-version", revision, "--output-dir", str(directory)]
    options += ["--force", "--timeout", str(seconds * 1000)]  # extensions belong to no revision
    done = run_official_suite("client", "--command", client, *options, seconds=seconds + STOP_SECONDS)
    checks = [check for path in directory.rglob("checks.json") for check in json.loads(path.read_text())]
    outputs = [path.read_text() for path in directory.rglob("std*.txt")]
    return Verdict(done.returncode, checks, "\n".join([done.stdout, done.stderr, *outputs]))
