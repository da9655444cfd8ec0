"""Replicas of mcpmux for real clients: each request of a session meets another one, and some are stopped.

The clients know one URL, that of a haproxy which gives each request to the next replica. The replicas share a
real Redis. The servers are shared, too: they listen on HTTP.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPException

import pytest

from benchmarks.process import free_port
from tests.browser.sights import Asking
from tests.peers.blocking_client import HttpClient
from tests.peers.revision import LEGACY_REVISIONS, MODERN
from tests.real.cluster import Cluster, run_cluster
from tests.real.listener import LIST_CHANGED, UPDATED, Listener
from tests.real.merged import exposed_params, own_answer, part_of
from tests.real.mux import START_SECONDS, Json
from tests.real.sdk import CLIENTS
from tests.real.test_clients import asking_of, assert_same
from tests.real.walker import WALKERS, see
from tests.real.web_server import run_web_server
from tests.whole import WHOLE, when_whole

TEXT = "modern+memo://text"
WALKING = ("python-1.9.4", "typescript-1.17.5", "typescript-1.32.2", "python-2", "typescript-2")
"""One client of each revision, and each SDK that has modern clients."""
TURN_PAGES_THEMSELVES = ("typescript2.mjs",)  # their SDK gives whole lists
PAGE_SIZE = 3  # every list has several pages
WORKING = 4  # clients that are busy while a replica stops
ENOUGH = 20  # exchanges of each of them after that


@pytest.fixture(scope="module")
def upstreams(everything_command: list[str], sdk2_command: list[str]) -> Iterator[dict[str, Json]]:
    """Run two servers, one of each era, that all replicas reach."""
    port = free_port()
    everything = [everything_command[0], "streamableHttp"]
    modern = [*sdk2_command[:-1], "http", "0"]
    with (
        run_web_server(everything, f"listening on port {port}", {"PORT": str(port)}),
        run_web_server(modern, "listening on", {}) as listening,
    ):
        patience = {"connect_timeout": START_SECONDS, "list_timeout": START_SECONDS}
        yield {
            "everything": {"url": f"http://127.0.0.1:{port}/mcp", "session": "per-client", **patience},
            "modern": {"url": listening.split()[-1], **patience},
        }


@pytest.fixture(scope="module")
def cluster(upstreams: dict[str, Json], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run two replicas that are never stopped."""
    with run_cluster(tmp_path_factory.mktemp("cluster"), upstreams, page_size=PAGE_SIZE) as cluster:
        yield cluster


@contextmanager
def sessions_spread(cluster: Cluster) -> Iterator[None]:
    """Check that sessions are opened meanwhile, and that each of them meets every replica."""
    old = cluster.balancer.sessions()
    yield
    opened = {key: met for key, met in cluster.balancer.sessions().items() if key not in old}
    assert opened
    for session, met in opened.items():
        assert met == set(cluster.replicas), session


# Walks


@pytest.mark.parametrize(
    "name", [name for name, walker in WALKERS.items() if walker.http and (WHOLE or name in WALKING)]
)
def test_a_client_sees_through_replicas_what_it_sees_directly(
    cluster: Cluster, everything_command: list[str], sdk2_command: list[str], name: str
) -> None:
    walker = WALKERS[name]
    asking = {server: asking_of(walker, server) for server in ("everything", "modern")}
    commands = {"everything": everything_command, "modern": sdk2_command}
    direct = see(
        walker,
        {
            server: {"command": command, "read": True, "asking": asking[server]}
            for server, command in commands.items()
        },
    )
    exposed = [
        (method, exposed_params(method, params, server))
        for server, requests in asking.items()
        for method, params in requests
    ]
    with ExitStack() as spread:
        if not walker.modern:
            spread.enter_context(sessions_spread(cluster))
        count = len(cluster.balancer.served())
        merged = see(walker, {"all": {"url": cluster.url, "read": True, "asking": exposed}})["all"]
        assert {request.replica for request in cluster.balancer.served(count)} == set(cluster.replicas)
    assert merged["revision"] == walker.revision
    assert all(pages > 1 for pages in merged["pages"].values()) or walker.program in TURN_PAGES_THEMSELVES
    answers = iter(merged["answers"])
    for server, requests in asking.items():
        seen = part_of(merged, server)
        seen["answers"] = [own_answer(method, next(answers)) for method, _ in requests]
        assert_same(seen, direct[server], walker, server)


# Changes


def touch(url: str) -> None:
    """Have the modern server say that its text was updated, by a request that meets another replica."""
    call = {"name": "modern__touch", "arguments": {"uri": "memo://text"}}
    assert "touched" in str(HttpClient(url, MODERN).ask("tools/call", call)[-1]["result"])


