"""How an exchange went, in one word of a few, for counting. Pure.

| word | meaning |
| --- | --- |
| `ok` | a result |
| `input_required` | a result that asks the client something first |
| `tool_error` | a tool's result with `isError` |
| `refused` | by a rule of mcpmux |
| `parse_error`, `invalid_request`, `method_not_found`, `invalid_params`, `internal_error` | of JSON-RPC |
| `not_found` | no such resource (-32002 of the legacy revisions) |
| `header_mismatch`, `missing_capability`, `unsupported_version` | of 2026-07-28 |
| `unavailable`, `timeout` | an upstream did not answer |
| `busy` | too much is in flight |
| `error` | any other error code |
| `cancelled` | by the client, or by a stop |
| `broken` | mcpmux failed |
"""

from __future__ import annotations

import trio

from mcpmux.errors import Refused, RpcError
from mcpmux.protocol import codes
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import text_of, value_of
from mcpmux.protocol.raw_json import Fields

OK = "ok"
TOOL_ERROR = "tool_error"
CANCELLED = "cancelled"

_CLASSES = {
    codes.PARSE_ERROR: "parse_error",
    codes.INVALID_REQUEST: "invalid_request",
    codes.METHOD_NOT_FOUND: "method_not_found",
    codes.INVALID_PARAMS: "invalid_params",
    codes.INTERNAL_ERROR: "internal_error",
    codes.RESOURCE_NOT_FOUND: "not_found",
    codes.HEADER_MISMATCH: "header_mismatch",
    codes.MISSING_CLIENT_CAPABILITY: "missing_capability",
    codes.UNSUPPORTED_VERSION: "unsupported_version",
    codes.UPSTREAM_UNAVAILABLE: "unavailable",
    codes.UPSTREAM_TIMEOUT: "timeout",
    codes.BUSY: "busy",
}

METHODS = frozenset(
    value
    for name, value in vars(m).items()
    if name.isupper() and isinstance(value, str) and value != m.MISSED
)
"""Every method that the protocol has; any other is a stranger's text."""


def outcome_of(method: str, outcome: Fields | BaseException) -> str:
    """The word for an exchange's result, or for what it ended with."""
    if isinstance(outcome, Refused):
        return "refused"
    if isinstance(outcome, RpcError):
        return class_of(outcome.code)
    if isinstance(outcome, trio.Cancelled):
        return CANCELLED
    if isinstance(outcome, BaseException):
        return "broken"
    if method == m.TOOLS_CALL and says_failed(outcome):
        return TOOL_ERROR
    kind = outcome.get("resultType")
    return "input_required" if kind is not None and text_of(kind) == "input_required" else OK


def class_of(code: int) -> str:
    """The word for a JSON-RPC error code."""
    return _CLASSES.get(code, "error")


def says_failed(result: Fields) -> bool:
    """Whether a tool's result says that the tool has failed."""
    return "isError" in result and value_of(result["isError"]) is True
