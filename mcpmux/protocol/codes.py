"""Error codes, and the errors with which mcpmux itself answers.

Source: JSON-RPC 2.0 section 5.1; "Error Codes" in the Base Protocol overview and "Streamable HTTP" (server
validation), 2026-07-28; `server/resources` of 2025-11-25 and earlier for -32002; 2025-11-25 for -32042; for
Busy RFC 9110 sections 10.2.3 and 15.6.4, RFC 6585 section 4.
"""

from __future__ import annotations

from typing import Final

from mcpmux.errors import RpcError
from mcpmux.protocol.revisions import SUPPORTED

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
SERVER_ERROR: Final = -32000  # free for servers; SDKs use it for a request without a session
SESSION_NOT_FOUND: Final = -32001  # free for servers; the TypeScript SDK uses it for an unknown session

# 2026-07-28
HEADER_MISMATCH: Final = -32020
MISSING_CLIENT_CAPABILITY: Final = -32021
UNSUPPORTED_VERSION: Final = -32022

# 2025-11-25 and earlier; never sent to a modern peer
RESOURCE_NOT_FOUND: Final = -32002
URL_ELICITATION_REQUIRED: Final = -32042

RESERVED: Final = range(-32768, -31999)
"""JSON-RPC's and MCP's; every other code is the server's own."""

DEFINED: Final = range(-32099, -32019)
"""Of these a peer of 2026-07-28 may send only those that its specification defines."""

MODERN_ONLY: Final = frozenset({HEADER_MISMATCH, MISSING_CLIENT_CAPABILITY, UNSUPPORTED_VERSION})

# Outside the reserved range, as revision 2026-07-28 asks of an implementation's own codes.
UPSTREAM_UNAVAILABLE: Final = -31001  # it cannot be reached, or died while it worked on the request
UPSTREAM_TIMEOUT: Final = -31002  # it did not answer within its deadline
BUSY: Final = -31003  # too much is in flight; the request was not begun, so it can be sent again
REFUSED: Final = -31004  # an interceptor or a person refuses the request, or the answer to it

OWN: Final = frozenset({UPSTREAM_UNAVAILABLE, UPSTREAM_TIMEOUT, BUSY, REFUSED})
"""Codes of mcpmux, which an upstream that is itself a mcpmux uses, too."""

NOT_READ: Final = frozenset({PARSE_ERROR, INVALID_REQUEST})
"""Of a message that is no request. A client takes 400 with one of these for a server of an older revision."""

_BAD_REQUEST: Final = NOT_READ | MODERN_ONLY

RETRY_SECONDS = 1  # the limit is reached by running exchanges, and few run longer
REQUEST_TIMEOUT: Final = 408
TOO_MANY_REQUESTS: Final = 429
UNAVAILABLE: Final = 503
IN_FLIGHT: Final = "limits.max_in_flight"  # the setting


class Busy(RpcError):
    """-31003: there is too much to do, so the request was not begun.

    `data` is `{"retryAfterSeconds": …, "limit": …}`. `status` is the HTTP status for a modern client.
    """

    def __init__(
        self,
        sentence: str,
        limit: str,
        *,
        own: bool = False,
        upstream: str | None = None,
        seconds: int = RETRY_SECONDS,
    ) -> None:
        """`limit`: the setting that was reached; `own`: it limits a single client.

        `seconds`: until a new attempt is worthwhile.
        """
        self.retry_seconds = seconds
        data: dict[str, object] = {"retryAfterSeconds": seconds, "limit": limit}
        if upstream is not None:
            data["upstream"] = upstream
        super().__init__(BUSY, f"Busy: {sentence}; try again later", data)
        self.status = TOO_MANY_REQUESTS if own else UNAVAILABLE


class MalformedRequest(RpcError):
    """-32602 about the envelope of a modern request, which HTTP answers with status 400."""

    def __init__(self, message: str) -> None:
        super().__init__(INVALID_PARAMS, f"Invalid params: {message}")


def unsupported_version(requested: str) -> RpcError:
    """Return -32022, with the versions that a client can choose from."""
    data = {"supported": list(SUPPORTED), "requested": requested}
    return RpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)


def lost_with_process(*, done: bool | None) -> RpcError:
    """Return -31001: the mcpmux process that worked on a request has ended. `done`: None if unknown."""
    rest = "; it was not carried out" if done is False else "; it may have been carried out"
    data = {"state": "lost", "mayHaveBeenCarriedOut": done is not False}
    return RpcError(UPSTREAM_UNAVAILABLE, f"The replica that worked on this request has gone{rest}", data)


def lost_state() -> RpcError:
    """Return -31001: the mcpmux process in which a call waited for these answers has ended."""
    lost = lost_with_process(done=None)
    message = f"{lost.message}; to start it again, send it without requestState"
    return RpcError(lost.code, message, lost.data)


def unknown_state() -> RpcError:
    """Return -32602: a state is not of this request or principal, or has expired."""
    return RpcError(INVALID_PARAMS, "Invalid requestState: unknown or expired; send the request without it")


def http_status(error: RpcError) -> int:
    """Return the HTTP status of a modern answer with this error."""
    if isinstance(error, Busy):
        return error.status
    if isinstance(error, MalformedRequest) or error.code in _BAD_REQUEST:
        return 400
    return {METHOD_NOT_FOUND: 404, BUSY: UNAVAILABLE}.get(error.code, 200)
