"""What a server's HTTP answer means that carries no MCP message, said so that a person knows what to do."""

from __future__ import annotations

from typing import Final

from mcpmux.errors import RemoteProtocolError, TransportError
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
