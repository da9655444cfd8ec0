from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import MODERN_KEYS, Call, modern_meta, upgrade_result, with_meta
from mcpmux.protocol.codes import INVALID_PARAMS, MODERN_ONLY, RESOURCE_NOT_FOUND, MalformedRequest
from mcpmux.protocol.envelope import decode_any, decode_fields, raw
from mcpmux.protocol.era import downgrade_error, downgrade_meta, downgrade_result, upgrade_call, upgrade_error
from mcpmux.protocol.handshake import ClientFacts
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.revisions import NEWEST
from tests.oracle import SchemaOracle
from tests.payloads import member_texts

CLIENT = ClientFacts(Raw(b'{"name":"c","version":"1"}'), Raw(b'{"roots":{}}'))
LOUD_CLIENT = ClientFacts(CLIENT.info, CLIENT.capabilities, "debug")
MODERN_MEMBERS = {"resultType", "ttlMs", "cacheScope"}

methods = st.sampled_from([*m.LISTS, m.TOOLS_CALL, m.PROMPTS_GET, m.RESOURCES_READ, m.COMPLETE, "vendor/x"])
fields = member_texts.map(lambda members: {key: Raw(text.encode()) for key, text in members.items()})
results = fields.map(lambda members: {key: members[key] for key in members.keys() - MODERN_MEMBERS})


# Calls


@given(fields, fields)
def test_what_a_legacy_client_says_comes_back_out_for_a_legacy_server(params: Fields, meta: Fields):
    params = {key: value for key, value in params.items() if key != "_meta"}
    meta = {key: value for key, value in meta.items() if key not in MODERN_KEYS}
    call = upgrade_call(Call.of("tools/call", raw(with_meta(params, meta))), LOUD_CLIENT)
    assert (call.method, call.params, downgrade_meta(call)) == ("tools/call", params, meta)


@pytest.mark.parametrize("client", [CLIENT, LOUD_CLIENT])
@pytest.mark.parametrize("method", sorted(m.LISTS))
def test_a_legacy_clients_request_becomes_one_of_2026(method: str, client: ClientFacts):
    call = upgrade_call(Call.of(method, Raw(b'{"cursor":"x","_meta":{"progressToken":0}}')), client)
    assert ("io.modelcontextprotocol/logLevel" in call.meta) is (client.log_level is not None)
    assert call.meta["progressToken"] == raw(0)
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": with_meta(call.params, call.meta)}
    SchemaOracle(NEWEST).check_from_client(decode_any(raw(request)))


def test_a_legacy_client_cannot_speak_for_the_session_in_meta():
    forged = Raw(b'{"_meta":{"io.modelcontextprotocol/clientCapabilities":{"sampling":{}}}}')
    call = upgrade_call(Call.of("tools/list", forged), CLIENT)
    assert call.meta["io.modelcontextprotocol/clientCapabilities"] == CLIENT.capabilities


def test_meta_that_is_no_object_is_refused():
    with pytest.raises(MalformedRequest):
        Call.of("tools/list", Raw(b'{"_meta":1}'))


def test_a_modern_server_hears_what_the_client_said_of_itself():
    call = Call("tools/list", {}, {"io.modelcontextprotocol/clientInfo": raw("them"), "x": raw(1)})
    assert modern_meta(call, raw("us")) == {
        "io.modelcontextprotocol/clientInfo": raw("them"),
        "x": raw(1),
        "io.modelcontextprotocol/protocolVersion": raw("2026-07-28"),
        "io.modelcontextprotocol/clientCapabilities": raw({}),
    }


def test_a_modern_server_hears_of_us_when_the_client_said_nothing():
    meta = modern_meta(Call("tools/list", {}, {}), raw("us"))
    assert meta["io.modelcontextprotocol/clientInfo"] == raw("us")


# Results


@given(methods, results)
def test_a_legacy_result_survives_the_way_up_and_down(method: str, result: Fields):
    assert downgrade_result(upgrade_result(method, dict(result))) == result


@given(methods, fields)
def test_upgrading_adds_only_what_is_missing(method: str, result: Fields):
    upgraded = upgrade_result(method, dict(result))
    assert {key: upgraded[key] for key in result} == result
    added = MODERN_MEMBERS if method in m.CACHEABLE else {"resultType"}
    assert upgraded.keys() == result.keys() | added
    assert upgrade_result(method, dict(upgraded)) == upgraded


