from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from mcpmux.protocol.revisions import SUPPORTED
from tests.official_schema import find_schemas, load_schema
from tests.official_types import OfficialTypes
from tests.oracle import MODERN, SchemaOracle, schemas_available

needs_schemas = pytest.mark.skipif(not schemas_available(), reason="the official schemas are not here")
WITHOUT_CACHING_HINTS = "read-resource-result-response.json"
EMBEDDED = {"CreateMessageRequest", "ElicitRequest", "ListRootsRequest"}  # parts of a result in 2026-07-28
METHODS = {
    "CallToolResultResponse": "tools/call",
    "CompleteResultResponse": "completion/complete",
    "DiscoverResultResponse": "server/discover",
    "GetPromptResultResponse": "prompts/get",
    "ListPromptsResultResponse": "prompts/list",
    "ListResourceTemplatesResultResponse": "resources/templates/list",
    "ListResourcesResultResponse": "resources/list",
    "ListToolsResultResponse": "tools/list",
    "ReadResourceResultResponse": "resources/read",
    "SubscriptionsListenResultResponse": "subscriptions/listen",
}


def find_examples(pattern: str = "*") -> list[Path]:
    """Return the official examples of the definitions whose names match; there is at least one."""
    paths = sorted((find_schemas() or Path("nowhere")).glob(f"{MODERN}/examples/{pattern}/*.json"))
    assert paths, pattern
    return paths


@needs_schemas
def test_every_official_example_fits_its_definition(subtests: pytest.Subtests):
    for path in find_examples():
        with subtests.test(path.stem):
            load_schema(MODERN).check(path.parent.name, json.loads(path.read_text()))


@needs_schemas
def test_official_messages_pass(subtests: pytest.Subtests):
    oracle = SchemaOracle(MODERN)
    for path in [
        *find_examples("*Request"),
        *find_examples("*Notification"),
        *find_examples("*ResultResponse"),
    ]:
        kind, message = path.parent.name, json.loads(path.read_text())
        with subtests.test(path.stem):
            if kind.endswith("Request") and kind not in EMBEDDED:
                oracle.check_from_client(message)
            elif kind.endswith("Notification"):
                oracle.check_from_server(message)
            elif kind.endswith("ResultResponse") and path.name != WITHOUT_CACHING_HINTS:
                oracle.check_from_server(message, METHODS[kind])


@needs_schemas
def test_an_answer_that_only_the_loose_union_admits_is_refused():
    path = next(path for path in find_examples() if path.name == WITHOUT_CACHING_HINTS)
    with pytest.raises(AssertionError, match=r"not a ReadResourceResult: .*cacheScope"):
        SchemaOracle(MODERN).check_from_server(json.loads(path.read_text()), "resources/read")


def reply(result: object, **members: object) -> dict:
    return {"jsonrpc": "2.0", "id": 1, "result": result} | members


def failure(code: object, **members: object) -> dict:
    return {"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "no"} | members}


RESOURCES = {"resources": [{"uri": "docs+file:///a.md", "name": "a"}]}
MODERN_RESOURCES = RESOURCES | {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
TEXT = {"uri": "a:b", "text": "x"}
BLOB = {"uri": "a:b", "blob": "AAAA"}
CACHING = {"ttlMs": 0, "cacheScope": "private"}


def contents(*items: dict) -> dict:
    return {"resultType": "complete", "contents": list(items), **CACHING}


@pytest.mark.parametrize("revision", SUPPORTED)
def test_each_revision_takes_its_own_list(revision: str):
    result = MODERN_RESOURCES if revision == MODERN else RESOURCES
    SchemaOracle(revision).check_from_server(reply(result), "resources/list")


@pytest.mark.parametrize(
    ("message", "method", "reason"),
    [
        (reply(RESOURCES), "resources/list", "resultType is None"),
        (reply(MODERN_RESOURCES | {"resultType": "done"}), "resources/list", "resultType is 'done'"),
        (reply(MODERN_RESOURCES | {"ttlMs": "soon"}), "resources/list", "ttlMs"),
        (reply(MODERN_RESOURCES | {"resources": [{"name": "a"}]}), "resources/list", "uri"),
        (reply(MODERN_RESOURCES), "resources/templates/list", "resourceTemplates"),
        (reply(MODERN_RESOURCES), None, "nobody asked"),
        (reply({"resultType": "input_required"}), "tools/call", "none is named"),
        (
            reply({"resultType": "input_required", "requestState": "x"}),
            "tools/list",
            "cannot require input|not a result of tools/list",
        ),
        (reply(MODERN_RESOURCES, id=None), "resources/list", "id is None"),
        (reply(MODERN_RESOURCES, id=True), "resources/list", "id is True"),
        (reply(MODERN_RESOURCES, id=1.5), "resources/list", "id is 1.5"),
        (reply(MODERN_RESOURCES, jsonrpc="1.0"), "resources/list", "jsonrpc"),
        (reply(MODERN_RESOURCES, error={}), "resources/list", "one of method, result and error"),
        (reply(MODERN_RESOURCES, extra=1), "resources/list", "unknown members"),
        (reply([]), "resources/list", "not an object"),
        ([], "resources/list", "not an object"),
        (failure("-32602"), "resources/list", "error code is"),
        (failure(-32602, message=None), "resources/list", "error message is"),
        (failure(-32002), "resources/read", "must not be sent"),
        (failure(-32042), "tools/call", "must not be sent"),
        (failure(-32050), "tools/call", "must not be sent"),
        ({"jsonrpc": "2.0", "method": "notifications/nonsense"}, None, "no ServerNotification"),
        ({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {}}, None, "uri"),
        (
            {"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": {}},
            None,
            "ServerRequest",
        ),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}, None, "no ServerRequest"),
    ],
)
def test_what_a_modern_server_must_not_send_is_refused(message, method, reason: str):
    with pytest.raises(AssertionError, match=reason):
        SchemaOracle(MODERN).check_from_server(message, method)


