"""One server's MCP endpoint over HTTP: requests with the right headers, their responses, and errors.

Promises: headers agree with the body, in the revision that was agreed; a server that cannot be reached
sets `closed`. Refuses to know what a message means.

Servers refuse a forgotten session in many ways. `may_mean_forgotten` decides which refusals are a reason to
check; none of them proves it. A call is sent once more, within its own deadline, when it is safe to repeat,
or when the server is known not to have carried it out: `may_repeat` decides that.

Source: "Streamable HTTP" of 2026-07-28, "Transports" of 2025-03-26, 2025-06-18 and 2025-11-25.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final, NamedTuple

import structlog
import trio

from mcpmux.auth.bearer import read_challenge
from mcpmux.auth.credential import REFUSES_TOKEN, Credential
from mcpmux.channels.channel import FAREWELL_SECONDS
from mcpmux.channels.pending import PendingRequest, own_id
from mcpmux.channels.tap import TRACE_HEADERS, Said, Watch
from mcpmux.config.expansion import Hide, make_hide
from mcpmux.errors import (
    ConnectFailed,
    McpmuxError,
    RemoteProtocolError,
    RpcError,
    TransportError,
    forget_frames,
)
from mcpmux.mux.breaker import Comeback
from mcpmux.printable import QUOTED_BYTES, excerpt
from mcpmux.protocol import method as m
from mcpmux.protocol.call import VERSION, Call, Hear, encode_call, target_in
from mcpmux.protocol.codes import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    RESOURCE_NOT_FOUND,
    SERVER_ERROR,
    SESSION_NOT_FOUND,
    TOO_MANY_REQUESTS,
    UNSUPPORTED_VERSION,
)
from mcpmux.protocol.envelope import (
    LARGE_BYTES,
    BadMessage,
    ErrorReply,
    Message,
    Reply,
    decode_message,
    decode_reply,
    is_batch,
    members_of,
    raw,
    text_of,
    value_of,
)
from mcpmux.protocol.framing import read_batch
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.headers import (
    SESSION_HEADER,
    Headers,
    ToolHeaders,
    method_headers,
    name_headers,
    read_retry_after,
)
from mcpmux.protocol.raw_json import Raw
from mcpmux.protocol.revisions import NEWEST, V_2025_06_18, allows_batch, is_modern
from mcpmux.transports.http.client import (
    EVENT_STREAM,
    JSON_TYPE,
    HttpPool,
    HttpResponse,
    not_sent_yet,
)
from mcpmux.transports.http.route import MOVES, describe_move, target_after, target_of
from mcpmux.transports.http.sse_streams import MessageRefused, SessionEnded
from mcpmux.transports.sse import SseDecoder

RETRY_SECONDS = 1.0  # before a broken event stream is opened again, unless the server has sent `retry`
LEAST_RETRY_SECONDS: Final = 0.05  # a server that sends 0 and closes at once must not keep us spinning
STREAM_BYTES: Final = 64 * 1024  # of a stream that are decoded without a task

_ANSWERS: Final = (Reply, ErrorReply)
_COMPRESSIONS: Final = frozenset({"br", "compress", "deflate", "gzip", "x-gzip", "zstd"})


def message_in(body: bytes) -> Message | BadMessage:
    """Return the message in a body or an event, or the error if it holds none."""
    reply = decode_reply(body)
    if reply is not None:
        return reply
    try:
        return decode_message(body)
    except BadMessage as bad:
        forget_frames(bad)  # which hold the body
        return bad


def batch_in(body: bytes) -> list[Message | BadMessage]:
    """Return the members of a batch; a member that is no message becomes an error."""
    try:
        return read_batch(body)
    except BadMessage as bad:
        forget_frames(bad)
        return [bad]


def is_compressed(response: HttpResponse) -> bool:
    """Return whether the body is compressed, which mcpmux does not ask for and cannot read."""
    return response.headers.get("content-encoding", "").lower() in _COMPRESSIONS


def retry_seconds(decoder: SseDecoder) -> float:
    """Return the seconds to wait before a broken stream is opened again, by the server's `retry` if any."""
    milliseconds = decoder.retry_milliseconds
    return RETRY_SECONDS if milliseconds is None else max(LEAST_RETRY_SECONDS, milliseconds / 1000)


