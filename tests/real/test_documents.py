"""A real client gets the same documents of real servers with and without mcpmux.

Each document is everything that a server offers, as an SDK's client received it: lists, the contents of
every listed resource, the messages of every listed prompt.

Differences that do not come from mcpmux:
* server-everything offers more tools to a client that can be asked something. mcpmux can, for its clients;
  the clients here cannot. So these tools are looked for and taken out.
* A modern server puts the members of a tool's schema into another order for legacy clients; mcpmux asks it
  as a modern client. So legacy documents are compared without the order of members.
* On a modern connection every result is signed by the server at its other end. So the signatures are
  checked and taken off.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.process import free_port
from tests.real.merged import owner_of_name, owner_of_uri, part_of
from tests.real.mux import HttpMux, Json, stdio, write_config
from tests.real.sdk import CLIENTS, Client, see
from tests.real.web_server import run_web_server
from tests.whole import WHOLE

SERVER_INFO = "io.modelcontextprotocol/serverInfo"
OFFERED = ("resources", "templates", "tools", "prompts", "contents", "messages")
SERVERS = ("everything", "files", "memory", "time", "git", "modern", "modern-web", "everything-web")
OFFERING_MORE = {"everything", "everything-web"}
ASKING_TOOLS = {
    "get-roots-list",
    "trigger-elicitation-request",
    "trigger-url-elicitation",
    "trigger-sampling-request",
}


DOORS = {"sdk1": "stdio", "sdk2": "http", "sdk2-legacy": "http"}
VIEWS = [(name, door) for name in CLIENTS for door in ("http", "stdio") if WHOLE or door == DOORS[name]]
through_a_door = pytest.mark.parametrize(("client", "merged"), VIEWS, indirect=True, scope="module")


@pytest.fixture(scope="module")
def client(request: pytest.FixtureRequest) -> Client:
    return CLIENTS[request.param].found(request)


@pytest.fixture(scope="module")
def everything_url(everything_command: list[str]) -> Iterator[str]:
    port = free_port()
    command = [everything_command[0], "streamableHttp"]
    with run_web_server(command, f"listening on port {port}", {"PORT": str(port)}):
        yield f"http://127.0.0.1:{port}/mcp"


@pytest.fixture(scope="module")
def modern_url(sdk2_command: list[str]) -> Iterator[str]:
    with run_web_server([*sdk2_command[:-1], "http", "0"], "listening on", {}) as line:
        yield line.split()[-1]


@pytest.fixture(scope="module")
def commands(
    request: pytest.FixtureRequest, everything_command: list[str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """Return the servers that are started, by the names that they have as upstreams."""
    names = {"files": "filesystem", "time": "time", "git": "git", "modern": "sdk2"}
    others = {name: request.getfixturevalue(f"{fixture}_command") for name, fixture in names.items()}
    graph = tmp_path_factory.mktemp("memory") / "graph.jsonl"
    program = str(Path(everything_command[0]).with_name("mcp-server-memory"))
    return {
        "everything": everything_command,
        "memory": ["env", f"MEMORY_FILE_PATH={graph}", program],
        **others,
    }


@pytest.fixture(scope="module")
def targets(commands: dict[str, list[str]], modern_url: str, everything_url: str) -> dict[str, Json]:
    """Return the targets of a client for all servers."""
    urls: dict[str, Json] = {"modern-web": {"url": modern_url}, "everything-web": {"url": everything_url}}
    started: dict[str, Json] = {name: {"command": command} for name, command in commands.items()}
    return {name: {**started, **urls}[name] for name in SERVERS}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, targets: dict[str, Json]) -> Path:
    """Return all servers behind one mcpmux."""
    upstreams = {
        name: stdio(target["command"]) if "command" in target else target for name, target in targets.items()
    }
    return write_config(tmp_path_factory.mktemp("documents"), upstreams)


@pytest.fixture(scope="module")
def url(config: Path) -> Iterator[str]:
    with HttpMux(config) as mux:
        yield mux.url


@pytest.fixture(scope="module")
def directly_seen() -> dict[Client, dict[str, Json]]:
    """Return a memory of each client's documents without mcpmux."""
    return {}


