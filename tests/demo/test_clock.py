"""The clock, line by line: a server of 2025-11-25 and of nothing else."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from mcpmux.demo.clock import answer_line
from tests.oracle import SchemaOracle

Json = dict[str, Any]


def ask(method: str, params: Json | None = None) -> Json:
    message: Json = {"jsonrpc": "2.0", "id": 0, "method": method}
    if params is not None:
        message["params"] = params
    answer = answer_line(json.dumps(message).encode())
    assert answer is not None
    SchemaOracle("2025-11-25").check_from_server(answer, method)
    return answer


def test_initialize_answers_the_only_revision_whatever_is_asked_for() -> None:
    params = {
        "protocolVersion": "2026-07-28",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    }
    assert ask("initialize", params)["result"]["protocolVersion"] == "2025-11-25"


def test_discover_is_unknown_so_that_clients_fall_back() -> None:
    assert ask("server/discover")["error"]["code"] == -32601


@pytest.mark.parametrize("method", ["ping", "resources/list", "tools/list"])
def test_plain_requests_are_answered(method: str) -> None:
    assert "result" in ask(method)


def test_listed_resource_is_the_time() -> None:
    uri = ask("resources/list")["result"]["resources"][0]["uri"]
    contents = ask("resources/read", {"uri": uri})["result"]["contents"]
    assert datetime.fromisoformat(contents[0]["text"].strip()).utcoffset() is not None


def test_missing_resource_is_refused() -> None:
    assert ask("resources/read", {"uri": "clock:///nowhere"})["error"]["code"] == -32002


@pytest.mark.parametrize("arguments", [{}, {"zone": "UTC"}])
def test_tool_answers_with_text_and_the_same_structured(arguments: Json) -> None:
    result = ask("tools/call", {"name": "now", "arguments": arguments})["result"]
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    assert result["structuredContent"]["zone"] == "UTC"


@pytest.mark.parametrize("zone", ["Nowhere/Never", "../etc/passwd", "Europe", "\0", "", 7])
def test_unknown_zone_is_a_tool_error(zone: object) -> None:
    assert ask("tools/call", {"name": "now", "arguments": {"zone": zone}})["result"]["isError"] is True


@pytest.mark.parametrize("params", [{"name": "nix"}, {"name": "now", "arguments": []}, {}])
def test_wrong_call_is_refused(params: Json) -> None:
    assert ask("tools/call", params)["error"]["code"] == -32602


@pytest.mark.parametrize(
    "line", ['{"jsonrpc": "2.0", "method": "notifications/initialized"}', '{"jsonrpc": "2.0"}', "[]", "7"]
)
def test_what_is_no_request_is_not_answered(line: str) -> None:
    assert answer_line(line.encode()) is None


@pytest.mark.parametrize("line", [b"{", b"\xff"])
def test_broken_line_is_answered_without_an_id(line: bytes) -> None:
    answer = answer_line(line)
    assert answer is not None
    SchemaOracle("2025-11-25").check_from_server(answer)
    assert answer["error"]["code"] == -32700


@pytest.mark.parametrize("message", ['{"id": 1, "method": []}', '{"id": 1, "method": "ping", "params": 7}'])
def test_odd_request_is_refused(message: str) -> None:
    answer = answer_line(message.encode())
    assert answer is not None
    assert answer["error"]["code"] in (-32601, -32602)
