"""Whether a call that failed is sent once more, and when. Decides only; who waits is the upstream.

Once more, within the call's own deadline, is sent what changes nothing, and what was shown not to have been
carried out: the server has forgotten the session, or does not speak the agreed revision any more.
"""

from __future__ import annotations

from mcpmux.errors import McpmuxError, RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.codes import INVALID_REQUEST, SERVER_ERROR, SESSION_NOT_FOUND, UNSUPPORTED_VERSION
from mcpmux.runtime.upstreams.http_refusal import REFUSALS, TOO_MANY, HttpStatusError, SessionExpired

LONGEST_PAUSE_SECONDS = 10.0  # that a call is kept for a server that wants to be left alone; then it is told
FAILING_PAUSE_SECONDS = 0.5  # before a server is asked again that has failed by itself (5xx)

# What servers answer to a request of the other era, or of no session, before they look at what it asks.
_NOT_UNDERSTOOD = frozenset({INVALID_REQUEST, SERVER_ERROR, SESSION_NOT_FOUND, UNSUPPORTED_VERSION})


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