@needs_schemas
@pytest.mark.parametrize(
    ("message", "method", "reason"),
    [
        (reply(MODERN_RESOURCES | {"nextCursor": None}), "resources/list", "nextCursor"),
        (reply(contents(TEXT | {"uri": 1})), "resources/read", "uri"),
        (reply(contents(BLOB | {"blob": "not base64!"})), "resources/read", "blob"),
        (reply(contents(TEXT | {"uri": "no scheme"})), "resources/read", "uri"),
        (failure(-32022), "tools/list", "not a UnsupportedProtocolVersionError: .*data"),
        (failure(-32021, data={}), "tools/call", "requiredCapabilities"),
    ],
)
def test_what_only_the_schema_knows_is_refused(message, method, reason: str):
    with pytest.raises(AssertionError, match=reason):
        SchemaOracle(MODERN).check_from_server(message, method)


@pytest.mark.parametrize(
    "message",
    [failure(-32602, data={"uri": "a:b"}), failure(-31001), failure(-32000), failure(-32020), failure(404)],
)
def test_permitted_errors_pass(message):
    SchemaOracle(MODERN).check_from_server(message, "tools/call")


@pytest.mark.parametrize("revision", SUPPORTED)
def test_an_error_about_an_unreadable_request_needs_no_id(revision: str):
    message = failure(-32700)
    del message["id"]
    SchemaOracle(revision).check_from_server(message)


LEGACY_INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "n", "version": "1"},
    },
}


@pytest.mark.parametrize("revision", [revision for revision in SUPPORTED if revision != MODERN])
def test_legacy_handshakes_pass(revision: str):
    oracle = SchemaOracle(revision)
    oracle.check_from_client(LEGACY_INITIALIZE)
    oracle.check_from_client({"jsonrpc": "2.0", "method": "notifications/initialized"})
    oracle.check_from_server(
        reply({"protocolVersion": revision, "capabilities": {}, "serverInfo": {"name": "n", "version": "1"}}),
        "initialize",
    )
    oracle.check_from_server(reply({}), "ping")
    oracle.check_from_client(
        {"jsonrpc": "2.0", "id": "a", "method": "resources/subscribe", "params": {"uri": "a:b"}}
    )
    oracle.check_from_client(reply({"roots": []}), "roots/list")


@pytest.mark.parametrize(
    ("path", "value"),
    [(["params", "clientInfo"], {"name": "n"}), (["params"], {}), (["params", "protocolVersion"], 20250618)],
)
def test_a_broken_handshake_is_refused(path: list[str], value: object):
    message = deepcopy(LEGACY_INITIALIZE)
    *way, last = path
    target: Any = message
    for key in way:
        target = target[key]
    target[last] = value
    with pytest.raises(AssertionError):
        SchemaOracle("2025-06-18").check_from_client(message)


def test_a_modern_client_has_no_handshake():
    with pytest.raises(AssertionError, match="'initialize' is no ClientRequest"):
        SchemaOracle(MODERN).check_from_client(LEGACY_INITIALIZE)


def test_a_refusal_names_place_reason_and_message():
    with pytest.raises(AssertionError) as caught:
        SchemaOracle(MODERN).check_from_server(
            reply(MODERN_RESOURCES | {"resources": [{"uri": 1}]}), "resources/list"
        )
    text = str(caught.value)
    assert MODERN in text
    assert "from the server" in text
    assert "resources" in text
    assert '"uri": 1' in text


@pytest.mark.parametrize("revision", SUPPORTED)
def test_the_official_types_judge_where_there_are_no_schemas(revision: str):
    judge = OfficialTypes(revision)
    judge.check_result("resources/list", MODERN_RESOURCES)
    with pytest.raises(AssertionError, match="resources"):
        judge.check_result("resources/list", {"resultType": "complete"})
    with pytest.raises(AssertionError, match="no ClientRequest"):
        judge.check_call("ClientRequest", {"method": "nonsense"})
    with pytest.raises(AssertionError, match=r"'memo:\{\}' is not a URI"):
        judge.check_call("ClientRequest", {"method": "resources/read", "params": {"uri": "memo:{}"}})