@pytest.fixture(scope="module")
def direct(
    client: Client, targets: dict[str, Json], directly_seen: dict[Client, dict[str, Json]]
) -> dict[str, Json]:
    """Return the documents of all servers, without mcpmux."""
    if client not in directly_seen:
        directly_seen[client] = see(client, targets)
    return directly_seen[client]


@pytest.fixture(scope="module")
def merged(request: pytest.FixtureRequest, client: Client, config: Path) -> Json:
    """Return the document of all servers at once, through mcpmux."""
    if request.param == "http":
        target = {"url": request.getfixturevalue("url")}
    else:
        target = {"command": [sys.executable, "-m", "mcpmux", "serve", str(config), "--stdio"]}
    return see(client, {"mcpmux": target})["mcpmux"]


def unsigned(document: Json, signer: str) -> Json:
    """Return the document without the signatures of `signer`, the only signer in it."""

    def take_off(result: Json) -> Json:
        meta = dict(result.get("_meta", {}))
        assert meta.pop(SERVER_INFO, {"name": signer})["name"] == signer
        rest = {key: value for key, value in result.items() if key != "_meta"}
        return {**rest, "_meta": meta} if meta else rest

    return {
        **document,
        "contents": {uri: take_off(result) for uri, result in document["contents"].items()},
        "messages": {name: take_off(result) for name, result in document["messages"].items()},
    }


def without_asking_tools(document: Json) -> Json:
    """Return the document without the tools that server-everything has only for clients that can be asked."""
    tools = [tool for tool in document["tools"] if tool["name"] not in ASKING_TOOLS]
    assert len(tools) == len(document["tools"]) - len(ASKING_TOOLS)
    return {**document, "tools": tools}


def offered(document: Json) -> Json:
    return {key: document[key] for key in OFFERED}


def assert_same(seen: Json, expected: Json, client: Client) -> None:
    assert seen == expected
    if client.mode == "auto":
        assert json.dumps(seen) == json.dumps(expected)


@through_a_door
@pytest.mark.parametrize("server", SERVERS)
def test_each_server_is_seen_through_mcpmux_as_without_it(
    client: Client, merged: Json, direct: dict[str, Json], server: str
) -> None:
    seen = part_of(unsigned(merged, "mcpmux"), server)
    if server in OFFERING_MORE:
        seen = without_asking_tools(seen)
    expected = offered(unsigned(direct[server], direct[server]["server"]))
    assert_same(seen, expected, client)


@through_a_door
def test_everything_that_is_seen_belongs_to_a_server(merged: Json) -> None:
    uris = [item["uri"] for item in merged["resources"]]
    uris += [item["uriTemplate"] for item in merged["templates"]]
    names = [item["name"] for item in (*merged["tools"], *merged["prompts"])]
    owners = {owner_of_uri(uri) for uri in uris} | {owner_of_name(name) for name in names}
    assert owners == set(SERVERS)


@through_a_door
def test_what_is_listed_can_be_read(merged: Json) -> None:
    assert merged["contents"].keys() == {item["uri"] for item in merged["resources"]}
    assert not [uri for uri, result in merged["contents"].items() if "error" in result]


CAPABILITIES = {
    "completions": {},
    "logging": {},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "tools": {"listChanged": True},
}
TASKS: dict[str, Json] = {
    "2025-11-25": {"tasks": {"cancel": {}, "list": {}, "requests": {"tools": {"call": {}}}}},
    "2026-07-28": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
}
"""server-everything has tasks, which each revision says in its own way."""


@through_a_door
def test_mcpmux_introduces_itself_and_its_servers(
    client: Client, merged: Json, direct: dict[str, Json]
) -> None:
    assert (merged["server"], merged["revision"]) == ("mcpmux", client.revision)
    texts = {name: text for name, seen in direct.items() if (text := seen["instructions"])}
    assert len(texts) == 4
    assert merged["instructions"] == "\n\n".join(f"## {name}\n\n{text}" for name, text in texts.items())
    assert merged["capabilities"] == CAPABILITIES | TASKS.get(client.revision, {})