def pause_before_stream(
    decoder: SseDecoder, comeback: Comeback, now: float, held: float, chance: float
) -> float:
    """Return the seconds to wait before a server's own stream is opened again.

    `decoder`: of the stream that ended `now`, after it was open for `held` seconds (infinite if it brought
    anything). `chance`: a random number from 0 to 1. A server that sends no `retry`, and ends such streams at
    once, is asked at growing intervals.
    """
    patience = comeback.wait(now, died=False, held=held, chance=chance)
    has_pause = decoder.retry_milliseconds is not None
    return retry_seconds(decoder) if has_pause else max(retry_seconds(decoder), patience)


class PendingHttpRequest(PendingRequest):
    """A request that is POSTed, and how much of its response has been read.

    `sent`: the POST, as long as no task reads its response. `carrier`: cancels the task that does, which
    starts in `context`. `unsent`: it failed, or was cancelled, before any of it was sent. `whole`: the body
    of its response, once that was read and noted. `decoder`: of its event stream; `begun`: the data of the
    events that were read without a task; `is_silent`: the stream is open, and has had no event.
    """

    sent: HttpResponse | None = None
    carrier: trio.CancelScope | None = None
    context: Context | None = None
    unsent: bool = False
    whole: bytes | None = None
    decoder: SseDecoder | None = None
    begun: Sequence[bytes] = ()
    is_silent: bool = False


def answer_in(body: bytes, pending: PendingHttpRequest) -> Reply | ErrorReply | None:
    """Return the answer to `pending` if a body or an event holds it, otherwise None."""
    reply = decode_reply(body)
    if reply is not None and reply.id == pending.id:
        return reply
    return as_answer(message_in(body), pending)


def as_answer(message: Message | BadMessage | None, pending: PendingHttpRequest) -> Reply | ErrorReply | None:
    # Without an id the server could not read the request, and there is only one on this response.
    if isinstance(message, _ANSWERS) and (message.id is None or own_id(message.id) == pending.id):
        return message
    return None


_CHECK_URL: Final = "check that the URL is that of an MCP endpoint"
_HINTS: Final = {
    202: f"it took the request and gave no answer: {_CHECK_URL}",
    401: "it asks for credentials; give them in the upstream's `headers`, or set `oauth` and log in",
    403: "it refuses these credentials or this caller",
    404: "nothing there speaks MCP: check the URL's path",
    405: "nothing there accepts MCP messages: check the URL's path",
}

# Statuses with which a server of the other era, or one that has forgotten our session, refuses a request.
REFUSALS: Final = frozenset({400, 404, 405, 406, 415})

LONGEST_PAUSE_SECONDS: Final = 10.0  # for which a call waits because of a Retry-After
FAILING_PAUSE_SECONDS = 0.5  # before a server is asked again that has failed (5xx)

# Codes with which servers report, with status 200, that a session is unknown or not initialized.
_OF_SESSIONS: Final = frozenset({INVALID_REQUEST, INVALID_PARAMS, SESSION_NOT_FOUND, RESOURCE_NOT_FOUND})

# Codes that prove that a request was not carried out, if the server refuses every request of the session.
_NOT_UNDERSTOOD: Final = frozenset({INVALID_REQUEST, INVALID_PARAMS, UNSUPPORTED_VERSION})

_RESERVED: Final = range(-32768, -31999)  # for JSON-RPC and MCP; SDKs use two of them themselves
_NOT_OF_SESSIONS: Final = frozenset({REQUEST_TIMEOUT, TOO_MANY_REQUESTS})  # they have another cause
_NAMES_SESSION: Final = re.compile("session|initiali", re.IGNORECASE)


class SessionExpired(TransportError):
    """The server answered 404 to a request with a session: the request was not carried out."""


class HttpErrorReply(RpcError):
    """An error object that came with `status`, a 4xx or 5xx of HTTP."""

    def __init__(self, status: int, answer: ErrorReply) -> None:
        super().__init__(answer.code, answer.message, answer.data)
        self.status = status