@pytest.mark.parametrize("name", ["sdk1", "sdk2", *when_whole("sdk2-legacy")])
def test_an_update_arrives_whichever_replica_has_caused_it(
    request: pytest.FixtureRequest, cluster: Cluster, name: str
) -> None:
    with Listener(CLIENTS[name].found(request), cluster.url, [TEXT]) as listener:
        listener.expect_subscribed()
        for _ in cluster.replicas:
            listener.forget()
            touch(cluster.url)
            listener.hear(UPDATED, TEXT)
        listener.forget()
        HttpClient(cluster.url, MODERN).ask("tools/call", {"name": "modern__announce", "arguments": {}})
        listener.hear(LIST_CHANGED)


# Replicas that stop


@pytest.fixture(scope="module")
def replicas(upstreams: dict[str, Json], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with run_cluster(tmp_path_factory.mktemp("three"), upstreams, replicas=3) as cluster:
        yield cluster


@pytest.fixture
def three(replicas: Cluster) -> Cluster:
    """Yield replicas that the tests stop, all of them running."""
    replicas.start_missing()
    return replicas


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("sdk1", signal.SIGKILL),
        ("sdk2-legacy", signal.SIGTERM),
        *when_whole(("sdk2-legacy", signal.SIGKILL), ("sdk1", signal.SIGTERM)),
    ],
)
def test_the_session_of_an_sdk_goes_on_when_its_replica_ends(
    request: pytest.FixtureRequest, three: Cluster, name: str, number: int
) -> None:
    # Once: the SDKs give up a stream of which the connection has broken twice, however far apart.
    old, answered = three.balancer.sessions(), len(three.balancer.served())
    with Listener(CLIENTS[name].found(request), three.url, [TEXT]) as listener:
        listener.expect_subscribed()
        [session] = three.balancer.sessions().keys() - old.keys()
        three.stop(three.balancer.owner_of(session), number)
        assert listener.read(TEXT) == "héllo"
        listener.forget()
        touch(three.url)
        listener.hear(UPDATED, TEXT)
        assert three.balancer.sessions().keys() - old.keys() == {session}
        assert {request.status for request in three.balancer.served(answered)} <= {200, 202}


class Worker:
    """A client of one session that is always busy: it reads, calls, lists and subscribes in turn."""

    def __init__(self, url: str, revision: str) -> None:
        self.client = HttpClient(url, revision)
        assert "result" in self.client.hello()[-1]
        self.done = 0
        self.troubles: list[str] = []
        self.late_troubles: list[str] = []  # of requests that were made when the replica had stopped

    def work(self, stopped: threading.Event) -> None:
        """Work until ENOUGH was done in a row after the replica had stopped."""
        since = 0
        requests: list[Asking] = [
            ("resources/read", {"uri": TEXT}),
            ("tools/call", {"name": "modern__echo", "arguments": {"text": "here"}}),
            ("resources/list", {}),
            ("resources/subscribe", {"uri": TEXT}),
            ("tools/call", {"name": "modern__count", "arguments": {}, "_meta": {"progressToken": "n"}}),
        ]
        while since < ENOUGH:
            method, params = requests[self.done % len(requests)]
            after = stopped.is_set()
            try:
                answer = self.client.ask(method, params)[-1]
            except (OSError, HTTPException, AssertionError, json.JSONDecodeError) as error:
                answer = {"error": repr(error)}
            self.done += 1
            if "result" in answer:
                since += after
            else:
                self.troubles.append(f"{method}: {answer}")
                if after:
                    self.late_troubles.append(self.troubles[-1])
                assert len(self.troubles) < ENOUGH, self.troubles


@contextmanager
def working(cluster: Cluster) -> Iterator[list[Worker]]:
    """Keep clients busy meanwhile, and for a while after."""
    workers = [Worker(cluster.url, LEGACY_REVISIONS[number % 2 - 2]) for number in range(WORKING)]
    stopped = threading.Event()
    with ThreadPoolExecutor(WORKING) as pool:
        futures = [pool.submit(worker.work, stopped) for worker in workers]
        try:
            yield workers
        finally:
            stopped.set()
        for future in futures:
            future.result()


def test_busy_sessions_lose_nothing_but_what_a_killed_replica_had_in_hand(three: Cluster) -> None:
    count = len(three.balancer.served())
    with working(three) as workers:
        assert three.stop("a", signal.SIGKILL) == -signal.SIGKILL
    served = three.balancer.served(count)
    assert 404 not in {request.status for request in served}
    for worker in workers:
        # One request was under way at most, and one more may have met what the kernel had not closed yet.
        assert len(worker.troubles) <= 2, worker.troubles
        assert not worker.late_troubles


def test_no_request_fails_when_replicas_are_restarted_one_after_the_other(three: Cluster) -> None:
    count = len(three.balancer.served())
    with working(three) as workers:
        for name in list(three.replicas):
            three.balancer.drain(name)
            assert three.stop(name, signal.SIGTERM) == 0
            three.start(name)
            three.balancer.resume(name)
    assert [worker.troubles for worker in workers] == [[]] * WORKING
    assert {request.status for request in three.balancer.served(count)} <= {200, 202}
