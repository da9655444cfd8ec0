"""What it means that a server refuses a request, for the person who reads it and for sending it once more.

A call is sent once more, within its own deadline, when it changes nothing, or when the server is known not to
have carried it out: it has forgotten the session, or does not speak the agreed revision any more.
"""

from __future__ import annotations

from typing import Final

from mcpmux.errors import McpmuxError, RemoteProtocolError, RpcError, TransportError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.codes import INVALID_REQUEST, SERVER_ERROR, SESSION_NOT_FOUND, UNSUPPORTED_VERSION
from mcpmux.transports.http.client_response import HttpResponse

ERROR_TEXT_BYTES: Final = 4096  # of a foreign error page that are looked at
ERROR_TEXT_LIMIT: Final = 200  # characters of it that are worth showing

# Of what a server is asked: RFC 6585 section 4, RFC 9110 section 15.6.4.
TOO_MANY: Final = 429
UNAVAILABLE: Final = 503

_CHECK_URL: Final = "check that the URL is that of an MCP endpoint"
_HINTS: Final = {
    202: f"it took the request and gave no answer: {_CHECK_URL}",
    401: "it asks for credentials: give them in the upstream's `headers`, or set `oauth` and log in",
    403: "it refuses these credentials or this caller",
    404: "nothing there speaks MCP: check the URL's path",
    405: "nothing there accepts MCP messages: check the URL's path",
}

# How a server of the other era, or one that has forgotten our session, answers what it does not understand.
REFUSALS: Final = frozenset({400, 404, 405, 406, 415})

LONGEST_PAUSE_SECONDS: Final = 10.0  # that a call is kept for a server that wants to be left alone
FAILING_PAUSE_SECONDS: Final = 0.5  # before a server is asked again that has failed by itself (5xx)

# What servers answer to a request of the other era, or of no session, before they look at what it asks.
_NOT_UNDERSTOOD: Final = frozenset({INVALID_REQUEST, SERVER_ERROR, SESSION_NOT_FOUND, UNSUPPORTED_VERSION})


class SessionExpired(TransportError):
    """The server no longer knows our session: the request was not carried out."""


class HttpStatusError(TransportError):
    """The server answered with a status that carries no MCP message. `move` says where it sends us.

    `retry_after`: seconds for which it wants to be left alone, if it said so.
    """

    def __init__(
        self, status: int, body: bytes, move: str | None = None, retry_after: float | None = None
    ) -> None:
        more = move or _HINTS.get(status) or excerpt(body)
        super().__init__(f"HTTP status {status}" + (f": {more}" if more else ""))
        self.status = status
        self.retry_after = retry_after


def excerpt(body: bytes) -> str:
    """The beginning of what is no MCP message, in one line."""
    return " ".join(body[:ERROR_TEXT_BYTES].decode(errors="replace").split())[:ERROR_TEXT_LIMIT]


def nonsense(response: HttpResponse, body: bytes) -> RemoteProtocolError:
    """What to say of a successful response that does not answer the request."""
    if not body:
        return RemoteProtocolError(f"its answer is empty: {_CHECK_URL}")
    coding = response.headers.get("content-encoding", "identity")[:ERROR_TEXT_LIMIT]
    if coding != "identity":
        return RemoteProtocolError(
            f"its answer is compressed ({coding}), though mcpmux asks for none: switch that off for this URL"
        )
    kind = response.headers.get("content-type", "no content type")[:ERROR_TEXT_LIMIT]
    return RemoteProtocolError(
        f"its answer ({kind}) is no JSON-RPC response to the request: {_CHECK_URL}; "
        f"it begins {excerpt(body)!r}"
    )


def may_repeat(call: Call, error: McpmuxError, *, holds: bool) -> bool:
    """Whether `call` may be sent again after `error`.

    `holds`: whether the server was found to speak as agreed nevertheless.
    """
    if call.method in m.IDEMPOTENT or isinstance(error, SessionExpired):
        return True
    if isinstance(error, RpcError):
        return error.code in _NOT_UNDERSTOOD
    refused = isinstance(error, HttpStatusError) and error.status in REFUSALS
    return refused and not holds  # it refuses whatever comes on this connection


def pause_before_repeating(error: McpmuxError, left: float) -> float | None:
    """Seconds to wait before that; None when the server wants more than the call has `left`, or too much."""
    if not isinstance(error, HttpStatusError):
        return 0.0
    if error.retry_after is not None:
        return error.retry_after if error.retry_after < min(left, LONGEST_PAUSE_SECONDS) else None
    return FAILING_PAUSE_SECONDS if error.status >= 500 or error.status == TOO_MANY else 0.0
