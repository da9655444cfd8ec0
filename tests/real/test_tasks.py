"""Tasks and URL elicitation of server-everything (2025-11-25), for a client of the SDK."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.process import free_port
from tests.real.cluster import run_cluster
from tests.real.mux import HttpMux, Json, stdio, write_config
from tests.real.web_server import run_web_server

PROGRAM = Path(__file__).parent / "task_client.py"
SECONDS = 150
RESEARCH = "every__simulate-research-query"
VISIT = "every__trigger-url-elicitation"


@pytest.fixture(scope="module")
def url(
    request: pytest.FixtureRequest, everything_command: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Run mcpmux in front of server-everything, on stdio and on HTTP: one, or two behind a balancer."""
    port = free_port()
    command = [everything_command[0], "streamableHttp"]
    with run_web_server(command, f"listening on port {port}", {"PORT": str(port)}):
        web: Json = {"url": f"http://127.0.0.1:{port}/mcp"}
        upstreams = {"every": stdio(everything_command), "web": web}
        directory = tmp_path_factory.mktemp("tasks")
        if request.param == "replicas":
            with run_cluster(directory, upstreams) as cluster:
                yield cluster.url
                assert {request.replica for request in cluster.balancer.served()} == set(cluster.replicas)
        else:
            with HttpMux(write_config(directory, upstreams)) as mux:
                yield mux.url


@pytest.mark.parametrize(
    ("url", "server"), [("alone", "web"), ("replicas", "every")], indirect=["url"], scope="module"
)
def test_task_client_of_the_sdk_works_through_the_mux(url: str, server: str, sdk1_python: str):
    tools = [name.replace("every", server, 1) for name in (RESEARCH, VISIT)]
    command = [sdk1_python, str(PROGRAM), url, *tools]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["capabilities"] == {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    assert seen["made"].startswith(f"{server}+")
    assert seen["listed"] == [seen["made"]]
    assert seen["other"]["listed"] == 0
    assert (seen["other"]["code"], seen["other"]["message"]) == (-32602, "Task not found")
    assert seen["statuses"] == ["working", "input_required", "completed"]
    assert [question["requestedSchema"]["required"] for question in seen["questions"]] == [["interpretation"]]
    assert "snake" in seen["content"][0]["text"]
    assert seen["demand"]["code"] == -32042
    assert seen["demand"]["data"]["elicitations"][0]["mode"] == "url"
    assert {task_id for task_id, _ in seen["told"]} == {seen["made"]}
    assert seen["told"][-1][1] == "completed"
