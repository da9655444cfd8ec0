"""A clock that knows one old revision: an MCP server in plain Python, without any library.

Run by `python -m mcpmux.demo.clock`. It only speaks 2025-11-25, and mcpmux makes it usable for clients of any
revision. It serves one request at a time: a line in, a line out.

Source: "Lifecycle", "Transports" (stdio), `server/tools` and `server/resources` of 2025-11-25.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from mcpmux import __version__
from mcpmux.errors import RpcError

REVISION = "2025-11-25"
URI = "clock:///utc"

Json = dict[str, Any]

RESOURCE = {
    "uri": URI,
    "name": "utc",
    "title": "The time now",
    "description": "In UTC, as ISO 8601 says it",
    "mimeType": "text/plain",
}
TOOL = {
    "name": "now",
    "title": "What time is it?",
    "description": "The time in a time zone.",
    "inputSchema": {
        "type": "object",
        "properties": {"zone": {"type": "string", "description": "Such as Europe/Paris", "default": "UTC"}},
    },
    "outputSchema": {
        "type": "object",
        "properties": {
            "time": {"type": "string", "format": "date-time"},
            "zone": {"type": "string"},
            "weekday": {"type": "string"},
        },
        "required": ["time", "zone", "weekday"],
    },
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}


def initialize(_params: Json) -> Json:
    """The one revision, whatever the client asked for. The client decides whether to go on."""
    return {
        "protocolVersion": REVISION,
        "capabilities": {"resources": {}, "tools": {}},
        "serverInfo": {"name": "mcpmux-demo-clock", "version": __version__},
        "instructions": "Ask the tool `now` for the time.",
    }


def read_resource(params: Json) -> Json:
    if params.get("uri") != URI:
        raise RpcError(-32002, "Resource not found", {"uri": params.get("uri")})
    return {"contents": [{"uri": URI, "mimeType": "text/plain", "text": _now(UTC).isoformat() + "\n"}]}


def call_tool(params: Json) -> Json:
    if params.get("name") != TOOL["name"]:
        raise RpcError(-32602, f"Unknown tool: {params.get('name')}")
    arguments = params.get("arguments", {})
    if not isinstance(arguments, dict):
        raise RpcError(-32602, "Invalid params: `arguments` must be an object")
    name = arguments.get("zone", "UTC")
    zone = _find_zone(name)
    if zone is None:
        text = f"There is no time zone {name!r} on this machine; try Europe/Paris, or leave it out."
        return {"content": [{"type": "text", "text": text}], "isError": True}
    now = _now(zone)
    answer = {"time": now.isoformat(), "zone": name, "weekday": now.strftime("%A")}
    return {"content": [{"type": "text", "text": json.dumps(answer)}], "structuredContent": answer}


def _now(zone: tzinfo) -> datetime:
    return datetime.now(zone).replace(microsecond=0)


def _find_zone(name: object) -> tzinfo | None:
    if name == "UTC":
        return UTC  # known even where no time zone database is installed
    try:
        return ZoneInfo(str(name))
    except (KeyError, ValueError, OSError):  # unknown; no relative path; a directory of the database
        return None


METHODS: dict[str, Callable[[Json], Json]] = {
    "initialize": initialize,
    "ping": lambda _params: {},
    "resources/list": lambda _params: {"resources": [RESOURCE]},
    "resources/read": read_resource,
    "tools/list": lambda _params: {"tools": [TOOL]},
    "tools/call": call_tool,
}


def answer_line(line: bytes) -> Json | None:
    """The response to one line; None for a notification."""
    try:
        message = json.loads(line)
    except ValueError:
        return {"jsonrpc": "2.0", "error": {"code": -32700, "message": "Parse error"}}
    if not isinstance(message, dict) or "id" not in message or "method" not in message:
        return None
    method, params = message["method"], message.get("params", {})
    try:
        if not isinstance(method, str) or method not in METHODS:
            raise RpcError(-32601, f"Method not found: {method}")
        if not isinstance(params, dict):
            raise RpcError(-32602, "Invalid params: they must be an object")
        outcome = {"result": METHODS[method](params)}
    except RpcError as error:
        data = {} if error.data is None else {"data": error.data}
        outcome = {"error": {"code": error.code, "message": error.message, **data}}
    return {"jsonrpc": "2.0", "id": message["id"], **outcome}


def main() -> None:
    """Answer line by line until standard input ends or nobody reads the responses."""
    with suppress(BrokenPipeError):
        for line in sys.stdin.buffer:
            answer = answer_line(line)
            if answer is not None:
                sys.stdout.write(json.dumps(answer) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
