"""A real client's session is recorded; replayed it is the same, and from a mock the client sees the same.

The servers are fresh for the replay. Two texts of server-everything say the time of day; they are left out
of the comparison by `--ignore`. What else depends on when it was asked is not asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.real.mux import HttpMux, Json, stdio
from tests.real.recorded import Recording, asking_all, mocked, record, replay, write_capture_config
from tests.real.walker import WALKERS
from tests.real.web_server import find_free_port, run_web_server

GRAPH = '{"type":"entity","name":"Moon","entityType":"moon","observations":["bright"]}\n'
SERVERS = {name: name for name in ("everything", "memory", "time", "modern")} | {"web": "everything"}
TIMES_OF_DAY = ("result.content[1].resource.text", "result.messages[1].content.resource.text")
TIMELY = ("dynamic/text/7", "get-roots-list")  # a time of day; roots that are looked for soon after the start

SESSIONS = [
    pytest.param(("python-2", "http"), marks=pytest.mark.slow),
    pytest.param(("python-1", "stdio"), marks=pytest.mark.slow),
    pytest.param(("python-2", "stdio")),
    pytest.param(("python-1", "http"), marks=pytest.mark.slow),
    pytest.param(("python-2-legacy", "http"), marks=pytest.mark.slow),
    pytest.param(("typescript-2", "http"), marks=pytest.mark.slow),
]


class Session(NamedTuple):
    recording: Recording
    door: str
    upstreams: dict[str, Json]


@pytest.fixture(scope="module")
def upstreams(
    tmp_path_factory: pytest.TempPathFactory,
    everything_command: list[str],
    time_command: list[str],
    sdk2_command: list[str],
) -> Iterator[dict[str, Json]]:
    """Servers of both eras over stdio, and one over HTTP."""
    graph = tmp_path_factory.mktemp("graph") / "graph.jsonl"
    graph.write_text(GRAPH)
    program, port = everything_command[0], str(find_free_port())
    memory = ["env", f"MEMORY_FILE_PATH={graph}", str(Path(program).with_name("mcp-server-memory"))]
    with run_web_server([program, "streamableHttp"], "listening", {"PORT": port}):
        yield {
            "everything": stdio(everything_command, session="per-client"),
            "memory": stdio(memory),
            "time": stdio(time_command),
            "modern": stdio(sdk2_command),
            "web": {"url": f"http://127.0.0.1:{port}/mcp", "session": "per-client"},
        }


@pytest.fixture(scope="module", params=SESSIONS, ids="-".join)
def session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, upstreams: dict[str, Json]
) -> Session:
    name, door = request.param
    walker = WALKERS[name]
    config = write_capture_config(tmp_path_factory.mktemp("recorded"), upstreams)
    asking = [each for each in asking_all(SERVERS, walker) if not any(word in str(each) for word in TIMELY)]
    return Session(record(walker, door, config, asking), door, upstreams)


def test_a_recorded_session_passes_again_replayed_and_mocked(session: Session, tmp_path: Path) -> None:
    recording = session.recording
    fresh = write_capture_config(tmp_path, session.upstreams)
    ignoring = [option for path in TIMES_OF_DAY for option in ("--ignore", path)]
    with HttpMux(fresh) as mux:
        code, report = replay(recording, mux.url, "--speed", "max", *ignoring)
    assert (code, report["clean"], report["exchanges"], report["leftOut"]) == (0, True, [], {})
    assert report["counts"]["same"] >= len(recording.asking)
    # A server that asks at a moment of its own may not ask again: then its final answer is compared.
    assert {status for status, count in report["counts"].items() if count} <= {"same", "unasked"}
    again = mocked(recording, session.door)
    for key, value in recording.document.items():
        assert again[key] == value, key
