"""Servers that cannot be started, die, hang or talk nonsense: they are named, and harm nobody else."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.peers.blocking_client import HttpClient
from tests.peers.revision import MODERN
from tests.real.mux import HttpMux, Json, stdio, write_config
from tests.real.sdk import CLIENTS, see
from tests.whole import when_whole

ONE_SECOND = {"connect_timeout": 1, "list_timeout": 1}
STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); [signal.pause() for _ in iter(int, 1)]"
)
NO_ANSWER = "did not answer"


def python(code: str, **settings: float) -> Json:
    return stdio([sys.executable, "-c", code], **settings)


BROKEN = {
    "missing": (stdio(["/no/such/program"]), "cannot start '/no/such/program': there is no such file"),
    "dead": (python("exit('no licence')"), "exited with status 1 (mcpmux's log has the rest)"),
    "silent": (python("input(); input(); input()", **ONE_SECOND), NO_ANSWER),
    "stubborn": (python(STUBBORN, **ONE_SECOND), NO_ANSWER),
    "garbage": (python("while input(): print('no message', flush=True)", **ONE_SECOND), NO_ANSWER),
    "flood": (stdio(["yes"], **ONE_SECOND), NO_ANSWER),
    "unreachable": ({"url": "http://127.0.0.1:1/mcp"}, "cannot connect to 127.0.0.1:1: connection refused"),
}
"""Upstreams that do not work, and why not."""


@pytest.fixture(scope="module")
def url(
    tmp_path_factory: pytest.TempPathFactory, everything_command: list[str], sdk2_command: list[str]
) -> Iterator[str]:
    """Run mcpmux before all broken servers, and two healthy ones after them."""
    broken = {name: upstream for name, (upstream, _) in BROKEN.items()}
    healthy = {"everything": stdio(everything_command), "modern": stdio(sdk2_command)}
    config = write_config(tmp_path_factory.mktemp("isolation"), {**broken, **healthy})
    with HttpMux(config) as mux:
        yield mux.url
        assert mux.stop() == 0  # a killed mux would leave the stubborn server behind


def test_a_list_names_the_servers_that_are_left_out_and_why(url: str) -> None:
    left_out = HttpClient(url, MODERN).ask("tools/list")[-1]["result"]["_meta"]["dev.mcpmux/upstreams"]
    assert left_out.keys() == BROKEN.keys()
    for name, (_, reason) in BROKEN.items():
        assert left_out[name]["state"] in ("connecting", "down", "crash-loop")
        assert reason in left_out[name]["reason"]


def test_a_request_to_a_broken_server_names_it(url: str) -> None:
    for name, (_, reason) in BROKEN.items():
        error = HttpClient(url, MODERN).ask("resources/read", {"uri": f"{name}+file:///x"})[-1]["error"]
        assert error["data"]["upstream"] == name
        assert re.search(f"{name}.*({re.escape(reason)}|still starting)", error["message"])


@pytest.mark.parametrize("name", ["sdk1", "sdk2", *when_whole("sdk2-legacy")])
def test_real_clients_see_the_healthy_servers_whole(
    request: pytest.FixtureRequest, url: str, name: str
) -> None:
    seen = see(CLIENTS[name].found(request), {"mcpmux": {"url": url}})["mcpmux"]
    owners = Counter(item["uri"].partition("+")[0] for item in seen["resources"])
    assert owners == {"everything": 7, "modern": 5}
    assert not [uri for uri, result in seen["contents"].items() if "error" in result]
