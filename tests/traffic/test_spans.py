"""Spans of exchanges in every pair of eras, and their context as sent to upstreams."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing
from opentelemetry.trace import SpanKind, StatusCode

from mcpmux.channels.tap import Leg
from mcpmux.config import Intercept
from mcpmux.traffic.outcome import TOOL_ERROR
from mcpmux.traffic.telemetry.metrics import NAMES_FAILED, LabelNames
from mcpmux.traffic.telemetry.spans import ARRIVED_LIMIT
from tests.peers.revision import Json
from tests.peers.server import RpcFailure, ScriptedServer
from tests.runtime.test_flows import docs, open_client
from tests.runtime.world import open_world
from tests.traffic.traced_world import (
    BAGGAGE,
    CALLER,
    OTHER_TRACE,
    OTHER_TRACEPARENT,
    TRACE,
    TRACEPARENT,
    TRACESTATE,
    Memory,
    attributes_of,
    context_of,
    make_spans,
    open_over_http,
    open_traced,
    parent_of,
    recorder_of,
    times_of,
    traceparent_of,
)

MODERN = "2026-07-28"
ERAS = ("2024-11-05", "2025-11-25", MODERN)
SAID = {"traceparent": TRACEPARENT, "tracestate": TRACESTATE, "baggage": BAGGAGE}
URI = {"uri": "docs+memo:1"}


def last(server: ScriptedServer, method: str) -> Json:
    """Return the last request of that method that a server has got."""
    return [message for message in server.seen if message.get("method") == method][-1]


def told(server: ScriptedServer, method: str) -> Json:
    """Return the trace context in the last request of that method."""
    meta = last(server, method)["params"].get("_meta", {})
    return {key: meta[key] for key in ("traceparent", "tracestate", "baggage") if key in meta}


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", ERAS)
async def test_context_in_meta_passes_unchanged_when_tracing_is_off(down, up, autojump_clock):
    server = docs(up)
    async with open_world({"docs": server}) as world:
        client = await open_client(world, down)
        await client.request("resources/read", URI, **SAID)
        assert told(server, "resources/read") == SAID


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", ERAS)
async def test_a_clients_trace_goes_on_over_both_legs(down, up, autojump_clock):
    server = docs(up)
    async with open_traced({"docs": server}) as (world, memory):
        client = await open_client(world, down)
        memory.clear()
        await client.request("resources/read", URI, **SAID)
        above, below = memory.pair()
        assert parent_of(above) == (TRACE, CALLER)
        assert parent_of(below) == context_of(above)
        expected = {"traceparent": traceparent_of(below), "tracestate": TRACESTATE, "baggage": BAGGAGE}
        assert told(server, "resources/read") == expected
        assert attributes_of(above)["mcp.protocol.version"] == down
        assert attributes_of(below)["mcp.protocol.version"] == up


async def test_attributes_are_those_of_the_conventions(autojump_clock):
    server = docs()
    async with open_traced({"docs": server}) as (world, memory):
        client = await open_client(world, MODERN)
        request_id = await client.start("resources/read", URI)
        await client.receive()
        above, below = memory.pair()
        assert (above.name, below.name) == ("resources/read", "resources/read")
        assert attributes_of(above) == {
            "mcp.method.name": "resources/read",
            "mcp.protocol.version": MODERN,
            "mcp.resource.uri": "docs+memo:1",
            "network.transport": "pipe",
            "jsonrpc.request.id": str(request_id),
            "mcpmux.exchange": 1,
        }
        assert attributes_of(below) == {
            "mcp.method.name": "resources/read",
            "mcp.protocol.version": MODERN,
            "mcp.resource.uri": "memo:1",
            "network.transport": "tcp",
            "network.protocol.name": "http",
            "jsonrpc.request.id": str(last(server, "resources/read")["id"]),
            "mcpmux.upstream": "docs",
            "server.address": "docs.example.com",
            "server.port": 8443,
        }
        assert above.status.status_code is below.status.status_code is StatusCode.UNSET
        (began, ended), (sent, answered) = times_of(above), times_of(below)
        assert began <= sent <= answered <= ended


async def test_a_trace_begins_here_when_the_client_has_none(autojump_clock):
    server = docs()
    async with open_traced({"docs": server}) as (world, memory):
        client = await open_client(world, MODERN)
        await client.request("resources/read", URI)
        above, below = memory.pair()
        assert parent_of(above) is None
        assert told(server, "resources/read") == {"traceparent": traceparent_of(below)}


@pytest.mark.parametrize(
    "bad", ["", "00", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", TRACEPARENT + "-x", 5, None, "é\x00\r\n"]
)
async def test_a_malformed_context_is_none(bad: Any, autojump_clock):
    server = docs()
    async with open_traced({"docs": server}) as (world, memory):
        client = await open_client(world, "2025-11-25")
        memory.clear()
        await client.request("resources/read", URI, traceparent=bad, tracestate=bad)
        above, below = memory.pair()
        assert parent_of(above) is None
        assert told(server, "resources/read") == {"traceparent": traceparent_of(below)}


async def test_what_the_caller_does_not_sample_is_not_sampled(autojump_clock):
    server = docs()
    async with open_traced({"docs": server}) as (world, memory):
        client = await open_client(world, MODERN)
        await client.request("resources/read", URI, traceparent=TRACEPARENT[:-1] + "0")
        assert memory.spans == []
        version, trace, _, flags = told(server, "resources/read")["traceparent"].split("-")
        assert (version, trace, flags) == ("00", TRACE, "00")


async def test_without_propagation_upstreams_hear_what_the_client_says(autojump_clock):
    server = docs()
    async with open_traced({"docs": server}, propagate=False) as (world, memory):
        client = await open_client(world, MODERN)
        await client.request("resources/read", URI, **SAID)
        assert told(server, "resources/read") == SAID
        above, below = memory.pair()
        assert parent_of(above) == (TRACE, CALLER) and parent_of(below) == context_of(above)


async def test_a_merged_list_has_a_span_for_each_upstream(autojump_clock):
    servers = {"docs": docs(), "more": docs("2025-06-18")}
    async with open_traced(servers) as (world, memory):
        client = await open_client(world, MODERN)
        await client.request("resources/list")
        (above,) = memory.of_kind(SpanKind.SERVER)
        below = memory.of_kind(SpanKind.CLIENT)
        assert {attributes_of(span)["mcpmux.upstream"] for span in below} == {"docs", "more"}
        assert {parent_of(span) for span in below} == {context_of(above)}
        for name, server in servers.items():
            (own,) = [span for span in below if attributes_of(span)["mcpmux.upstream"] == name]
            assert told(server, "resources/list") == {"traceparent": traceparent_of(own)}


def tools(call: Any) -> ScriptedServer:
    tool = {"name": "search", "inputSchema": {"type": "object"}}
    prompt = {"name": "greet"}
    return ScriptedServer(tools=[tool], prompts=[prompt], handlers={"tools/call": call, "prompts/get": call})


def answering(result: Json) -> Any:
    async def call(_server: ScriptedServer, _params: Json, _message: Json) -> Json:
        return {"resultType": "complete", **result}

    return call


async def test_a_tool_that_fails_is_an_error_on_both_legs(autojump_clock):
    server = tools(answering({"content": [], "isError": True}))
    async with open_traced({"docs": server}) as (world, memory):
        client = await open_client(world, MODERN)
        await client.request("tools/call", {"name": "docs__search"})
        above, below = memory.pair()
        assert (above.name, below.name) == ("tools/call docs__search", "tools/call search")
        for span in (above, below):
            assert attributes_of(span)["error.type"] == "tool_error"
            assert attributes_of(span)["gen_ai.operation.name"] == "execute_tool"
            assert span.status.status_code is StatusCode.ERROR
            assert "rpc.response.status_code" not in attributes_of(span)
        assert attributes_of(above)["gen_ai.tool.name"] == "docs__search"
        assert attributes_of(below)["gen_ai.tool.name"] == "search"


async def test_a_prompt_is_named(autojump_clock):
    async with open_traced({"docs": tools(answering({"messages": []}))}) as (world, memory):
        client = await open_client(world, MODERN)
        await client.request("prompts/get", {"name": "docs__greet"})
        above, below = memory.pair()
        assert (above.name, below.name) == ("prompts/get docs__greet", "prompts/get greet")
        assert attributes_of(above)["gen_ai.prompt.name"] == "docs__greet"
        assert "gen_ai.operation.name" not in attributes_of(above)


async def test_an_error_code_is_the_type_of_the_error(autojump_clock):
    async def refuse(_server: ScriptedServer, _params: Json, _message: Json) -> Json:
        raise RpcFailure(-32602, "no such thing")

    async with open_traced({"docs": tools(refuse)}) as (world, memory):
        client = await open_client(world, MODERN)
        with pytest.raises(RpcFailure):
            await client.request("tools/call", {"name": "docs__search"})
        for span in memory.pair():
            attributes = attributes_of(span)
            assert attributes["error.type"] == attributes["rpc.response.status_code"] == "-32602"
            assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "no such thing")


async def hang(_server: ScriptedServer, _params: Json, _message: Json) -> Json:
    await trio.sleep_forever()
    raise AssertionError


async def test_an_upstream_that_says_nothing_is_a_timeout(autojump_clock):
    async with open_traced({"docs": tools(hang)}) as (world, memory):
        client = await open_client(world, MODERN)
        with trio.fail_after(1000):
            await client.start("tools/call", {"name": "docs__search"})
            await trio.sleep(301)
        assert (await client.receive())["error"]["code"] == -31002
        above, below = memory.pair()
        assert attributes_of(below)["error.type"] == "timeout"
        assert attributes_of(above)["error.type"] == "-31002"


async def test_a_cancelled_exchange_ends_its_spans(autojump_clock):
    async with open_traced({"docs": tools(hang)}) as (world, memory):
        client = await open_client(world, MODERN)
        request_id = await client.start("tools/call", {"name": "docs__search"})
        await trio.testing.wait_all_tasks_blocked()
        await client.send({"method": "notifications/cancelled", "params": {"requestId": request_id}})
        await trio.sleep(1)
        for span in memory.pair():
            assert attributes_of(span)["error.type"] == "cancelled"
            assert span.status.status_code is StatusCode.ERROR


async def test_an_upstream_that_is_down_has_a_span_with_the_reason(autojump_clock):
    async with open_traced({"docs": None}) as (world, memory):
        client = await open_client(world, MODERN)
        with pytest.raises(RpcFailure):
            await client.request("resources/read", URI)
        _, below = memory.pair()
        assert attributes_of(below)["error.type"] == "-31001"
        assert "nobody there" in (below.status.description or "")


async def test_a_listen_that_its_client_ends_is_no_error(autojump_clock):
    async with open_traced({"docs": docs()}) as (world, memory):
        client = await open_client(world, MODERN)
        wish = {"notifications": {"resourcesListChanged": True}}
        request_id = await client.start("subscriptions/listen", wish)
        await client.receive_method("notifications/subscriptions/acknowledged")
        await client.send({"method": "notifications/cancelled", "params": {"requestId": request_id}})
        await trio.sleep(1)
        (span,) = memory.spans
        assert (span.name, span.status.status_code) == ("subscriptions/listen", StatusCode.UNSET)


async def test_strangers_methods_and_uris_are_in_no_name(autojump_clock):
    server = docs()
    async with open_traced({"docs": server}) as (world, memory):
        client = await open_client(world, MODERN)
        with pytest.raises(RpcFailure):
            await client.request("vendor/" + "x" * 300)
        (span,) = memory.of_kind(SpanKind.SERVER)
        assert span.name == "_OTHER"
        assert len(attributes_of(span)["mcp.method.name"]) == 200
        measured = memory.points("mcp.server.operation.duration")
        assert [attributes["mcp.method.name"] for attributes, _ in measured] == ["_OTHER"]


SECRET = "sk-PLANTED0123456789abcdef"


async def test_a_planted_secret_is_in_no_span(autojump_clock):
    async def refuse(_server: ScriptedServer, _params: Json, _message: Json) -> Json:
        raise RpcFailure(-32602, f"bad key {SECRET}")

    server = ScriptedServer(resources=[], tools=[], handlers={"resources/read": refuse, "tools/call": refuse})
    async with open_traced({"docs": server}) as (world, memory):
        client = await open_client(world, MODERN)
        uri = f"docs+https://u:{SECRET}@example.com/?token={SECRET}"
        for method, params in (("resources/read", {"uri": uri}), ("tools/call", {"name": f"docs__{SECRET}"})):
            with pytest.raises(RpcFailure):
                await client.request(method, params)
        with pytest.raises(RpcFailure):
            await client.request(f"vendor/{SECRET}")
        shown = "".join(span.to_json() for span in memory.spans)
        assert "redacted" in shown and "example.com" in shown
        assert "PLANTED" not in shown
        assert "PLANTED" not in repr(memory.points("mcp.client.operation.duration"))


async def test_text_that_is_no_unicode_can_be_sent(autojump_clock):
    async with open_traced({"docs": docs()}) as (world, memory):
        client = world.client()
        params = client.params({"uri": "docs+memo:SURROGATE"})
        request = {"jsonrpc": "2.0", "id": "\x00é", "method": "resources/read", "params": params}
        await client.send_raw(json.dumps(request).replace("SURROGATE", "\\ud800").encode())
        await client.receive()
        for span in memory.spans:
            "".join(str(value) for value in (span.name, *attributes_of(span).values())).encode()


async def test_durations_are_measured_on_both_legs(autojump_clock):
    server = tools(answering({"content": []}))
    async with open_traced({"docs": server}) as (world, memory):
        client = await open_client(world, MODERN)
        for _ in range(2):
            await client.request("tools/call", {"name": "docs__search"})
        ((attributes, count),) = memory.points("mcp.client.operation.duration")
        assert count == 2
        assert attributes == {
            "mcp.method.name": "tools/call",
            "mcp.protocol.version": MODERN,
            "network.transport": "tcp",
            "network.protocol.name": "http",
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "search",
            "mcpmux.upstream": "docs",
            "server.address": "docs.example.com",
            "server.port": 8443,
        }
        ((attributes, count),) = memory.points("mcp.server.operation.duration")
        assert (attributes["gen_ai.tool.name"], count) == ("docs__search", 2)


async def test_a_tool_that_nobody_has_is_no_attribute_of_a_metric(autojump_clock):
    async with open_traced({"docs": tools(answering({}))}) as (world, memory):
        client = await open_client(world, MODERN)
        with pytest.raises(RpcFailure):
            await client.request("tools/call", {"name": "nobody__has_this"})
        ((attributes, _),) = memory.points("mcp.server.operation.duration")
        assert "gen_ai.tool.name" not in attributes and attributes["error.type"] == "-32602"


async def test_names_that_a_client_invents_do_not_grow_a_metric_without_bound(autojump_clock):
    """Some servers answer a call of an unknown tool with `isError`."""
    async with open_traced({"docs": tools(answering({"content": [], "isError": True}))}) as (world, memory):
        client = await open_client(world, MODERN)
        for number in range(NAMES_FAILED + 5):
            await client.request("tools/call", {"name": f"docs__x{number}"})
        points = [attributes for attributes, _ in memory.points("mcp.server.operation.duration")]
    assert sum("gen_ai.tool.name" in attributes for attributes in points) == NAMES_FAILED
    assert len(points) == NAMES_FAILED + 1


def test_a_tool_that_failed_first_and_then_succeeded_is_told_for_good():
    names = LabelNames(most=1, failed=1)
    assert names.allow("a", TOOL_ERROR)
    assert not names.allow("b", TOOL_ERROR)
    assert names.allow("a", None)
    assert names.allow("b", TOOL_ERROR)
    assert not names.allow("c", None)


def test_requests_that_are_never_admitted_take_bounded_memory():
    spans = make_spans(Memory())
    recorder = recorder_of(spans)
    leg = Leg("client", "c1", "http")
    recorder = type(recorder)([spans], [spans], lambda: 0.0)
    for number in range(ARRIVED_LIMIT + 10):
        recorder.message_passed(leg, "in", b'{"jsonrpc":"2.0","id":%d,"method":"ping"}' % number)
    assert len(spans._arrived) == ARRIVED_LIMIT


# Over HTTP, on real sockets


def modern(params: Json, **meta: Any) -> tuple[Json, Json]:
    """Return a read in 2026-07-28: body and headers."""
    identity = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
        **meta,
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {**params, "_meta": identity}}
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "resources/read", "Mcp-Name": params["uri"]}
    return body, headers


@pytest.mark.parametrize("revision", ["2025-06-18", MODERN])
async def test_context_comes_and_goes_in_headers(revision: str):
    memory = Memory()
    server = docs(revision)
    async with open_over_http(server, make_spans(memory)) as (client, face):
        body, headers = modern(URI)
        answer = await client.send(body, {**headers, **SAID})
        assert "result" in answer.last, answer.last
        above, below = memory.pair()
        assert parent_of(above) == (TRACE, CALLER)
        expected = {"traceparent": traceparent_of(below), "tracestate": TRACESTATE, "baggage": BAGGAGE}
        assert told(server, "resources/read") == expected
        sent = face.headers["resources/read"]
        assert {key: sent[key] for key in expected} == expected
        assert above.links == ()


async def test_a_legacy_session_over_http_is_traced_and_its_id_kept_secret():
    memory = Memory()
    server = docs("2025-06-18")
    async with open_over_http(server, make_spans(memory)) as (client, _face):
        session = await client.initialize("2025-06-18")
        body = {"jsonrpc": "2.0", "id": 7, "method": "resources/read", "params": URI}
        await client.send(body, {**session, "traceparent": TRACEPARENT})
        above = memory.of_kind(SpanKind.SERVER)[-1]
        assert (above.name, parent_of(above)) == ("resources/read", (TRACE, CALLER))
        assert attributes_of(above)["mcp.session.id"]
        assert session["Mcp-Session-Id"] not in "".join(span.to_json() for span in memory.spans)


async def test_context_in_meta_is_the_parent_and_headers_are_linked():
    memory = Memory()
    async with open_over_http(docs(), make_spans(memory)) as (client, _face):
        body, headers = modern(URI, traceparent=TRACEPARENT)
        await client.send(body, {**headers, "traceparent": OTHER_TRACEPARENT})
        above, _ = memory.pair()
        assert parent_of(above) == (TRACE, CALLER)
        assert [f"{link.context.trace_id:032x}" for link in above.links] == [OTHER_TRACE]


async def test_baggage_that_fits_in_no_header_goes_in_meta_only():
    memory = Memory()
    server = docs()
    async with open_over_http(server, make_spans(memory)) as (client, face):
        body, headers = modern(URI, traceparent=TRACEPARENT, baggage="a=1\r\nX-Evil: 1")
        answer = await client.send(body, headers)
        assert "result" in answer.last, answer.last
        assert told(server, "resources/read")["baggage"] == "a=1\r\nX-Evil: 1"
        assert "baggage" not in face.headers["resources/read"]
        assert "x-evil" not in face.headers["resources/read"]


async def test_headers_of_an_exchange_are_not_those_of_the_next():
    memory = Memory()
    async with open_over_http(docs(), make_spans(memory)) as (client, face):
        body, headers = modern(URI)
        await client.send(body, {**headers, **SAID})
        assert "tracestate" in face.headers["resources/read"]
        await client.send(*modern({"uri": "docs+memo:2"}))  # another, for what was read may be kept
        assert "tracestate" not in face.headers["resources/read"]
        assert "baggage" not in face.headers["resources/read"]


async def test_nothing_is_put_into_headers_when_tracing_is_off():
    server = docs()
    async with open_over_http(server, None) as (client, face):
        body, headers = modern(URI, **SAID)
        await client.send(body, {**headers, "traceparent": OTHER_TRACEPARENT})
        assert told(server, "resources/read") == SAID
        assert "traceparent" not in face.headers["resources/read"]


async def test_each_verdict_has_a_span_within_that_of_its_exchange(autojump_clock):
    intercept = (Intercept(builtin="delay", seconds=3.0, name="slow"),)
    async with open_traced({"docs": docs()}, intercept=intercept) as (world, memory):
        await world.client().request("resources/read", URI)
        (inner,) = memory.of_kind(SpanKind.INTERNAL)
        outer, _ = memory.pair()
        assert inner.name == "intercept request"
        assert attributes_of(inner) == {"mcpmux.interceptor": "slow", "mcpmux.verdict": "pass"}
        assert parent_of(inner) == context_of(outer)
        began, ended = times_of(inner)
        assert ended - began == 3_000_000_000
