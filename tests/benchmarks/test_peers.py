"""Peers are configured as they want it, and one that cannot run says why instead of spoiling the rest."""

from __future__ import annotations

import json
import os
import select
import shlex
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.bench import UPSTREAMS
from benchmarks.load import Tally
from benchmarks.peers import context_forge, envoy, fast_mcp, node
from benchmarks.peers.install import NPM, CannotRun, Environment, Installed, complaint, install, run, stamp_of
from benchmarks.peers.measure import Result, summed_up, table
from benchmarks.peers.peer import READ_ITEMS, Launch, Peer, Running, Shape, Site, listening
from benchmarks.process import free_port
from benchmarks.report import MET, NOT_MEASURED, NOT_MET, Pair
from benchmarks.run import PEERS
from benchmarks.upstream import TOOL, item_uri

URLS = [f"http://127.0.0.1:{9000 + number}/mcp" for number in range(UPSTREAMS)]
COMMAND = ["python", "-m", "a server", "--stdio"]
READY_SECONDS = 20


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(Installed(tmp_path / "installed", NPM), tmp_path, 8123, URLS, COMMAND)


def written(site: Site, name: str) -> dict:
    return json.loads((site.folder / name).read_text())


def test_mcp_hub_gets_every_server_and_a_fresh_catalogue(site):
    launch = node.start_hub(site)
    assert list(written(site, "servers.json")["mcpServers"].values()) == [{"url": url} for url in URLS]
    assert f"--config={site.folder}/servers.json" in launch.command
    assert "--port=8123" in launch.command
    catalogue = Path(launch.environment["XDG_DATA_HOME"], "mcp-hub/cache/registry.json")
    assert json.loads(catalogue.read_text())["lastFetchedAt"] > time.time() * 1000 - 60_000


def test_1mcp_gets_every_server(site):
    launch = node.start_one(site)
    assert [server["url"] for server in written(site, "servers.json")["mcpServers"].values()] == URLS
    assert f"--config={site.folder}/servers.json" in launch.command


def test_fastmcp_is_told_port_and_servers_in_its_own_python(site):
    launch = fast_mcp.start(site)
    assert launch.command[0] == site.installed.python
    assert list(launch.command[-6:]) == ["8123", *URLS]
    assert fast_mcp.PROGRAM.is_file()


def test_context_forge_has_a_database_of_its_own(site):
    launch = context_forge.start(site)
    assert launch.environment["DATABASE_URL"] == f"sqlite:///{site.folder}/gateway.db"
    assert "--port=8123" in launch.command


def test_envoy_has_a_cluster_for_every_server_and_one_thread(site):
    launch = envoy.start(site)
    config = written(site, "envoy.json")["static_resources"]
    clusters = [cluster["load_assignment"]["endpoints"][0] for cluster in config["clusters"]]
    addresses = [item["lb_endpoints"][0]["endpoint"]["address"]["socket_address"] for item in clusters]
    assert addresses == [{"address": "127.0.0.1", "port_value": 9000 + number} for number in range(UPSTREAMS)]
    (manager,) = config["listeners"][0]["filter_chains"][0]["filters"]
    parsing, routing = (part["typed_config"] for part in manager["typed_config"]["http_filters"])
    assert parsing["@type"].endswith(".http.mcp.v3.Mcp")
    assert [server["name"] for server in routing["servers"]] == [item["name"] for item in config["clusters"]]
    assert launch.command[launch.command.index("--concurrency") + 1] == "1"


def test_bridges_get_the_command_of_the_server(site):
    launched = node.start_supergateway(site).command
    assert shlex.split(launched[launched.index("--stdio") + 1]) == COMMAND
    launched = node.start_proxy(site).command
    assert list(launched[launched.index("--") + 1 :]) == COMMAND


@pytest.mark.parametrize(
    ("peer", "exposed"),
    [
        (node.MCP_HUB, "s1__bench:///item/1"),
        (fast_mcp.PEER, "bench://s1//item/1"),
        (envoy.PEER, "s1+bench:///item/1"),
        (node.SUPERGATEWAY, "bench:///item/1"),
    ],
    ids=lambda value: value.name if isinstance(value, Peer) else "",
)
def test_subjects_are_named_as_the_peer_names_them(peer, exposed):
    subjects = peer.subjects(UPSTREAMS)
    assert len(subjects) == READ_ITEMS
    assert subjects[1] == exposed


def test_tools_of_every_server_are_called_where_uris_are_not_told_apart():
    names = [f"s{number}-{TOOL}" for number in range(UPSTREAMS)]
    assert context_forge.PEER.subjects(UPSTREAMS) == names


def test_every_peer_is_pinned_or_is_refused_by_the_registry():
    for peer in PEERS.values():
        first = peer.environment.requirements[0]
        assert first.startswith(peer.environment.package)
        assert first != peer.environment.package or peer is node.ONE_MCP
        assert peer.load.subjects in ([TOOL], [item_uri(number) for number in range(READ_ITEMS)])


