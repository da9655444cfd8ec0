"""Say in a word how an exchange ended: for counts, filters, captures, the audit log, the inspector.

| word | an exchange, or the message that ended it |
| --- | --- |
| `ok` | a result |
| `tool_error` | the result of a tool call with `isError` |
| `input_required` | a result that asks the client first |
| `error` | a JSON-RPC error; of many codes a word of CODES says more |
| `refused` | an error by a rule of mcpmux, which a message does not show, or by an interceptor |
| `invalid` | a message that is not JSON-RPC |
| `cancelled` | by its client, or by a stop of mcpmux |
| `broken` | by a bug of mcpmux |
| `open` | no answer so far |
| `http-404`, `http-4xx` | a message with that HTTP status, of 400 or more; besides another |
"""

from __future__ import annotations

from typing import Final

import trio

from mcpmux.errors import Refused, RpcError
from mcpmux.protocol import codes
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import text_of, value_of
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.record import Record

OK: Final = "ok"
TOOL_ERROR: Final = "tool_error"
INPUT_REQUIRED: Final = "input_required"
ERROR: Final = "error"
REFUSED: Final = "refused"
INVALID: Final = "invalid"
CANCELLED: Final = "cancelled"
BROKEN: Final = "broken"
OPEN: Final = "open"

CODES: Final = {
    codes.PARSE_ERROR: "parse_error",
    codes.INVALID_REQUEST: "invalid_request",
    codes.METHOD_NOT_FOUND: "method_not_found",
    codes.INVALID_PARAMS: "invalid_params",
    codes.INTERNAL_ERROR: "internal_error",
    codes.HEADER_MISMATCH: "header_mismatch",
    codes.UNSUPPORTED_VERSION: "unsupported_version",
    codes.BUSY: "busy",
    codes.RESOURCE_NOT_FOUND: "not_found",  # of the legacy revisions
    codes.MISSING_CLIENT_CAPABILITY: "missing_capability",
    codes.UPSTREAM_UNAVAILABLE: "unavailable",
    codes.UPSTREAM_TIMEOUT: "timeout",  # it did not answer
    codes.REFUSED: "refused",
}
"""The word for an error with a code."""

MESSAGE_WORDS: Final = (OK, ERROR, TOOL_ERROR, INVALID, CANCELLED, OPEN, *CODES.values())
"""Every word for a message, and for an exchange of which only the messages are known, but those of HTTP."""

BAD_HTTP: Final = 400


def outcome_of(method: str, outcome: Fields | BaseException) -> str:
    """Return the word for an exchange's result or exception."""
    if not isinstance(outcome, BaseException):
        if method == m.TOOLS_CALL and is_tool_error(outcome):
            return TOOL_ERROR
        kind = outcome.get("resultType")
        return INPUT_REQUIRED if kind is not None and text_of(kind) == INPUT_REQUIRED else OK
    if isinstance(outcome, Refused):
        return REFUSED
    if isinstance(outcome, RpcError):
        return CODES.get(outcome.code, ERROR)
    return CANCELLED if isinstance(outcome, trio.Cancelled) else BROKEN


def is_tool_error(result: Fields) -> bool:
    """Return whether a result has `isError`."""
    return "isError" in result and value_of(result["isError"]) is True


def word_of(kind: str, failed: bool | None) -> str | None:
    """Return the word for a message of a kind; None for a request or a notification."""
    if kind == "result":
        return TOOL_ERROR if failed else OK
    return kind if kind in (ERROR, INVALID) else None


def words_of(word: str | None, code: int | None, status: int | None) -> tuple[str, ...]:
    """Return all words for a message, the most important first. `code` of JSON-RPC, `status` of HTTP."""
    http = http_words(status)
    if word is None or (word == OK and http):
        return http
    more = CODES.get(code) if code is not None else None
    return (word, *http) if more is None else (word, more, *http)


def statuses_of(record: Record) -> tuple[str, ...]:
    """Return all words for a captured message."""
    return words_of(word_of(record.kind, record.failed), record.code, record.status)


def http_words(status: int | None, least: int = BAD_HTTP) -> tuple[str, ...]:
    """Return the words for an HTTP status of `least` or more."""
    return () if status is None or status < least else (f"http-{status}", f"http-{status // 100}xx")
