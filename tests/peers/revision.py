"""The messages of a client of a revision: its greeting, the `_meta` of requests, and header fields over HTTP.

Written from the specification, not from mcpmux's code, so that no mistake there can hide here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Json = dict[str, Any]

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
ERAS = [LEGACY, MODERN]
LEGACY_REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", LEGACY)
NAMES_ITSELF = "2025-06-18"  # since then HTTP requests tell their revision in a header
VERSION = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The parameter of a request that a modern client repeats in a header."""
CLIENT = {"name": "test", "version": "1"}
NOTHING: Mapping[str, Any] = MappingProxyType({})


def make_meta(client: Json = CLIENT, capabilities: Mapping[str, Any] = NOTHING) -> Json:
    """Return the `_meta` that a modern client sends with each request."""
    return {VERSION: MODERN, CLIENT_INFO: client, CAPABILITIES: dict(capabilities)}


def make_greeting(revision: str, client: Json = CLIENT, capabilities: Mapping[str, Any] = NOTHING) -> Json:
    """Return the parameters of `initialize`."""
    return {"protocolVersion": revision, "capabilities": dict(capabilities), "clientInfo": client}


def make_request(method: str, params: Mapping[str, Any] = NOTHING, number: int | str = 1) -> Json:
    """Return a modern request; members of a `_meta` in its parameters come on top."""
    params = {**params, "_meta": {**make_meta(), **params.get("_meta", {})}}
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def make_fields(revision: str, message: Json | None, session: str | None = None) -> dict[str, str]:
    """Return the header fields of an HTTP request with a message, or of a GET or DELETE without one."""
    if message is None:
        fields = {"Accept": "text/event-stream"}
    else:
        fields = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    method = None if message is None else message.get("method")
    if method == "initialize" and revision != MODERN:
        return fields
    if session is not None:
        fields["Mcp-Session-Id"] = session
    if revision >= NAMES_ITSELF:
        fields["MCP-Protocol-Version"] = revision
    if revision == MODERN and message is not None and method is not None:
        fields["Mcp-Method"] = method
        if (name := message.get("params", {}).get(NAMED_BY.get(method))) is not None:
            fields["Mcp-Name"] = name
    return fields
