from __future__ import annotations

import json
from typing import Any

import pytest

from mcpmux.errors import McpmuxError, RemoteProtocolError, RpcError, TransportError
from mcpmux.protocol import handshake
from mcpmux.protocol.call import Call, with_meta
from mcpmux.protocol.codes import MODERN_ONLY
from mcpmux.protocol.envelope import decode_fields, encode_request, raw
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import LEGACY, NEWEST, NEWEST_LEGACY
from tests.oracle import SchemaOracle

INFO = raw({"name": "mcpmux", "version": "1"})
CAPABILITIES = {"tools": {"listChanged": True}}


def fields(value: dict[str, Any]) -> Fields:
    return decode_fields(raw(value))


def discovered(**changes: Any) -> Fields:
    answer = {
        "resultType": "complete",
        "supportedVersions": [NEWEST],
        "capabilities": CAPABILITIES,
        "instructions": "Read.",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "s"}},
    }
    return fields({key: value for key, value in {**answer, **changes}.items() if value is not ...})


def initialized(**changes: Any) -> Fields:
    answer = {
        "protocolVersion": NEWEST_LEGACY,
        "capabilities": CAPABILITIES,
        "serverInfo": {"name": "s"},
        "instructions": "Read.",
    }
    return fields({key: value for key, value in {**answer, **changes}.items() if value is not ...})


@pytest.mark.parametrize(
    ("call", "revision"),
    [
        (handshake.discover_call(INFO), NEWEST),
        (handshake.initialize_call(INFO, raw({"sampling": {}})), NEWEST_LEGACY),
    ],
    ids=["discover", "initialize"],
)
def test_what_is_asked_is_what_the_revision_says(call: Call, revision: str):
    message = json.loads(encode_request(1, call.method, with_meta(call.params, call.meta)))
    SchemaOracle(revision).check_from_client(message)


def test_initialize_offers_the_newest_legacy_revision_and_the_clients_capabilities():
    call = handshake.initialize_call(INFO, raw({"roots": {}}))
    assert call.text("protocolVersion") == NEWEST_LEGACY
    assert decode_fields(call.params["capabilities"]) == {"roots": raw({})}


def test_a_modern_server_is_known_by_its_discover_result():
    facts = handshake.read_discover_result(discovered())
    assert facts == ServerFacts(NEWEST, CAPABILITIES, raw({"name": "s"}), "Read.")


def test_what_a_modern_server_may_leave_out_is_none():
    facts = handshake.read_discover_result(discovered(instructions=..., _meta=..., capabilities=...))
    assert facts == ServerFacts(NEWEST, {})


@pytest.mark.parametrize(
    "changes",
    [
        {"supportedVersions": ...},
        {"supportedVersions": None},
        {"supportedVersions": NEWEST},
        {"supportedVersions": []},
        {"supportedVersions": ["2099-01-01", NEWEST_LEGACY]},
        {"capabilities": []},
        {"capabilities": None},
        {"_meta": 1},
    ],
)
def test_another_answer_to_discover_is_no_modern_server(changes: dict[str, Any]):
    assert handshake.read_discover_result(discovered(**changes)) is None


@pytest.mark.parametrize("revision", LEGACY)
def test_a_legacy_server_is_known_by_its_initialize_result(revision: str):
    facts = handshake.read_initialize_result(initialized(protocolVersion=revision))
    assert facts == ServerFacts(revision, CAPABILITIES, raw({"name": "s"}), "Read.")


def test_what_a_legacy_server_leaves_out_is_none():
    facts = handshake.read_initialize_result(fields({"protocolVersion": NEWEST_LEGACY}))
    assert facts == ServerFacts(NEWEST_LEGACY, {})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"protocolVersion": ...}, "without a protocolVersion"),
        ({"protocolVersion": 1}, "without a protocolVersion"),
        ({"protocolVersion": "1999-01-01"}, f"'1999-01-01'; mcpmux knows 2024-11-05.* and {NEWEST}"),
        ({"protocolVersion": NEWEST}, "it speaks revision"),
        ({"capabilities": "all"}, "malformed capabilities"),
    ],
)
def test_an_initialize_result_that_makes_no_sense_is_told(changes: dict[str, Any], reason: str):
    with pytest.raises(RemoteProtocolError, match=reason):
        handshake.read_initialize_result(initialized(**changes))