NO_HINTS = {"ttlMs": 0, "cacheScope": "private"}


@pytest.mark.parametrize(
    ("hints", "upgraded"),
    [
        ({"ttlMs": 5, "cacheScope": "public"}, {"ttlMs": 5, "cacheScope": "public"}),
        ({"ttlMs": -5, "cacheScope": "shared"}, NO_HINTS),
        ({"ttlMs": "5", "cacheScope": None}, NO_HINTS),
        ({"ttlMs": 1.5}, NO_HINTS),
        ({"resultType": "input_required", "requestState": "s"}, {}),
    ],
)
def test_a_complete_result_has_caching_hints_that_are_allowed(hints: Any, upgraded: Any):
    """ "Servers MUST provide a `ttlMs` value that is `>= 0`"; interim results "carry no caching hints"."""
    result = upgrade_result(m.RESOURCES_READ, decode_fields(raw(hints)))
    assert {key: decode_any(result[key]) for key in NO_HINTS if key in result} == upgraded


LEGACY_RESULTS: list[tuple[str, dict[str, Any]]] = [
    (m.RESOURCES_LIST, {"resources": [{"uri": "file:///a", "name": "a"}]}),
    (m.TEMPLATES_LIST, {"resourceTemplates": [], "nextCursor": ""}),
    (m.TOOLS_LIST, {"tools": [{"name": "a", "inputSchema": {"type": "object"}}]}),
    (m.PROMPTS_LIST, {"prompts": []}),
    (m.RESOURCES_READ, {"contents": [{"uri": "file:///a", "text": ""}]}),
    (m.TOOLS_CALL, {"content": [{"type": "text", "text": "x"}]}),
    (m.PROMPTS_GET, {"messages": []}),
    (m.COMPLETE, {"completion": {"values": []}}),
]


@pytest.mark.parametrize(("method", "result"), LEGACY_RESULTS, ids=[row[0] for row in LEGACY_RESULTS])
def test_an_upgraded_result_is_one_of_2026(method: str, result: dict[str, Any]):
    upgraded = upgrade_result(method, decode_fields(raw(result)))
    SchemaOracle(NEWEST).check_from_server(
        {"jsonrpc": "2.0", "id": 1, "result": decode_any(raw(upgraded))}, method
    )


SERVER_INFO = "io.modelcontextprotocol/serverInfo"
DOWNGRADED: list[tuple[str, str, str]] = [
    ("server info alone", f'{{"_meta":{{"{SERVER_INFO}":{{}}}}}}', "{}"),
    (
        "server info among others",
        f'{{"_meta":{{"a":1.0,"{SERVER_INFO}":{{}},"b":2}}}}',
        '{"_meta":{"a":1.0,"b":2}}',
    ),
    ("server info with an escape", '{"_meta":{"io.modelcontextprotocol\\/serverInfo":{}}}', "{}"),
    ("other meta keeps its spelling", '{"_meta":{ "a" : 1E5 }}', '{"_meta":{ "a" : 1E5 }}'),
    ("meta that is no object", f'{{"_meta":"{SERVER_INFO}"}}', f'{{"_meta":"{SERVER_INFO}"}}'),
    (
        "schema of an object",
        '{"tools":[ {"name":"a","outputSchema":{"type":"object"}}]}',
        '{"tools":[ {"name":"a","outputSchema":{"type":"object"}}]}',
    ),
    (
        "schema of something else, beside no object",
        '{"tools":[{"name":"a","outputSchema":{"type":"array"}},null]}',
        '{"tools":[{"name":"a"},null]}',
    ),
    (
        "schema of something else",
        '{"tools":[{"name":"a","outputSchema":{"type":"array"}},{"name":"b","outputSchema":true},{"name":"c"}]}',
        '{"tools":[{"name":"a"},{"name":"b"},{"name":"c"}]}',
    ),
    (
        "properties that are true or false",
        '{"tools":[{"inputSchema":{"type":"object","properties":{"a":true,"b":{ },"c":false}}}]}',
        '{"tools":[{"inputSchema":{"type":"object","properties":{"a":{},"b":{ },"c":{"not":{}}}}}]}',
    ),
    (
        "properties that are objects keep their spelling",
        '{"tools":[ {"inputSchema":{"properties":{ "a":{ } }}}]}',
        '{"tools":[ {"inputSchema":{"properties":{ "a":{ } }}}]}',
    ),
    ("tools that are no list", '{"tools":{"a":1}}', '{"tools":{"a":1}}'),
]


