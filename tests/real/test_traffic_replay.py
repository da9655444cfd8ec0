"""A real client's session with a real server, captured, replayed, and served again from the capture."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.browser.sights import SIGHTS
from tests.process.running import Running
from tests.real.differences import unmarked
from tests.real.mux import PAGE_SIZE, HttpMux, Json, stdio
from tests.real.test_clients import asking_of
from tests.real.walker import WALKERS, see
from tests.whole import when_whole

# "everything" samples, elicits, has subscriptions and progress. It asks for roots at any moment. A modern
# client gets that question in the answer to any request, so those meet a modern server here.
PAIRS = (
    ("python-1", "everything"),
    ("typescript-2", "modern"),
    *when_whole(("typescript-1.32.2", "everything"), ("python-2", "modern")),
)
REPLAY_SECONDS = 120


def write_config(folder: Path, server: str, command: list[str], capture: Path | None) -> Path:
    upstreams = {server: stdio(command, prefix="", session="per-client")}
    document: Json = {"upstreams": upstreams, "merging": {"page_size": PAGE_SIZE}}
    if capture is not None:
        document["capture"] = {"level": "full", "directory": str(capture)}
    path = folder / f"{'plain' if capture is None else 'captured'}.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(("name", "server"), PAIRS)
def test_a_real_session_is_replayed_and_served_again(
    tmp_path: Path, everything_command: list[str], sdk2_command: list[str], name: str, server: str
) -> None:
    walker, capture = WALKERS[name], tmp_path / "capture"
    command = everything_command if server == "everything" else sdk2_command
    asking = [request for request in asking_of(walker, server) if request[1].get("name") != "get-roots-list"]
    visit: Json = {"read": True, "asking": asking}
    with HttpMux(write_config(tmp_path, server, command, capture)) as mux:
        seen = see(walker, {server: {"url": mux.url, **visit}})
        assert mux.stop(signal.SIGTERM) == 0, mux.stderr
    with HttpMux(write_config(tmp_path, server, command, None)) as mux:
        report = replay(capture, mux.url, "1")
        assert mux.stop(signal.SIGTERM) == 0, mux.stderr
    assert differences(report) == []
    assert report["counts"]["same"] > len(SIGHTS[server].asking)
    with Running("traffic", "mock", str(capture), "--listen", "127.0.0.1:0") as mock:
        url = mock.line().strip()
        assert replay(capture, url, "max")["exchanges"] == []
        assert see(walker, {server: {"url": url, **visit}}) == seen
        assert mock.stop() == 0, mock.stderr


@pytest.mark.parametrize("name", ["python-2", *when_whole("python-1")])
def test_the_moment_of_a_servers_question_makes_no_difference(
    tmp_path: Path, everything_command: list[str], name: str
) -> None:
    """Report questions that come elsewhere or not at all, as those for roots do at the highest speed."""
    walker, capture = WALKERS[name], tmp_path / "capture"
    visit: Json = {"read": True, "asking": asking_of(walker, "everything")}
    with HttpMux(write_config(tmp_path, "everything", everything_command, capture)) as mux:
        see(walker, {"everything": {"url": mux.url, **visit}})
        assert mux.stop(signal.SIGTERM) == 0, mux.stderr
    with HttpMux(write_config(tmp_path, "everything", everything_command, None)) as mux:
        report = replay(capture, mux.url, "max")
        assert mux.stop(signal.SIGTERM) == 0, mux.stderr
    assert differences(report) == []
    assert report["counts"]["failed"] == 0
    assert {question["kind"] for question in report["questions"]} <= {"elsewhere", "again", "missing"}


def differences(report: Json) -> list[Json]:
    """Return all differences but the time of day in texts, which passes."""
    listed = [difference for exchange in report["exchanges"] for difference in exchange["differences"]]
    return [d for d in listed if unmarked(d.get("captured")) != unmarked(d.get("now"))]


def replay(capture: Path, url: str, speed: str) -> Json:
    options = ["--with-tools", "--speed", speed, "--json", "--timeout", str(REPLAY_SECONDS)]
    with Running("traffic", "replay", str(capture), "--to", url, *options) as command:
        command.wait()
        report = json.loads(command.stdout)
    assert isinstance(report, dict)
    return report