class HttpStatusError(TransportError):
    """A status without an MCP message. `retry_after`: seconds until the server wants the next request.

    `meant`: the server's text for the client, such as an `error_description`. `body` is for the operator.
    `is_busy`: whether the server has not begun the request, as it has too much to do (429, Busy of a mcpmux).
    """

    def __init__(
        self,
        status: int,
        body: bytes,
        hint: str | None = None,
        retry_after: float | None = None,
        meant: str = "",
    ) -> None:
        hint, words, phrase = hint or _HINTS.get(status), excerpt(body), ""
        if hint is not None and words.startswith("<"):
            words = ""  # a page for browsers, which explains less than the hint
        # In the words of RFC 9110, which a server may replace with others.
        with suppress(ValueError):
            phrase = f" ({HTTPStatus(status).phrase})"
        lead = f"{hint}; the server says" if hint else ""
        more = ": ".join(filter(None, (lead if meant else hint, meant)))
        super().__init__(f"HTTP status {status}{phrase}" + (f": {more}" if more else ""))
        if words and words != meant:
            self.quoted = f"; the server says: {words}" if more else f": {words}"
        self.status = status
        self.retry_after = retry_after
        self.is_busy = status == TOO_MANY_REQUESTS


def nonsense(
    response: HttpResponse, body: bytes, message: Message | BadMessage | None, hide: Hide = str
) -> RemoteProtocolError:
    """Return the error for a successful response that does not answer the request.

    `message`: the message in its body, if any. `hide` removes secrets.
    """
    coding = response.headers.get("content-encoding", "identity")
    if not body and not is_compressed(response):
        return RemoteProtocolError(f"its answer is empty: {_CHECK_URL}")
    if coding != "identity":
        what = "its answer is compressed, though mcpmux asks for none: switch that off for this URL"
        return RemoteProtocolError(what).quoting(f" ({excerpt(coding.encode(), hide)})")
    if isinstance(message, BadMessage) and message.is_answer and message.code == PARSE_ERROR:
        return RemoteProtocolError(str(message.as_answer)).quoting(f"; it begins {excerpt(body)!r}")
    kind = excerpt(response.headers.get("content-type", "no content type").encode(), hide)
    return RemoteProtocolError(f"its answer is no JSON-RPC response to the request: {_CHECK_URL}").quoting(
        f"; it is of {kind} and begins {excerpt(body)!r}"
    )


def may_mean_forgotten(error: McpmuxError) -> bool:
    """Return whether a refusal may mean that the server has forgotten the session of the request."""
    # None of these proves it, as servers refuse for many reasons. Only another session does, opened beside
    # the first one.
    if isinstance(error, HttpStatusError):
        # With Retry-After the server is busy, and knows when it will answer.
        return error.status not in _NOT_OF_SESSIONS and error.status >= 400 and error.retry_after is None
    if isinstance(error, HttpErrorReply | MessageRefused):
        return error.status not in _NOT_OF_SESSIONS
    if isinstance(error, RpcError):
        # Some report it with status 200 and an unusual code, such as -30001: the text decides then.
        names_session = _is_own(error.code) and _NAMES_SESSION.search(error.message) is not None
        return names_session or error.code in _OF_SESSIONS
    return isinstance(error, SessionExpired)


def _is_own(code: int) -> bool:
    """Return whether a server may give an error code its own meaning (JSON-RPC 2.0, section 5.1)."""
    return code in (SESSION_NOT_FOUND, SERVER_ERROR) or code not in _RESERVED


def may_repeat(call: Call, error: McpmuxError, *, holds: bool) -> bool:
    """Return whether `call` may be sent again after `error`.

    `holds`: a check has shown that the session and the agreed revision are still in force. If not, the server
    refuses the session as a whole, or does not speak the agreed revision any more.
    """
    # A 404 to a request with a session has this one meaning ("Session Management").
    if call.method in m.IDEMPOTENT or isinstance(error, SessionExpired | SessionEnded):
        return True
    if holds:
        return False
    status = error.status if isinstance(error, HttpStatusError | HttpErrorReply | MessageRefused) else 200
    # Another 4xx was refused before anything was done, but for 408 and 429.
    if 400 <= status < 500:
        return status not in _NOT_OF_SESSIONS
    # The server says itself that it did not understand the request, so it did not carry it out.
    if isinstance(error, RpcError) and error.code in _NOT_UNDERSTOOD and status == 200:
        return True
    # Any other error may come from a call that was carried out, unless its text names the session.
    is_likely = status >= 500 or (isinstance(error, RpcError) and _is_own(error.code))
    return is_likely and _NAMES_SESSION.search(error.in_full) is not None


