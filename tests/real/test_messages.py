"""Every message that mcpmux sends is one of the client's revision, whatever the servers behind it speak.

One conversation for each revision, over HTTP and over stdio, with server-everything (legacy) and a server
of 2026-07-28 behind mcpmux. The schemas of the revision judge every single message.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.oracle import SchemaOracle
from tests.real.mux import HttpMux, Json, StdioMux, stdio, write_config
from tests.real.raw_client import LEGACY, MODERN, HttpClient, RawClient, StdioClient

PAGE_SIZE = 10  # items; so small that lists have several pages

UPDATED = "notifications/resources/updated"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
WATCHED = "modern+memo://text"


class Step(NamedTuple):
    """One request, and whether its answer is a `result` or an `error`."""

    method: str
    params: Json
    answer: str = "result"


def read(uri: str, answer: str = "result") -> Step:
    return Step("resources/read", {"uri": uri}, answer)


def call(name: str, answer: str = "result", **arguments: object) -> Step:
    return Step("tools/call", {"name": name, "arguments": arguments}, answer)


def get(name: str, answer: str = "result", **arguments: str) -> Step:
    return Step("prompts/get", {"name": name, "arguments": arguments}, answer)


def complete(ref: Json, name: str) -> Step:
    return Step("completion/complete", {"ref": ref, "argument": {"name": name, "value": "a"}})


def with_progress(step: Step) -> Step:
    return step._replace(params={**step.params, "_meta": {"progressToken": 0}})


LISTS = ("resources/list", "resources/templates/list", "tools/list", "prompts/list")
STEPS = {
    "text": read("modern+memo://text"),
    "blob": read("modern+memo://blob"),
    "several contents": read("modern+memo://many"),
    "legacy text": read("old+demo://resource/static/document/features.md"),
    "template": read("modern+memo://note/x"),
    "legacy template": read("old+demo://resource/dynamic/blob/1"),
    "call": call("modern__echo", text="hello"),
    "legacy call": call("old__echo", message="hello"),
    "structured content": call("modern__measure", text="hello"),
    "legacy structured content": call("old__get-structured-content", location="Chicago"),
    "link and embedded resource": call("modern__link"),
    "legacy links": call("old__get-resource-links", count=2),
    "legacy embedded resource": call("old__get-resource-reference", resourceType="Blob", resourceId=1),
    "legacy annotations and image": call(
        "old__get-annotated-message", messageType="error", includeImage=True
    ),
    "failing call": call("modern__fail"),
    "progress": with_progress(call("modern__count")),
    "legacy progress": with_progress(call("old__trigger-long-running-operation", duration=0.01, steps=3)),
    "prompt": get("modern__review", code="x"),
    "prompt with resource": get("modern__with_resource"),
    "legacy prompt with resource": get("old__resource-prompt", resourceType="Text", resourceId="1"),
    "completion of a prompt": complete({"type": "ref/prompt", "name": "modern__review"}, "code"),
    "completion of a template": complete(
        {"type": "ref/resource", "uri": "modern+memo://note/{name}"}, "name"
    ),
    "legacy completion": complete({"type": "ref/prompt", "name": "old__completable-prompt"}, "department"),
    "unknown resource": read("modern+memo://missing", "error"),
    "legacy unknown resource": read("old+demo://missing", "error"),
    "resource of nobody": read("nobody://x", "error"),
    "unknown tool": call("modern__missing", "error"),
    "tool of nobody": call("missing", "error"),
    "unknown prompt": get("old__missing", "error"),
    "bad cursor": Step("resources/list", {"cursor": "bad"}, "error"),
    "missing parameter": Step("resources/read", {}, "error"),
    "unknown method": Step("no/such/method", {}, "error"),
}
HELLO, UPDATE = "hello", "update"
DOORS = ("http", "stdio")

Conversation = dict[str, list[Json]]


def walk_list(client: RawClient, method: str) -> list[Json]:
    """All messages of walking one list."""
    messages = client.ask(method)
    while (cursor := messages[-1]["result"].get("nextCursor")) is not None:
        messages += client.ask(method, {"cursor": cursor})
    return messages


def watch(client: RawClient) -> Iterator[Json]:
    """Subscribe to a resource: the stream on which its updates will come."""
    if client.modern:
        wish = {"notifications": {"resourceSubscriptions": [WATCHED], "toolsListChanged": True}}
        return client.start("subscriptions/listen", wish)
    stream = client.heard()
    client.ask("resources/subscribe", {"uri": WATCHED})
    return stream


def see_update(client: RawClient) -> list[Json]:
    """All messages from a subscription to its update."""
    stream = watch(client)
    messages = [next(stream)] if client.modern else []
    messages += client.ask("tools/call", {"name": "modern__touch", "arguments": {"uri": "memo://text"}})
    while not any(message.get("method") == UPDATED for message in messages):
        messages.append(next(stream))
    return messages


def converse(client: RawClient) -> Conversation:
    """Say all there is to say, and keep what comes back."""
    said = {HELLO: client.hello()}
    said |= {method: walk_list(client, method) for method in LISTS}
    said |= {name: client.ask(step.method, step.params) for name, step in STEPS.items()}
    return {**said, UPDATE: see_update(client)}


@pytest.fixture(scope="module")
def config(
    tmp_path_factory: pytest.TempPathFactory, everything_command: list[str], sdk2_command: list[str]
) -> Path:
    upstreams = {"old": stdio(everything_command), "modern": stdio(sdk2_command)}
    return write_config(tmp_path_factory.mktemp("messages"), upstreams, page_size=PAGE_SIZE)


@pytest.fixture(scope="module")
def http_mux(config: Path) -> Iterator[HttpMux]:
    with HttpMux(config) as mux:
        yield mux


@pytest.fixture(scope="module")
def conversation(request: pytest.FixtureRequest) -> Iterator[Conversation]:
    """What was said to a client of one revision at one door, by step."""
    door, revision = request.param
    if door == "http":
        yield converse(HttpClient(request.getfixturevalue("http_mux").url, revision))
    else:
        with StdioMux(request.getfixturevalue("config")) as mux:
            yield converse(StdioClient(mux, revision))


SLOW = {("stdio", "2025-03-26"), ("stdio", "2025-06-18")}  # each starts a mux and its servers
PARTNERS = [
    pytest.param(partner, marks=pytest.mark.slow if partner in SLOW else (), id="-".join(partner))
    for partner in itertools.product(DOORS, (*LEGACY, MODERN))
]


def method_of(step: str, revision: str) -> str:
    """The method of the request that the answers in a step belong to."""
    if step == HELLO:
        return "server/discover" if revision == MODERN else "initialize"
    if step == UPDATE:
        return "tools/call"
    return STEPS[step].method if step in STEPS else step


@pytest.fixture
def revision(request: pytest.FixtureRequest) -> str:
    """The revision of the client in the conversation."""
    revision: str = request.node.callspec.params["conversation"][1]
    return revision


@pytest.mark.parametrize("conversation", PARTNERS, indirect=True)
def test_what_is_sent_is_what_the_revision_says(
    conversation: Conversation, revision: str, subtests: pytest.Subtests
) -> None:
    assert conversation.keys() == {HELLO, *LISTS, *STEPS, UPDATE}
    oracle = SchemaOracle(revision)
    for step, messages in conversation.items():
        with subtests.test(step):
            assert messages
            for message in messages:
                oracle.check_from_server(message, method_of(step, revision))


@pytest.mark.parametrize("conversation", PARTNERS, indirect=True)
def test_requests_succeed_and_fail_as_they_should(conversation: Conversation) -> None:
    for name, step in STEPS.items():
        assert step.answer in conversation[name][-1], name


@pytest.mark.parametrize("conversation", PARTNERS, indirect=True)
def test_progress_arrives_in_order_under_the_token_of_the_client(conversation: Conversation) -> None:
    for step in ("progress", "legacy progress"):
        said = conversation[step][:-1]
        reports = [message["params"] for message in said if message["method"] == "notifications/progress"]
        found = [(report["progressToken"], report["progress"]) for report in reports]
        assert found == [(0, 1), (0, 2), (0, 3)], step


@pytest.mark.parametrize("conversation", PARTNERS, indirect=True)
def test_lists_of_several_pages_have_every_item_once(conversation: Conversation) -> None:
    messages = conversation["resources/list"]
    pages = [message["result"]["resources"] for message in messages if "method" not in message]
    assert len(pages) > 1
    uris = [item["uri"] for page in pages for item in page]
    assert len(uris) == len(set(uris)) == 12


@pytest.mark.parametrize("conversation", PARTNERS, indirect=True)
def test_legacy_clients_get_nothing_of_the_modern_revision(conversation: Conversation, revision: str) -> None:
    if revision == MODERN:
        return
    for message in itertools.chain(*conversation.values()):
        result = message.get("result", {})
        assert not result.keys() & {"resultType", "ttlMs", "cacheScope"}
        assert "io.modelcontextprotocol/" not in json.dumps(message.get("result", message))