def test_result_divides_the_rate_of_mcpmux_by_the_peers():
    pairs = [tallies(100, 1100), tallies(100, 900), tallies(200, 2100)]
    result = summed_up(node.MCP_HUB, "1.2", str(Shape(64)), pairs)
    assert result.times == (10.5, 9.0, 11.0)
    assert (result.met, result.peer_rate, result.mux_rate) == (MET, 100, 1100)
    assert summed_up(node.MCP_HUB, "1.2", "", pairs[1:2]).met == NOT_MET
    assert summed_up(node.SUPERGATEWAY, "4", "", pairs[1:2]).met == MET
    assert summed_up(envoy.PEER, "1", "", [tallies(100, 101)]).met == MET
    assert summed_up(envoy.PEER, "1", "", [tallies(100, 99)]).met == NOT_MET


def tallies(peer: int, mux: int) -> Pair:
    direct, through = (Tally(count, 1.0, 0.1, 1e-3, 1e-3) for count in (peer, mux))
    return Pair(direct, through, 50e-6, 500e-6)


def test_table_has_a_line_for_each_peer_or_the_reason():
    results = [
        summed_up(node.SUPERGATEWAY, "4.0.0", str(Shape(8, 4)), [tallies(100, 1234)]),
        Result(node.ONE_MCP, trouble="npm error 404 | not found"),
    ]
    lines = table(results).splitlines()
    assert lines[2] == (
        "| supergateway 4.0.0 | 8 connections, 4 sessions | 100 /s | 1,234 /s | 12.3 (12.3–12.3) "
        "| 500 µs | 50 µs | ≥ 5 × | met |"
    )
    assert lines[3].startswith("| 1mcp | could not run: npm error 404 / not found |")
    assert lines[3].endswith(f"| ≥ 10 × | {NOT_MEASURED} |")
    assert all(line.count("|") == 10 for line in lines[:4])
    assert lines[5].startswith("* **supergateway 4.0.0**: ")


@pytest.mark.process
def test_what_cannot_be_installed_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.peers.install.HOME", tmp_path)
    environment = Environment(NPM, "nothing", [f"{tmp_path}/no-such-folder"])
    with pytest.raises(CannotRun, match=r"no-such-folder|npm"):
        install("peer-nothing", environment)
    assert not (tmp_path / "peer-nothing" / "stamp").exists()


@pytest.mark.process
def test_what_is_there_already_is_not_installed_again(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.peers.install.HOME", tmp_path)
    environment = Environment(NPM, "nothing", [])  # there is nothing to install, so this succeeds at once
    with suppress(CannotRun):  # but for machines without npm, where only what is there can be used
        install("peer-nothing", environment)
    directory = tmp_path / "peer-nothing"
    (directory / "stamp").write_text(stamp_of([]))
    (directory / "kept").touch()
    assert install("peer-nothing", environment) == Installed(directory, NPM)
    assert (directory / "kept").exists()
    with pytest.raises(CannotRun):  # other requirements are another environment
        install("peer-nothing", environment._replace(requirements=[f"{tmp_path}/no-such-folder"]))
    assert not (directory / "kept").exists()


@pytest.mark.process
def test_program_that_is_missing_is_no_crash():
    with pytest.raises(CannotRun, match="no-such-program"):
        run(["no-such-program"])


def test_complaint_is_the_lines_that_speak_of_errors():
    assert complaint("starting\n npm error code E404\n\nnpm error 404 Not Found\ndone") == (
        "npm error code E404 / npm error 404 Not Found"
    )
    assert complaint("only this\n") == "only this"


@pytest.mark.process
def test_process_is_ended_with_what_it_started(tmp_path):
    core = min(os.sched_getaffinity(0))
    mark = tmp_path / "child"
    program = (
        "import subprocess, sys, pathlib, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(mark)!r}).write_text(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    with Running(Launch([sys.executable, "-c", program]), core, tmp_path) as running:
        running.wait_until(lambda: int(mark.read_text()), READY_SECONDS)
        child = os.pidfd_open(int(mark.read_text()))
        assert running.cpu_seconds() >= 0
    ended, _, _ = select.select([child], [], [], READY_SECONDS)
    os.close(child)
    assert ended


@pytest.mark.process
def test_process_that_ends_at_once_says_what_it_said(tmp_path):
    core = min(os.sched_getaffinity(0))
    launch = Launch([sys.executable, "-c", "import sys; sys.exit('error: no such port')"])
    with Running(launch, core, tmp_path) as running, pytest.raises(CannotRun, match="no such port"):
        running.wait_until(lambda: listening(free_port()), READY_SECONDS)


@pytest.mark.process
def test_process_that_never_gets_ready_says_the_last_error(tmp_path):
    core = min(os.sched_getaffinity(0))
    launch = Launch([sys.executable, "-c", "import time; time.sleep(600)"])
    with Running(launch, core, tmp_path) as running, pytest.raises(CannotRun, match="not ready after 0 s"):
        running.wait_until(lambda: listening(free_port()), 0.1)


@pytest.mark.process
def test_paused_process_does_nothing_and_then_goes_on(tmp_path):
    core = min(os.sched_getaffinity(0))
    with Running(Launch([sys.executable, "-c", "while True: pass"]), core, tmp_path) as running:
        running.wait_until(lambda: 1 / running.cpu_seconds(), READY_SECONDS)  # it has used some
        with running.paused():
            running.settle()
            used = running.cpu_seconds()
            running.settle()
            assert running.cpu_seconds() == used
        running.wait_until(lambda: 1 / (running.cpu_seconds() - used), READY_SECONDS)


def test_addresses_do_not_get_into_a_complaint():
    assert complaint("error: GET https://example.com/a%2fb - no") == "error: GET … - no"