@pytest.mark.parametrize(
    ("revision", "capabilities", "name", "offered"),
    [
        (NEWEST, {"tools": {}}, "tools", True),
        (NEWEST, {"tools": True}, "tools", False),
        (NEWEST, {"tools": None}, "tools", False),
        (NEWEST, {}, "tools", False),
        (NEWEST, {}, "completions", False),
        ("2025-03-26", {}, "completions", False),
        ("2024-11-05", {}, "completions", True),
        ("2024-11-05", {}, "prompts", False),
    ],
)
def test_a_capability_is_offered_by_an_object(
    revision: str, capabilities: dict[str, Any], name: str, offered: bool
):
    assert ServerFacts(revision, capabilities).offers(name) is offered


def test_only_errors_of_the_modern_era_are_final():
    for code in (-32601, -32602, -32600, -32700, -32603, -32002, -32000, 0):
        assert not handshake.is_final(RpcError(code, "no"))
    for code in MODERN_ONLY:
        assert handshake.is_final(RpcError(code, "no"))


LISTS_NEWEST = f"it refuses revision {NEWEST} and says that it supports it"
NO_COMMON = "no revision in common; it supports "


@pytest.mark.parametrize(
    ("data", "legacy", "newest", "words"),
    [
        ({"supported": ["2025-11-25"]}, True, False, NO_COMMON + "2025-11-25"),
        ({"supported": ["2099-01-01", "2024-11-05"]}, True, False, NO_COMMON + "2099-01-01, 2024-11-05"),
        ({"supported": ["2099-01-01"]}, False, False, NO_COMMON + "2099-01-01"),
        ({"supported": [NEWEST]}, False, True, LISTS_NEWEST),
        ({"supported": ["2025-11-25", NEWEST]}, True, True, LISTS_NEWEST),
        ({"supported": [1, None, "x"]}, False, False, NO_COMMON + "x"),
        ({"supported": "2025-11-25"}, False, False, NO_COMMON + "none that it would name"),
        ({}, False, False, NO_COMMON + "none that it would name"),
        ([], False, False, NO_COMMON + "none that it would name"),
        (None, False, False, NO_COMMON + "none that it would name"),
    ],
)
def test_the_versions_of_an_error_are_read(data: Any, legacy: bool, newest: bool, words: str):
    for form in (data, raw(data)):
        error = RpcError(-32022, "no", form)
        assert handshake.is_final(error) is not legacy
        assert handshake.offers_newest(error) is newest
        assert handshake.refusal(error) == words


def test_only_a_version_error_offers_versions():
    for code in (-32601, -32021):
        error = RpcError(code, "no", {"supported": ["2025-11-25", NEWEST]})
        assert handshake.is_final(error) is (code == -32021)
        assert not handshake.offers_newest(error)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-32021, "it refused `server/discover`: why"),
        (
            -32020,
            "it refused `server/discover`: why; something on the way may remove or change the Mcp-* headers",
        ),
    ],
)
def test_other_modern_errors_are_told_in_the_words_of_the_server(code: int, words: str):
    assert handshake.refusal(RpcError(code, "why")) == words


NAMES = "Unsupported protocol version: 2025-11-25 (supported versions: 2025-06-18, 2025-03-26)"
OLDEST = "2024-11-05"


@pytest.mark.parametrize(
    ("refusal", "asked", "following"),
    [
        # the specification's own example
        (RpcError(-32602, "Unsupported protocol version", {"supported": [OLDEST]}), 1, OLDEST),
        (RpcError(-32602, "no", {"supported": [OLDEST, "2025-06-18", "2099-01-01"]}), 1, "2025-06-18"),
        (RpcError(-32602, "no", {"supported": ["2099-01-01"]}), 1, None),
        (RpcError(-32602, "no", {"supported": ["2025-11-25"]}), 1, "2025-06-18"),  # a false claim
        (RpcError(-32602, "no", {"supported": "all"}), 2, "2025-03-26"),
        (RpcError(-32000, NAMES), 1, "2025-06-18"),
        (TransportError(f"HTTP status 400: {NAMES}"), 1, "2025-06-18"),
        (TransportError(f"HTTP status 400: {NAMES}"), 2, "2025-03-26"),
        (TransportError("HTTP status 400").quoting(f": {NAMES}"), 1, "2025-06-18"),
        (TransportError("HTTP status 400: bad Protocol-Version"), 3, OLDEST),
        (TransportError("HTTP status 400: bad Protocol-Version"), 4, None),
        (TransportError("HTTP status 400: nothing here"), 1, None),
        (RpcError(-32603, "Internal error"), 1, None),
        (RpcError(-32603, "unknown revision"), 1, "2025-06-18"),
    ],
)
def test_a_refused_revision_is_followed_by_the_newest_that_may_do(
    refusal: McpmuxError, asked: int, following: str | None
):
    """`asked`: how many of our legacy revisions were refused, from the newest on."""
    assert handshake.next_revision(refusal, LEGACY[::-1][:asked]) == following