@pytest.mark.parametrize(
    ("before", "after"), [row[1:] for row in DOWNGRADED], ids=[row[0] for row in DOWNGRADED]
)
def test_what_legacy_revisions_do_not_know_is_left_out(before: str, after: str):
    assert bytes(raw(downgrade_result(decode_fields(before.encode())))).decode() == after


# Errors


def data_of(error: RpcError) -> Any:
    return decode_any(error.data) if isinstance(error.data, Raw) else error.data


NOT_FOUND_DATA: list[tuple[Any, Any]] = [
    (None, {"uri": "file:///a"}),
    ({"uri": "file:///other"}, {"uri": "file:///other"}),
    ({"why": "gone"}, {"why": "gone", "uri": "file:///a"}),
    ("gone", {"uri": "file:///a"}),
]


@pytest.mark.parametrize("method", [m.RESOURCES_READ, m.RESOURCES_SUBSCRIBE])
@pytest.mark.parametrize(("data", "upgraded"), NOT_FOUND_DATA)
def test_a_missing_resource_is_said_in_the_words_of_each_era(method: str, data: Any, upgraded: Any):
    """ "Error Handling" of resources, 2026-07-28: -32602, as earlier versions used -32002."""
    error = RpcError(RESOURCE_NOT_FOUND, "not found", None if data is None else raw(data))
    modern = upgrade_error(method, {"uri": raw("file:///a")}, error)
    assert (modern.code, modern.message, data_of(modern)) == (INVALID_PARAMS, "not found", upgraded)
    legacy = downgrade_error(method, modern)
    assert (legacy.code, legacy.message, data_of(legacy)) == (RESOURCE_NOT_FOUND, "not found", upgraded)


def test_the_retired_code_is_never_shown_to_a_modern_client():
    """ "Error Codes", 2026-07-28: implementations MUST NOT emit -32002."""
    for method, params in [(m.TOOLS_CALL, {"uri": raw("x")}), (m.RESOURCES_READ, {})]:
        error = upgrade_error(method, params, RpcError(RESOURCE_NOT_FOUND, "no", raw(1)))
        assert (error.code, error.data) == (INVALID_PARAMS, raw(1))


@pytest.mark.parametrize("code", sorted(MODERN_ONLY))
def test_codes_of_2026_are_not_shown_to_legacy_clients(code: int):
    error = downgrade_error(m.TOOLS_CALL, RpcError(code, "why", raw({"a": 1})))
    assert (error.code, error.message, error.data) == (INVALID_PARAMS, "why", raw({"a": 1}))


UNTOUCHED: list[RpcError] = [
    RpcError(-32601, "no such method"),
    RpcError(INVALID_PARAMS, "no data"),
    RpcError(INVALID_PARAMS, "our own data", {"why": "x"}),
    RpcError(INVALID_PARAMS, "data is no object", raw(["uri"])),
    RpcError(-31001, "down", raw({"uri": "file:///a"})),
]


@pytest.mark.parametrize("error", UNTOUCHED, ids=str)
def test_other_errors_are_the_same_in_both_eras(error: RpcError):
    assert downgrade_error(m.RESOURCES_READ, error) is error
    assert upgrade_error(m.RESOURCES_READ, {"uri": raw("file:///a")}, error) is error


def test_invalid_params_of_other_methods_are_not_about_a_resource():
    error = RpcError(INVALID_PARAMS, "bad", {"uri": "file:///a"})
    assert downgrade_error(m.TOOLS_CALL, error) is error
    assert downgrade_error(m.RESOURCES_READ, error).code == RESOURCE_NOT_FOUND


@pytest.mark.parametrize("number", ["1e400", "1" * 5000])
def test_error_data_with_numbers_that_python_cannot_hold_is_no_trouble(number: str):
    data = Raw(json.dumps({"uri": "file:///a"})[:-1].encode() + b',"n":' + number.encode() + b"}")
    error = upgrade_error(m.RESOURCES_READ, {"uri": raw("x")}, RpcError(RESOURCE_NOT_FOUND, "no", data))
    assert (error.code, error.data) == (INVALID_PARAMS, data)
    assert downgrade_error(m.RESOURCES_READ, error).code == RESOURCE_NOT_FOUND
