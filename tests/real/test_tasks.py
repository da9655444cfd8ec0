"""Tasks and URL elicitation of server-everything (2025-11-25), for a real legacy client and a modern one."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import task_shapes
from tests.real.cluster import run_cluster
from tests.real.mux import HttpMux, Json, stdio, write_config
from tests.real.raw_client import MODERN, HttpClient
from tests.real.web_server import find_free_port, run_web_server

PROGRAM = Path(__file__).parent / "task_client.py"
SECONDS = 150
RESEARCH = "every__simulate-research-query"
VISIT = "every__trigger-url-elicitation"
EXTENSION = "io.modelcontextprotocol/tasks"
ELICITATION: Json = {"elicitation": {"form": {}, "url": {}}}
CHOICE: Json = {"action": "accept", "content": {"interpretation": "snake"}}


@pytest.fixture(scope="module", params=["alone", pytest.param("replicas", marks=pytest.mark.slow)])
def url(
    request: pytest.FixtureRequest, everything_command: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """mcpmux in front of server-everything, on stdio and on HTTP: one process, or two behind a balancer."""
    port = find_free_port()
    command = [everything_command[0], "streamableHttp"]
    with run_web_server(command, f"listening on port {port}", {"PORT": str(port)}):
        web: Json = {"url": f"http://127.0.0.1:{port}/mcp"}
        upstreams = {"every": stdio(everything_command), "web": web}
        directory = tmp_path_factory.mktemp("tasks")
        if request.param == "replicas":
            with run_cluster(directory, upstreams) as cluster:
                yield cluster.url
                assert {each.replica for each in cluster.balancer.served()} == set(cluster.replicas)
        else:
            with HttpMux(write_config(directory, upstreams)) as mux:
                yield mux.url


class Modern(HttpClient):
    """A client of 2026-07-28 with these capabilities."""

    def __init__(self, url: str, capabilities: Json) -> None:
        super().__init__(url, MODERN)
        self._meta = {"io.modelcontextprotocol/clientCapabilities": capabilities}

    def result(self, method: str, params: Json) -> Json:
        answer = self.ask(method, {**params, "_meta": self._meta})[-1]
        assert "result" in answer, answer
        return answer["result"]

    def call(self, name: str, arguments: Json, **again: object) -> Json:
        return self.result("tools/call", {"name": name, "arguments": arguments, **again})


@pytest.mark.parametrize("server", ["every", pytest.param("web", marks=pytest.mark.slow)])
def test_the_sdks_task_client_works_through_the_mux(url: str, sdk1_python: str, server: str):
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


def test_a_client_of_the_extension_has_tasks_of_a_legacy_server(url: str):
    client = Modern(url, {**ELICITATION, "extensions": {EXTENSION: {}}})
    made = client.call(RESEARCH, {"topic": "python", "ambiguous": True})
    assert made["resultType"] == "task"
    about = {"taskId": made["taskId"]}
    statuses = []
    deadline = time.monotonic() + SECONDS
    while (task := client.result("tasks/get", about))["status"] not in ("completed", "failed"):
        assert time.monotonic() < deadline
        task_shapes.check_result(MODERN, "tasks/get", task)
        statuses.append(task["status"])
        if task["status"] == "input_required":
            responses = dict.fromkeys(task["inputRequests"], CHOICE)
            client.result("tasks/update", {**about, "inputResponses": responses})
        time.sleep(task["pollIntervalMs"] / 1000)
    assert "input_required" in statuses
    assert "snake" in task["result"]["content"][0]["text"]


def test_a_client_that_knows_no_tasks_gets_the_result(url: str):
    client = Modern(url, ELICITATION)
    arguments = {"topic": "python", "ambiguous": True}
    asked = client.call(RESEARCH, arguments)
    assert asked["resultType"] == "input_required"
    responses = dict.fromkeys(asked["inputRequests"], CHOICE)
    done = client.call(RESEARCH, arguments, inputResponses=responses, requestState=asked["requestState"])
    assert "snake" in done["content"][0]["text"]


def test_a_modern_client_visits_what_a_legacy_server_demands(url: str):
    client = Modern(url, ELICITATION)
    arguments = {"url": "https://example.com/b", "errorPath": True}
    demanded = client.call(VISIT, arguments)
    [(key, wish)] = demanded["inputRequests"].items()
    assert wish["params"]["url"] == "https://modelcontextprotocol.io"
    again = {name: demanded[name] for name in ("requestState",) if name in demanded}  # which replicas give it
    asked = client.call(VISIT, arguments, inputResponses={key: {"action": "accept"}}, **again)
    [(key, wish)] = asked["inputRequests"].items()  # this time the server asks in the middle of the call
    assert wish["params"]["url"] == "https://example.com/b"
    assert "elicitationId" not in wish["params"]
    again = {"inputResponses": {key: {"action": "accept"}}, "requestState": asked["requestState"]}
    done = client.call(VISIT, arguments, **again)
    assert "completed the URL elicitation" in done["content"][0]["text"]
