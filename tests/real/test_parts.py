"""The real parts work without mcpmux, so that a failure with mcpmux between them is ours."""

from __future__ import annotations

import json
import sys

import pytest
import trio

from mcpmux.transports.process import StopLadder, open_process
from tests.peers.revision import Json
from tests.real import sdk
from tests.real.sdk import Client

STOP = StopLadder(close_seconds=2, terminate_seconds=2)
STOP_HTTP = StopLadder(close_seconds=0, terminate_seconds=2)  # it does not read its standard input
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


def open_child(command: list[str], stop: StopLadder = STOP):
    return open_process(
        command[0],
        command[1:],
        {},
        None,
        stop=stop,
        on_stderr_line=lambda line: print(line, file=sys.stderr),
        max_message_bytes=4_000_000,
    )


@pytest.fixture(params=["everything", "filesystem", "memory", "time", "git", "sdk2"])
def stdio_command(request: pytest.FixtureRequest) -> list[str]:
    return request.getfixturevalue(f"{request.param}_command")


async def test_a_server_initializes_over_stdio(stdio_command: list[str]):
    with trio.fail_after(60):
        async with open_child(stdio_command) as child:
            await child.send(json.dumps(INITIALIZE).encode())
            answer = json.loads(await child.receive())
            while "id" not in answer:
                answer = json.loads(await child.receive())
    assert answer["id"] == 1
    assert answer["result"]["protocolVersion"] == "2025-06-18"


async def see(client: Client, target: Json) -> Json:
    return (await trio.to_thread.run_sync(sdk.see, client, {"it": target}))["it"]


def sdk1(python: str) -> Client:
    return sdk.CLIENTS["sdk1"]._replace(python=python)


def sdk2(python: str, mode: str = "auto") -> Client:
    return sdk.CLIENTS["sdk2"]._replace(python=python, mode=mode)


def assert_complete(seen: dict) -> None:
    assert seen["server"] == "sdk2-server"
    assert seen["pages"] == {"resources": 3, "templates": 2, "tools": 4, "prompts": 2}
    assert [len(seen[name]) for name in ("resources", "templates", "tools", "prompts")] == [5, 3, 7, 3]
    assert len(seen["contents"]["memo://many"]["contents"]) == 3
    assert seen["messages"]["review"]["messages"][0]["content"]["text"] == "Review this code: a code"
    assert not [
        value for value in [*seen["contents"].values(), *seen["messages"].values()] if "error" in value
    ]


@pytest.mark.parametrize(
    ("mode", "revision"),
    [("auto", "2026-07-28"), pytest.param("legacy", "2025-11-25", marks=pytest.mark.slow)],
)
async def test_the_newer_client_walks_the_newer_server_over_stdio(sdk2_python, sdk2_command, mode, revision):
    seen = await see(sdk2(sdk2_python, mode), {"command": sdk2_command})
    assert seen["revision"] == revision
    assert_complete(seen)


async def test_the_older_client_walks_the_newer_server_over_stdio(sdk1_python, sdk2_command):
    seen = await see(sdk1(sdk1_python), {"command": sdk2_command})
    assert seen["revision"] == "2025-11-25"
    assert_complete(seen)


async def test_both_clients_walk_the_newer_server_over_http(sdk1_python, sdk2_python, sdk2_command):
    async with open_child([*sdk2_command[:-1], "http", "0"], STOP_HTTP) as server:
        with trio.fail_after(60):
            words, _, url = (await server.receive()).decode().rpartition(" ")
        assert words == "listening on"
        for client in (sdk1(sdk1_python), sdk2(sdk2_python)):
            seen = await see(client, {"url": url})
            assert seen["revision"] == client.revision
            assert_complete(seen)


async def test_the_older_client_walks_the_everything_server(sdk1_python, everything_command):
    seen = await see(sdk1(sdk1_python), {"command": everything_command})
    assert len(seen["tools"]) > 10
    assert seen["contents"].keys() == {item["uri"] for item in seen["resources"]}
