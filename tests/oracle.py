"""Is what mcpmux sends what the revision says? Every message that a test sees goes through here.

oracle = SchemaOracle("2026-07-28")
oracle.check_from_server(reply, "resources/list")
"""

from __future__ import annotations

import json
from typing import Any, Literal

from tests import task_shapes
from tests.official_schema import OfficialSchema, find_schemas, load_schema
from tests.official_types import OfficialTypes

Side = Literal["Client", "Server"]

MODERN = "2026-07-28"
RETIRED_CODES = frozenset({-32002, -32042})
RESERVED_CODES = range(-32099, -32019)
MODERN_CODES = frozenset({-32020, -32021, -32022})
RESULT_TYPES = frozenset({"complete", "input_required"})

MEMBERS = {
    "request": {"jsonrpc", "id", "method", "params"},
    "notification": {"jsonrpc", "method", "params"},
    "result": {"jsonrpc", "id", "result"},
    "error": {"jsonrpc", "id", "error"},
}


def schemas_available() -> bool:
    """Return whether the official schemas are on this machine. Without them the official types judge."""
    return find_schemas() is not None


class SchemaOracle:
    """Judges the messages of one revision by method, not by the schema's loose unions."""

    def __init__(self, revision: str) -> None:
        self._revision = revision
        self._judge: OfficialSchema | OfficialTypes = (
            load_schema(revision) if schemas_available() else OfficialTypes(revision)
        )

    def __repr__(self) -> str:
        return f"SchemaOracle({self._revision!r})"

    def check_from_server(self, message: dict[str, Any], request_method: str | None = None) -> None:
        """Check what a server sends; an answer needs the method that was asked.

        Raises AssertionError with the place, the reason and the message.
        """
        self._check("Server", message, request_method)

    def check_from_client(self, message: dict[str, Any], request_method: str | None = None) -> None:
        """Check what a client sends, as `check_from_server` does."""
        self._check("Client", message, request_method)

    def _check(self, side: Side, message: dict[str, Any], request_method: str | None) -> None:
        try:
            kind = check_envelope(message)
            if task_shapes.knows(self._revision, message.get("method", "")):
                task_shapes.check_params(self._revision, message["method"], message.get("params", {}))
            elif kind == "request":
                self._judge.check_call(f"{side}Request", message)
            elif kind == "notification":
                self._judge.check_call(f"{side}Notification", message)
            elif kind == "result":
                assert request_method is not None, "an answer nobody asked for"
                self._check_result(request_method, message["result"])
            else:
                self._check_error(message)
        except AssertionError as error:
            shown = json.dumps(message, indent=2, ensure_ascii=False, default=repr)[:4000]
            raise AssertionError(f"{self._revision}, from the {side.lower()}: {error}\n{shown}") from None

    def _check_result(self, method: str, result: dict[str, Any]) -> None:
        if task_shapes.knows(self._revision, method) or task_shapes.makes_task(method, result):
            task_shapes.check_result(self._revision, method, result)
            return
        if self._revision == MODERN:
            kind = result.get("resultType")
            assert kind in RESULT_TYPES, f"resultType is {kind!r}"
            if kind == "input_required":
                assert {"inputRequests", "requestState"} & result.keys(), "input required, but none is named"
        self._judge.check_result(method, result)

    def _check_error(self, message: dict[str, Any]) -> None:
        code = message["error"]["code"]
        if self._revision == MODERN:
            reserved = code in RETIRED_CODES or (code in RESERVED_CODES and code not in MODERN_CODES)
            assert not reserved, f"error code {code} must not be sent"
        self._judge.check_error(message)


def check_envelope(message: Any) -> str:
    """Check a JSON-RPC message, and return its kind. Raises AssertionError when it is none.

    An error about a request that could not be read has no id; the schemas up to 2025-06-18 forgot that.
    """
    assert isinstance(message, dict), "not an object"
    kinds = [kind for kind in ("method", "result", "error") if kind in message]
    assert len(kinds) == 1, f"one of method, result and error is needed, here are {kinds}"
    kind = kinds[0]
    if kind == "method":
        kind = "request" if "id" in message else "notification"
    assert message.get("jsonrpc") == "2.0", 'jsonrpc is not "2.0"'
    assert message.keys() <= MEMBERS[kind], f"unknown members {sorted(message.keys() - MEMBERS[kind])}"
    if kind == "result" or "id" in message:
        assert type(message.get("id")) in (int, str), f"id is {message.get('id')!r}"
    if kind == "error":
        error = message["error"]
        assert isinstance(error, dict), "error is not an object"
        assert type(error.get("code")) is int, f"error code is {error.get('code')!r}"
        assert isinstance(error.get("message"), str), f"error message is {error.get('message')!r}"
    else:
        body = message.get("result" if kind == "result" else "params", {})
        assert isinstance(body, dict), "params or result is not an object"
    return kind
