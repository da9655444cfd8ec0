"""Real clients of four SDKs in three views of five real servers, all at once, behind one mcpmux.

Each client visits `/mcp` and every view side by side. What a view must have is chosen from what the same
client sees at `/mcp`, by what the servers say of their tools, without any of mcpmux's own code.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.browser.sights import Asking
from tests.real.differences import LISTED, NOT_FOUND, NOT_FOUND_LEGACY, unmarked
from tests.real.merged import owner_of_name, owner_of_uri, without_hint
from tests.real.mux import HttpMux, Json, stdio, write_config
from tests.real.walker import WALKERS, see

CLIENTS = ("python-1", "python-2", "typescript-1.32.2", "typescript-2")
SERVERS = {"everything", "files", "memory", "time", "git"}
GRAPH = """\
{"type":"entity","name":"Moon","entityType":"moon","observations":["bright"]}
{"type":"entity","name":"Sun","entityType":"star","observations":["hot"]}
"""
MOON = {
    "upstream": "memory",
    "name": "open_nodes",
    "rename": "recall_moon",
    "description": "Says what is known about the Moon.",
    "parameters": {"names": {"value": ["Moon"]}},
}
VIEWS: dict[str, Json] = {
    "coding": {
        "include": [
            {"upstream": "git"},
            {"upstream": "files"},
            {"kind": "resources", "name": "*/structure.md"},
        ],
        "exclude": [{"destructiveHint": True}],
    },
    "notes": {"include": [{"upstream": "memory"}], "overrides": [MOON]},
    "reading": {
        "include": [
            {"readOnlyHint": True},
            {"kind": "resources"},
            {"kind": "templates", "name": "demo://resource/dynamic/text/*"},
            {"kind": "prompts"},
        ],
        "exclude": [{"kind": "resources", "name": "*/extension.md"}],
    },
}
EVERYTHING = ""  # the view at /mcp itself


def name_of(item: Json) -> str:
    return str(item.get("uri") or item.get("uriTemplate") or item["name"])


def owner_of(item: Json) -> str:
    return owner_of_uri(name_of(item)) if "://" in name_of(item) else owner_of_name(name_of(item))


def is_in(view: str, kind: str, item: Json) -> bool:
    """Whether a view should have something that is listed at `/mcp`."""
    name, said = name_of(item), item.get("annotations", {})
    reads_only = bool(said.get("readOnlyHint", False))
    if view == "coding":
        if kind == "tools" and not reads_only and said.get("destructiveHint", True):
            return False
        return owner_of(item) in ("git", "files") or name.endswith("/structure.md")
    if view == "notes":
        return owner_of(item) == "memory"
    return {
        "tools": reads_only,
        "resources": not name.endswith("/extension.md"),
        "templates": "/dynamic/text/" in name,
        "prompts": True,
    }[kind]


def as_in_notes(tool: Json) -> Json:
    """A tool at `/mcp` as the override of `notes` has it."""
    if tool["name"] != "memory__open_nodes":
        return tool
    schema = {**tool["inputSchema"], "properties": {}}
    del schema["required"]  # there was but one
    told = {"name": "memory__recall_moon", "description": MOON["description"]}
    return {**tool, **told, "inputSchema": schema}


class Asked(NamedTuple):
    """What the clients ask in a view."""

    works: tuple[tuple[Asking, str], ...]
    """Uses of what it has, each with a text that the result has."""
    fails: tuple[Asking, ...] = ()
    """Uses of what it does not have."""


def _call(name: str, **arguments: Any) -> Asking:
    return "tools/call", {"name": name, "arguments": arguments}


def _read(uri: str) -> Asking:
    return "resources/read", {"uri": uri}


NOBODYS = {
    "tools/call": ("name", "nobody__nothing", "Unknown tool"),
    "prompts/get": ("name", "nobody__nothing", "Unknown prompt"),
    "resources/read": ("uri", "nobody+nothing://", "Resource not found"),
}
"""By method: the key of what is used, something that is nowhere, and what is said of it."""

Seen = dict[str, dict[str, Json]]
"""Documents by client and view."""


@pytest.fixture(scope="module")
def asked(filesystem_command: list[str], git_command: list[str]) -> dict[str, Asked]:
    repository, directory = git_command[-1], filesystem_command[-1]
    status = _call("git__git_status", repo_path=repository), "On branch"
    hello = _call("files__read_text_file", path=f"{directory}/hello.txt"), "hello"
    graph = _call("memory__read_graph"), "Sun"
    sun = _call("memory__open_nodes", names=["Sun"]), "hot"
    times = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    tokyo = _call("time__convert_time", **times), "T21:00:00+09:00"
    moon = _call("memory__recall_moon"), "bright"
    write = _call("files__write_file", path=f"{directory}/hello.txt", content="gone")
    branch = _call("git__git_create_branch", repo_path=repository, branch_name="unwanted")
    extension = _read("everything+demo://resource/static/document/extension.md")
    number = _read("everything+demo://resource/dynamic/text/1"), "plaintext resource"
    knowledge = _read("memory+memory://knowledge-graph")
    prompt = "prompts/get", {"name": "everything__simple-prompt"}
    return {
        "coding": Asked(
            (status, hello), (graph[0], tokyo[0], write, knowledge, number[0], extension, prompt)
        ),
        "notes": Asked((moon, graph), (sun[0], status[0], hello[0], number[0], extension, prompt)),
        "reading": Asked((tokyo, status, sun, number), (branch, write, moon[0], extension)),
        EVERYTHING: Asked((status, hello, graph, sun, tokyo, number)),
    }


@pytest.fixture(scope="module")
def seen(
    tmp_path_factory: pytest.TempPathFactory,
    everything_command: list[str],
    filesystem_command: list[str],
    time_command: list[str],
    git_command: list[str],
    asked: dict[str, Asked],
) -> Seen:
    directory = tmp_path_factory.mktemp("views")
    graph = directory / "graph.jsonl"
    graph.write_text(GRAPH)
    memory = str(Path(everything_command[0]).with_name("mcp-server-memory"))
    commands = {
        "everything": everything_command,
        "files": filesystem_command,
        "memory": ["env", f"MEMORY_FILE_PATH={graph}", memory],
        "time": time_command,
        "git": git_command,
    }
    config = write_config(directory, {name: stdio(each) for name, each in commands.items()}, views=VIEWS)
    with HttpMux(config) as mux, ThreadPoolExecutor(len(CLIENTS)) as pool:
        targets = {view: target(f"{mux.url}/{view}".removesuffix("/"), each) for view, each in asked.items()}
        documents = list(pool.map(lambda name: see(WALKERS[name], targets), CLIENTS))
        assert mux.stop() == 0
    return dict(zip(CLIENTS, documents, strict=True))


def target(url: str, asked: Asked) -> Json:
    nowhere = [(method, {key: name}) for method, (key, name, _) in NOBODYS.items()]
    return {"url": url, "read": True, "asking": [*(each for each, _ in asked.works), *asked.fails, *nowhere]}


in_each_view = pytest.mark.parametrize("view", VIEWS)
by_each_client = pytest.mark.parametrize("client", CLIENTS)


@in_each_view
@by_each_client
def test_a_view_lists_exactly_what_it_selects(seen: Seen, client: str, view: str) -> None:
    everything, mine = seen[client][EVERYTHING], seen[client][view]
    assert mine["revision"] == WALKERS[client].revision
    expected = {kind: [item for item in everything[kind] if is_in(view, kind, item)] for kind in LISTED}
    if view == "notes":
        expected["tools"] = [as_in_notes(tool) for tool in expected["tools"]]
    assert {kind: mine[kind] for kind in LISTED} == expected
    for kind in ("tools", "resources"):
        assert 0 < len(mine[kind]) < len(everything[kind])


@in_each_view
@by_each_client
def test_what_a_view_lists_is_read_as_without_it(seen: Seen, client: str, view: str) -> None:
    everything, mine = unmarked(seen[client][EVERYTHING]), unmarked(seen[client][view])
    assert all("contents" in result for result in mine["contents"].values())
    for used, kind in (("contents", "resources"), ("messages", "prompts")):
        assert mine[used] == {name_of(item): everything[used][name_of(item)] for item in mine[kind]}


@pytest.mark.parametrize("view", [*VIEWS, pytest.param(EVERYTHING, id="everything")])
@by_each_client
def test_what_a_view_has_can_be_used(seen: Seen, asked: dict[str, Asked], client: str, view: str) -> None:
    for (_, text), answer in zip(asked[view].works, seen[client][view]["answers"], strict=False):
        assert "error" not in answer and not answer.get("isError")
        assert text in json.dumps(answer)


@in_each_view
@by_each_client
def test_what_is_not_in_a_view_is_as_if_it_were_nowhere(
    seen: Seen, asked: dict[str, Asked], client: str, view: str
) -> None:
    answers = seen[client][view]["answers"][len(asked[view].works) :]
    fails = asked[view].fails
    nowhere = dict(zip(NOBODYS, answers[len(fails) :], strict=True))
    for (method, params), answer in zip(fails, answers, strict=False):
        key, nobodys, said = NOBODYS[method]
        expected = without_hint(json.dumps(nowhere[method])).replace(nobodys, params[key])
        assert without_hint(json.dumps(answer)) == expected
        legacy_read = method == "resources/read" and not WALKERS[client].modern
        assert answer["error"]["code"] == (NOT_FOUND_LEGACY if legacy_read else NOT_FOUND)
        assert said in answer["error"]["message"]


@by_each_client
def test_what_a_view_does_not_have_is_there_without_a_view(
    seen: Seen, asked: dict[str, Asked], client: str
) -> None:
    everything = seen[client][EVERYTHING]
    assert {owner_of(tool) for tool in everything["tools"]} == SERVERS
    used = {params[NOBODYS[method][0]] for each in asked.values() for method, params in each.fails}
    unlisted = used - {name_of(item) for kind in LISTED for item in everything[kind]}
    assert unlisted == {"memory__recall_moon", "everything+demo://resource/dynamic/text/1"}  # of a template


@by_each_client
def test_a_view_offers_what_its_servers_can_do(seen: Seen, client: str) -> None:
    notes, everything = seen[client]["notes"], seen[client][EVERYTHING]
    assert notes["capabilities"].keys() == {"resources", "tools"}
    assert everything["capabilities"].keys() > {"completions", "logging", "prompts", "resources", "tools"}
    assert everything["instructions"].startswith("## everything\n")
    assert not notes["instructions"]