def pause_before_repeating(error: McpmuxError, left: float) -> float | None:
    """Return the seconds to wait before a call is repeated; None if it must not be.

    That is when the server's Retry-After exceeds the `left` seconds of the call, or LONGEST_PAUSE_SECONDS.
    """
    if not isinstance(error, HttpStatusError):
        return 0.0
    if error.retry_after is not None:
        return error.retry_after if error.retry_after < min(left, LONGEST_PAUSE_SECONDS) else None
    return FAILING_PAUSE_SECONDS if error.status >= 500 or error.status == TOO_MANY_REQUESTS else 0.0


log = structlog.get_logger()

METHODS_KEPT: Final = 64  # whose headers are kept ready
REDIRECTS: Final = 3  # followed for one request; more are a circle
_NOT_HERE: Final = REFUSES_TOKEN | MOVES  # statuses after which a request may be sent once more


class HttpPlace(NamedTuple):
    """One server's URL, and the settings for it. `patience`: seconds for its answer to a GET."""

    pool: HttpPool
    url: str
    headers: Headers
    message_limit: int
    hear: Hear
    patience: float
    watch: Watch | None = None
    credential: Credential | None = None
    hide: Hide = str


class HttpPeer:
    """The endpoint of one server. `session` is the id that a legacy server gave us."""

    def __init__(self, place: HttpPlace) -> None:
        self._pool, self.message_limit, self._watch = place.pool, place.message_limit, place.watch
        self._credential, self._hide = place.credential, place.hide
        self.watched = self._watch is not None  # a tap sees the messages
        self._target = target_of(place.url)
        self._fixed = (
            *place.headers,
            ("Content-Type", JSON_TYPE),
            ("Accept", f"{JSON_TYPE}, {EVENT_STREAM}"),
        )
        self._of_all = self._fixed
        self._of_method: dict[str, Headers] = {}
        self.session: str | None = None
        self.initialize_status: int | None = None  # of the answer to the last `initialize`
        self.legacy = False
        self.batches = False
        self.tools = ToolHeaders()
        self.closed = trio.Event()
        self.close_reason: TransportError | None = None  # once it is closed

    def settle(self, facts: ServerFacts) -> None:
        """Add the headers of the agreed revision to every request from now on."""
        headers = []
        self.legacy = not is_modern(facts.revision)
        self.batches = allows_batch(facts.revision)
        # The header came with this revision; modern calls have it from `method_headers`.
        if self.legacy and facts.revision >= V_2025_06_18:
            headers.append(("MCP-Protocol-Version", facts.revision))
        if self.session is not None:
            headers.append(("Mcp-Session-Id", self.session))
        self._of_all = (*self._fixed, *headers)

    def _headers(self, call: Call) -> tuple[Headers, Headers]:
        """Return the headers of every call of this method, and the additional ones of this call."""
        if VERSION not in call.meta:
            return self._of_all, call.headers
        common = self._of_method.get(call.method)
        if common is None:
            common = (*self._fixed, *method_headers(call.method, NEWEST))
            if len(self._of_method) < METHODS_KEPT:  # clients may name methods without end
                self._of_method[call.method] = common
        more = name_headers(call.method, call.params)
        if call.headers:
            more += call.headers
        if call.method == m.TOOLS_CALL and self.tools.params.bytes:
            more += self.tools.headers_of(call)
        return common, more

    def head_of(self, call: Call) -> tuple[str, Headers]:
        """Return the target (path and query) and headers of a call's POST, for senders other than this."""
        common, more = self._headers(call)
        return self._target, common + more

    def post(
        self, call: Call, request_id: int, hear: Callable[[], None], *, asks_progress: bool
    ) -> HttpResponse | None:
        """POST a call without waiting; return None, without effect, if that is impossible."""
        # A token may have to be fetched or renewed first, which waits.
        if self._credential is not None or self._pool.poller is None:
            return None
        body = encode_call(request_id, call, asks_progress=asks_progress)
        headers, more = self._headers(call)
        idempotent = call.method in m.IDEMPOTENT
        if self._watch is not None:
            more += TRACE_HEADERS.get()
        sent = self._pool.post(
            "POST", self._target, headers, body, idempotent=idempotent, more=more, hear=hear
        )
        if sent is not None and self._watch is not None:
            facts = Said("request", request_id, call.method, target_in(call.params))
            self._watch.tap.message_passed(self._watch.leg, "out", body, None, facts)
        return sent

    async def ask(self, call: Call, body: bytes, sent: HttpResponse | None = None) -> HttpResponse:
        """POST a call that was encoded as `body`; return its response. Releasing it early cancels the call.

        `sent`: the response, if the call was posted already. Raises ConnectFailed and other TransportErrors.
        """
        headers, more = self._headers(call)
        idempotent = call.method in m.IDEMPOTENT
        if self._watch is not None and sent is None:  # `post` has shown it otherwise
            self._watch.tap.message_passed(self._watch.leg, "out", body)
            more += TRACE_HEADERS.get()
        response = await self._send("POST", headers, body, idempotent=idempotent, more=more, sent=sent)
        if call.method == m.INITIALIZE:
            self.initialize_status = response.status
            self.session = response.headers.get(SESSION_HEADER)
            if self._watch is not None and response.status < 400:  # otherwise an older session may go on
                self._watch.leg.session = self.session
        return response

    async def _send(
        self,
        verb: str,
        headers: Headers,
        body: bytes,
        *,
        idempotent: bool,
        more: Headers = (),
        sent: HttpResponse | None = None,
    ) -> HttpResponse:
        """Send a request with a token, following redirects; return the response. Raises as `ask`."""
        # Tries for redirects and for refused tokens together.
        for hop in range(REDIRECTS + 1):
            shown: Headers = ()
            if self._credential is not None:
                # A call that fails here has not reached the server, so it may be repeated.
                with not_sent_yet():
                    shown = self._credential.header_now() or await self._credential.header()
            try:
                if sent is not None:
                    response, sent = await sent.wait(), None
                else:
                    response = await self._pool.send(
                        verb, self._target, headers, body, idempotent=idempotent, more=more + shown
                    )
            except ConnectFailed as error:  # the server is gone; its session opens another channel
                self.lose(error)
                raise
            if response.status not in _NOT_HERE or not await self._is_to_be_repeated(response, shown, hop):
                return response
        raise AssertionError("the answer to the last try is taken as it is")  # see `_is_to_be_repeated`

    async def _is_to_be_repeated(self, response: HttpResponse, shown: Headers, hop: int) -> bool:
        """Return whether to send a request again, with another token or elsewhere; release its response then.

        Raises HttpStatusError, with advice, when a token was refused and there is no other.
        """
        status, headers, again = response.status, response.headers, False
        try:
            if self._credential is not None and status in REFUSES_TOKEN:
                challenge = headers.get("www-authenticate", "")
                # A 403 without this is no matter of the token (RFC 6750 section 3.1).
                if status != 403 or "insufficient_scope" in challenge:
                    body = await response.read()
                    self.note(body, status)
                    again = hop < REDIRECTS and await self._credential.refused(shown, status, challenge)
                    if not again:
                        body, words = self.hidden(body), self._meant(response, body)
                        raise HttpStatusError(status, body, self._credential.advice, meant=words)
            elif status in MOVES and hop < REDIRECTS:  # elsewhere at the same origin, from now on
                target = target_after(self._pool.origin, self._target, status, headers)
                if again := target not in (None, self._target):
                    log.info("the endpoint has moved", path=target.partition("?")[0])
                    self._target = target
        except BaseException:
            response.release()
            raise
        if again:
            response.release()
        return again

    async def tell(self, body: bytes) -> None:
        """POST a message that gets no answer. Raises TransportError."""
        if self._watch is not None:
            self._watch.sent(body)
        response = await self._send("POST", self._of_all, body, idempotent=False)
        try:
            # The specification asks for 202; some servers answer with another success.
            if response.status >= 300:
                raise self.status_error(response, await response.read())
        finally:
            response.release()

    async def open_stream(self, last_event_id: str | None) -> HttpResponse:
        """GET the server's own stream, or the rest of a stream after an event. Raises as `ask`.

        The response must be released.
        """
        more: Headers = ()
        if last_event_id:  # in UTF-8 (WHATWG HTML section 9.2.3), of which a header shows the single bytes
            more = (("Last-Event-ID", last_event_id.encode().decode("latin-1")),)
        return await self._send("GET", self._of_all, b"", idempotent=True, more=more)

    def hidden(self, body: bytes) -> bytes:
        """Return the beginning of a body, without the secrets that were sent to the server."""
        return self.without_secrets(body[:QUOTED_BYTES].decode(errors="replace")).encode()

    def without_secrets(self, text: str) -> str:
        """Return a text of the server without the secrets that were sent to it."""
        shown = self._credential.header_now() if self._credential is not None else ()
        return make_hide(value.rpartition(" ")[2] for _, value in shown)(self._hide(text))

    def masked(self, answer: ErrorReply) -> ErrorReply:
        """Return an error that came with an HTTP status, in the form that clients may see."""
        data = answer.data
        if data is not None:
            # Encoded anew, as a server may escape any character of a secret.
            text = bytes(raw(value_of(data))).decode(errors="replace")
            hidden = self.without_secrets(text)
            if hidden != text:
                data = masked if value_of(masked := Raw(hidden.encode())) is not None else None
        return ErrorReply(answer.id, answer.code, self.without_secrets(answer.message)[:QUOTED_BYTES], data)

    def status_error(self, response: HttpResponse, body: bytes) -> HttpStatusError:
        """Return the error for a response with `body` but without an MCP message."""
        status, body, words = response.status, self.hidden(body), self._meant(response, body)
        retry_after = read_retry_after(response.headers.get("retry-after"), datetime.now(UTC))
        error = HttpStatusError(status, body, None, retry_after, words)
        if status in MOVES:
            move = describe_move(self._pool.origin, self._target, response.headers)
            return error.quoting(f": {self.without_secrets(move)}{error.quoted}")
        return error

    def _meant(self, response: HttpResponse, body: bytes) -> str:
        """Return the text of a refusal that is for the client, "" if there is none."""
        # The `error_description` of OAuth (RFC 6750 section 3, RFC 6749 section 5.2), or the message of a
        # JSON-RPC error. Any other text is for the operator, as it may be about the inside of the server.
        words = read_challenge(response.headers.get("www-authenticate", "")).description
        if words is None:
            members = members_of(Raw(body)) if len(body) <= LARGE_BYTES else {}
            if "jsonrpc" in members:
                words = text_of(members_of(members.get("error")).get("message"))
            elif "error" in members:
                words = text_of(members.get("error_description"))
        # Secrets first: a part of one would not be found in a text that was cut.
        return excerpt(self.without_secrets(words or "").encode(errors="replace"))

    def note(self, data: bytes, status: int, said: Said | None = None) -> None:
        """Show the tap, if there is one, the body of a response or an event of its stream."""
        if self._watch is not None and data:
            self._watch.tap.message_passed(self._watch.leg, "in", data, status, said)

    def messages_of(self, data: bytes, status: int) -> Sequence[Message | BadMessage]:
        """Return the messages in an event: one, none (it may only carry an id), or a batch.

        `status`: the HTTP status of its stream.
        """
        self.note(data, status)
        if self.batches and is_batch(data):
            return batch_in(data)
        return [message_in(data)] if data else []

    async def end_session(self) -> None:
        """End the session at the server, which may not support that."""
        if self.session is None or self.closed.is_set():
            return
        with trio.move_on_after(FAREWELL_SECONDS, shield=True):
            try:
                (await self._send("DELETE", self._of_all, b"", idempotent=True)).release()
            except TransportError as error:
                log.debug("the session could not be ended", reason=str(error))

    def lose(self, reason: TransportError) -> None:
        """Set `closed`, with the reason, unless it is set already."""
        if self.close_reason is None:
            self.close_reason = reason.anew()
            self.closed.set()
