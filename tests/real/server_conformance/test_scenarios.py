"""The official suite's server scenarios, all of them, with mcpmux in front of a server that passes them.

Through mcpmux every check holds that holds with the server alone: behind it as the only upstream, with two
more beside it, in a view that has all of it and none of them, and behind replicas of which each request
meets the next one. Where client and server have no revision in common, all scenarios hold whose tools such a
server can have.

Each server with each revision is in one place, so that every place has each server and each revision once: a
place changes messages by their kind, not by their server. With `MCPMUX_WHOLE` each is in every place.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.process.running import demo_command
from tests.real.cluster import run_cluster
from tests.real.mux import START_SECONDS, HttpMux, Json, stdio, write_config
from tests.real.official_suite import official_node
from tests.real.parts import npm_env, pip_env
from tests.real.server_conformance.suite import Report, run_suite
from tests.real.web_server import run_web_server
from tests.whole import WHOLE

HERE = Path(__file__).parent

LEGACY = ("2025-03-26", "2025-06-18", "2025-11-25")
MODERN = "2026-07-28"
SCENARIOS = {"2025-03-26": 1, "2025-06-18": 27, "2025-11-25": 33, MODERN: 40}
"""How many the suite has for each revision."""

SPOKEN = {"sdk1": LEGACY, "sdk2": (*LEGACY, MODERN), "typescript": (*LEGACY, MODERN), "modern": (MODERN,)}
"""The servers, and the revisions that they speak without mcpmux."""

BESIDE = ("notes", "clock")  # one of each era

ONLY, BESIDE_OTHERS, IN_A_VIEW, BEHIND_REPLICAS = "only", "beside-others", "in-a-view", "behind-replicas"
PLACES = (ONLY, BESIDE_OTHERS, IN_A_VIEW, BEHIND_REPLICAS)
RUNS = [
    (name, revision, place)
    for row, name in enumerate(SPOKEN)
    for column, revision in enumerate(SCENARIOS)
    for number, place in enumerate(PLACES)
    if number == (row + column) % len(PLACES) or WHOLE
]

NOT_IN_SESSIONS = frozenset(
    {
        "server-stateless",  # an error code for a capability that the client lacks is for modern servers
        "input-required-result-basic-elicitation",  # the server's key for a question
        "input-required-result-ignore-extra-params",  # an answer before the question
        "input-required-result-multiple-input-requests",  # three questions in one result
    }
)
"""What needs something that a server of sessions has no words for."""

# Made only for an event stream, where mcpmux may answer in JSON or with the stream still open.
ONLY_IN_STREAMS = {
    ("server-sse-multiple-streams", "server-sse-streams-functional"),
    ("server-sse-polling", "server-sse-disconnect-resume"),
}


def everything_command(name: str) -> list[str]:
    """Return the command that starts one of the servers."""
    if name in ("sdk1", "sdk2"):
        return [str(pip_env(name)), str(HERE / f"everything_{name}.py")]
    era = "modern" if name == "modern" else "both"
    return [official_node(), str(HERE / "everything.cjs"), era]


@pytest.fixture(scope="session")
def everything() -> Iterator[Callable[[str], str]]:
    """Yield a function from a server's name to its URL, which starts the server at its first call."""
    urls: dict[str, str] = {}
    with ExitStack() as running:

        def find(name: str) -> str:
            if name not in urls:
                env = {} if name.startswith("sdk") else {"NODE_PATH": str(npm_env("everything"))}
                server = run_web_server(everything_command(name), "listening on", env)
                urls[name] = running.enter_context(server).split()[-1]
            return urls[name]

        yield find


@pytest.fixture
def through_mux(everything, tmp_path) -> Callable[[str, str, str], Report]:
    """Return a function that runs the suite against a server with mcpmux in front."""

    def find(name: str, revision: str, place: str) -> Report:
        upstream = {"url": everything(name), "prefix": "", "list_timeout": START_SECONDS}
        upstreams: dict[str, Json] = {"everything": upstream}
        if place == BEHIND_REPLICAS:
            with run_cluster(tmp_path, upstreams) as cluster:
                report = run_suite(cluster.url, revision, tmp_path / "through")
                assert {request.replica for request in cluster.balancer.served()} == set(cluster.replicas)
                return report
        if place != ONLY:
            upstreams |= {other: stdio(shlex.split(demo_command(other))) for other in BESIDE}
        views: Json = {"whole": {"include": [{"upstream": "everything"}]}}
        path = "/whole" if place == IN_A_VIEW else ""
        with HttpMux(write_config(tmp_path, upstreams, views=views)) as mux:
            return run_suite(f"{mux.url}{path}", revision, tmp_path / "through")

    return find


def runs(*, spoken: bool) -> pytest.MarkDecorator:
    """Mark a test with the runs whose server speaks the revision, or does not."""
    selected = [run for run in RUNS if (run[1] in SPOKEN[run[0]]) is spoken]
    return pytest.mark.parametrize(("name", "revision", "place"), selected)


@runs(spoken=True)
def test_checks_that_hold_without_mcpmux_hold_through_it(
    everything, through_mux, tmp_path, name, revision, place
):
    direct = run_suite(everything(name), revision, tmp_path / "direct")
    demand_all(direct, revision)
    report = through_mux(name, revision, place)
    demand_all(report, revision)
    assert report.verdicts.keys() == direct.verdicts.keys()
    assert direct.held - report.held <= ONLY_IN_STREAMS


@runs(spoken=False)
def test_client_has_all_that_a_server_of_the_other_era_can_have(through_mux, name, revision, place):
    but = NOT_IN_SESSIONS if revision == MODERN else frozenset()
    demand_all(through_mux(name, revision, place), revision, but)


def demand_all(report: Report, revision: str, but: frozenset[str] = frozenset()) -> None:
    """Check that every scenario of the revision is fulfilled, except those in `but`."""
    problems = [problem for problem in report.problems if problem.partition(":")[0] not in but]
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)
    assert len(report.successful | but) == SCENARIOS[revision]
