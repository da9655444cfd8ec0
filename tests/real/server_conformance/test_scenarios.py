"""The official suite's server scenarios, all of them, with mcpmux in front of a server that passes them.

Through mcpmux every check holds that holds with the server alone: behind it as the only upstream, with two
more beside it, in a view that has all of it and nothing of them, and behind replicas of which each request
meets the next one. Where client and server have no revision
in common, all scenarios hold whose tools such a server can have.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.process.running import demo_command
from tests.real.cluster import run_cluster
from tests.real.mux import START_SECONDS, HttpMux, Json, stdio, write_config
from tests.real.parts import npm_env, pip_env
from tests.real.server_conformance.suite import Report, run_suite
from tests.real.web_server import run_web_server

HERE = Path(__file__).parent

LEGACY = ("2025-03-26", "2025-06-18", "2025-11-25")
MODERN = "2026-07-28"
SCENARIOS = {"2025-03-26": 1, "2025-06-18": 27, "2025-11-25": 33, MODERN: 40}
"""How many the suite has for each revision."""

SPOKEN = {"sdk1": LEGACY, "sdk2": (*LEGACY, MODERN), "typescript": (*LEGACY, MODERN), "modern": (MODERN,)}
"""The servers, and the revisions that they speak without mcpmux."""

BESIDE = ("notes", "clock")  # one of each era

ONLY, BESIDE_OTHERS, IN_A_VIEW, BEHIND_REPLICAS = "only", "beside-others", "in-a-view", "behind-replicas"
ALWAYS = {
    ("sdk1", "2025-03-26", ONLY),
    ("sdk1", "2025-11-25", ONLY),
    ("sdk2", MODERN, BESIDE_OTHERS),
    ("typescript", "2025-06-18", ONLY),
    ("modern", MODERN, ONLY),
    ("modern", "2025-11-25", ONLY),
    ("sdk1", MODERN, BESIDE_OTHERS),
    ("sdk2", MODERN, IN_A_VIEW),
    ("typescript", "2025-11-25", IN_A_VIEW),
    ("sdk1", "2025-06-18", IN_A_VIEW),
    ("sdk1", "2025-11-25", BEHIND_REPLICAS),
    ("sdk2", MODERN, BEHIND_REPLICAS),
}
"""(server, revision, place) of what is not slow: every server, revision, place, and way between the eras."""

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
    """The command that starts one of the servers."""
    if name in ("sdk1", "sdk2"):
        return [str(pip_env(name)), str(HERE / f"everything_{name}.py")]
    era = "modern" if name == "modern" else "both"
    return [str(npm_env("conformance") / ".bin" / "node"), str(HERE / "everything.cjs"), era]


@pytest.fixture(scope="session")
def everything() -> Iterator[Callable[[str], str]]:
    """The URL of a server by its name; it starts when it is first asked for."""
    urls: dict[str, str] = {}
    with ExitStack() as running:

        def find(name: str) -> str:
            if name not in urls:
                env = {} if name.startswith("sdk") else {"NODE_PATH": str(npm_env("everything"))}
                server = run_web_server(everything_command(name), "listening on", env)
                urls[name] = running.enter_context(server).split()[-1]
            return urls[name]

        yield find


@pytest.fixture(scope="session")
def alone(everything, tmp_path_factory) -> Callable[[str, str], Report]:
    """What the suite finds in a server without mcpmux."""
    found: dict[tuple[str, str], Report] = {}

    def find(name: str, revision: str) -> Report:
        if (name, revision) not in found:
            found[name, revision] = run_suite(everything(name), revision, tmp_path_factory.mktemp("alone"))
        return found[name, revision]

    return find


@pytest.fixture
def through_mux(everything, tmp_path) -> Callable[[str, str, str], Report]:
    """What the suite finds in a server with mcpmux in front."""

    def find(name: str, revision: str, place: str) -> Report:
        upstream = {"url": everything(name), "prefix": "", "list_timeout": START_SECONDS}
        upstreams: dict[str, Json] = {"everything": upstream}
        if place == BEHIND_REPLICAS:
            with run_cluster(tmp_path, upstreams) as cluster:
                report = run_suite(cluster.url, revision, tmp_path / "through")
                assert {each.replica for each in cluster.balancer.served()} == set(cluster.replicas)
                return report
        if place != ONLY:
            upstreams |= {other: stdio(shlex.split(demo_command(other))) for other in BESIDE}
        views: Json = {"whole": {"include": [{"upstream": "everything"}]}}
        path = "/whole" if place == IN_A_VIEW else ""
        with HttpMux(write_config(tmp_path, upstreams, views=views)) as mux:
            return run_suite(f"{mux.url}{path}", revision, tmp_path / "through")

    return find


def runs(wanted: Iterable[tuple[str, str]]) -> list[object]:
    """Each server and revision in every place."""
    return [
        pytest.param(*run, marks=() if run in ALWAYS else pytest.mark.slow, id="-".join((place, *pair)))
        for place in (ONLY, BESIDE_OTHERS, IN_A_VIEW, BEHIND_REPLICAS)
        for pair in wanted
        for run in [(*pair, place)]
    ]


@pytest.mark.parametrize(
    ("name", "revision", "place"),
    runs([(name, revision) for name, spoken in SPOKEN.items() for revision in spoken]),
)
def test_every_check_that_holds_without_mcpmux_holds_through_it(alone, through_mux, name, revision, place):
    direct = alone(name, revision)
    demand_all(direct, revision)
    found = through_mux(name, revision, place)
    demand_all(found, revision)
    assert found.verdicts.keys() == direct.verdicts.keys()
    assert direct.held - found.held <= ONLY_IN_STREAMS


@pytest.mark.parametrize(("name", "revision", "place"), runs([("modern", revision) for revision in LEGACY]))
def test_a_client_of_sessions_has_everything_of_a_modern_server(through_mux, name, revision, place):
    demand_all(through_mux(name, revision, place), revision)


@pytest.mark.parametrize(("name", "revision", "place"), runs([("sdk1", MODERN)]))
def test_a_modern_client_has_all_that_a_server_of_sessions_can_have(through_mux, name, revision, place):
    demand_all(through_mux(name, revision, place), MODERN, but=NOT_IN_SESSIONS)


def demand_all(found: Report, revision: str, but: frozenset[str] = frozenset()) -> None:
    """Every scenario of the revision is fulfilled, whatever becomes of those in `but`."""
    problems = [problem for problem in found.problems if problem.partition(":")[0] not in but]
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)
    assert len(found.successful | but) == SCENARIOS[revision]
