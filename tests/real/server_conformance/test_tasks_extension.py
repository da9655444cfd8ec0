"""The official scenarios for the Tasks extension, with mcpmux in front of a server that passes them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.running import demo_command
from tests.real.cluster import run_cluster
from tests.real.mux import HttpMux, Json, stdio, write_config
from tests.real.server_conformance.suite import run_scenario
from tests.real.web_server import run_web_server

MODERN = "2026-07-28"
SERVER = Path(__file__).with_name("tasks_server.py")
SCENARIOS = (  # but one that the suite itself skips
    "tasks-capability-negotiation",
    "tasks-dispatch-and-envelope",
    "tasks-lifecycle",
    "tasks-mrtr-composition",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-request-state-removal",
    "tasks-required-task-error",
    "tasks-wire-fields",
)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Run the server, and yield its URL."""
    with run_web_server([sys.executable, str(SERVER)], "listening on", {}) as line:
        yield line.split()[-1]


@pytest.fixture(scope="module")
def ways(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Run mcpmux in front of it: one process beside another server, and replicas with requests in turns."""
    upstreams: dict[str, Json] = {"jobs": {"url": server, "prefix": ""}}
    beside = {**upstreams, "notes": stdio(shlex.split(demo_command("notes")))}
    with (
        HttpMux(write_config(tmp_path_factory.mktemp("one"), beside)) as mux,
        run_cluster(tmp_path_factory.mktemp("replicas"), upstreams) as cluster,
    ):
        yield {"beside others": mux.url, "replicas": cluster.url}
        assert {request.replica for request in cluster.balancer.served()} == set(cluster.replicas)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_check_of_the_extension_holds_through_mcpmux(
    scenario: str, server: str, ways: dict[str, str], tmp_path: Path
) -> None:
    direct = run_scenario(scenario, server, MODERN, tmp_path / "direct")
    assert direct.successful == {scenario}
    for way, url in ways.items():
        assert run_scenario(scenario, url, MODERN, tmp_path / way) == direct, way
