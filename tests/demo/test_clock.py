"""The clock: a server of 2025-11-25 and of nothing else. The client checks all it gets by the schema."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from mcpmux.demo import clock
from mcpmux.protocol.revisions import V_2025_11_25
from tests.demo.test_servers import open_client

Json = dict[str, Any]


async def ask(method: str, params: Json | None = None) -> Json:
    async with open_client(clock.make_server(), V_2025_11_25) as client:
        result: Json = await client.request(method, params)
    return result


async def refusal_of(method: str, params: Json | None = None) -> int:
    async with open_client(clock.make_server(), V_2025_11_25) as client:
        error = await client.refusal(method, params)
    code: int = error["code"]
    return code


async def test_initialize_answers_the_only_revision_whatever_is_asked_for() -> None:
    params = {
        "protocolVersion": "2026-07-28",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    }
    assert (await ask("initialize", params))["protocolVersion"] == V_2025_11_25


async def test_discover_is_unknown_so_that_clients_fall_back() -> None:
    assert await refusal_of("server/discover") == -32601


@pytest.mark.parametrize("method", ["ping", "resources/list", "tools/list"])
async def test_plain_requests_are_answered(method: str) -> None:
    await ask(method)


async def test_listed_resource_is_the_time() -> None:
    uri = (await ask("resources/list"))["resources"][0]["uri"]
    contents = (await ask("resources/read", {"uri": uri}))["contents"]
    assert datetime.fromisoformat(contents[0]["text"].strip()).utcoffset() is not None


async def test_missing_resource_is_refused() -> None:
    assert await refusal_of("resources/read", {"uri": "clock:///nowhere"}) == -32002


@pytest.mark.parametrize("arguments", [{}, {"zone": "UTC"}])
async def test_tool_answers_with_text_and_the_same_structured(arguments: Json) -> None:
    result = await ask("tools/call", {"name": "now", "arguments": arguments})
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    assert result["structuredContent"]["zone"] == "UTC"


@pytest.mark.parametrize("zone", ["Nowhere/Never", "../etc/passwd", "Europe", "\0", "", 7])
async def test_unknown_zone_is_a_tool_error(zone: object) -> None:
    result = await ask("tools/call", {"name": "now", "arguments": {"zone": zone}})
    assert result["isError"] is True


@pytest.mark.parametrize("params", [{"name": "nix"}, {"name": "now", "arguments": []}, {}])
async def test_wrong_call_is_refused(params: Json) -> None:
    assert await refusal_of("tools/call", params) == -32602
