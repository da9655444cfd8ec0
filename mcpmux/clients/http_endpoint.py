"""The MCP endpoint over Streamable HTTP, both eras on one path.

The content of a POST decides how it is served: modern `_meta` or a modern version header → stateless;
`initialize` → a new legacy session; a session header → that session. GET opens or resumes a session's
streams, DELETE ends the session. `http_sessions` keeps the sessions.

Promises where clients must authenticate: before a client is admitted, only Host and Origin of its request are
examined; a stream (GET, or a listen) ends when the token that opened it expires or is withdrawn. The answers
to preflight requests, the protected resources' metadata and the server card are public.

Where several processes serve the same clients, a request about something of another process (a legacy
session, a stream of HTTP+SSE, a parked call, a task) does not reach this one: its own process authenticates
and authorizes the client.

Source: "Streamable HTTP" of 2026-07-28, "Transports" of 2025-03-26 to 2025-11-25; "Authorization" of
2025-06-18 to 2026-07-28; RFC 6750, section 3.1; RFC 9728; "HTTP with SSE" is in `sse_endpoint`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Final

import structlog
import trio

from mcpmux.channels.tap import EXCHANGE, Said, Tap, Watch, introduction_in
from mcpmux.clients.http_answer import (
    JSON,
    JSON_TYPE,
    NOT_JSON,
    HttpNotify,
    NoSession,
    WatchedReply,
    answer_error,
    failure,
    is_json,
    refuse_with,
    respond,
)
from mcpmux.clients.http_sessions import HttpSessions
from mcpmux.clients.server_card import ServerCard
from mcpmux.clients.service import Service
from mcpmux.clients.session_records import MovedElsewhere, SessionRecords
from mcpmux.clients.sse_endpoint import SseEndpoint
from mcpmux.config import HttpListener, Limits
from mcpmux.config.scalars import is_name
from mcpmux.errors import RpcError
from mcpmux.lru import Lru
from mcpmux.mux.replay import Gone
from mcpmux.mux.rewrite import Marks
from mcpmux.mux.share import Share, client_of, origin_of
from mcpmux.mux.view import BadNarrowing
from mcpmux.protocol import method as m
from mcpmux.protocol.call import VERSION, Call, Notify, target_in
from mcpmux.protocol.codes import INVALID_REQUEST, Busy, unsupported_version
from mcpmux.protocol.envelope import (
    BadMessage,
    ErrorReply,
    Message,
    Notification,
    Reply,
    Request,
    decode_message,
    decode_request,
    encode_error,
    encode_reply,
    is_batch,
)
from mcpmux.protocol.framing import read_batch
from mcpmux.protocol.headers import (
    LAST_EVENT_ID,
    METHOD_HEADER,
    SESSION_HEADER,
    VERSION_HEADER,
    OriginPolicy,
    ToolHeaders,
    check_request,
)
from mcpmux.protocol.principal import Principal, Turned
from mcpmux.protocol.raw_json import Fields, Id
from mcpmux.protocol.revisions import SUPPORTED, allows_batch, is_modern
from mcpmux.transports.body_budget import BodyBudget
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.inline import in_task

if TYPE_CHECKING:
    from mcpmux.auth.gate import Gate

log = structlog.get_logger()

Handling = Awaitable[None]
"""The remaining work for a request, to be awaited."""

METADATA: Final = (*JSON, ("Cache-Control", "max-age=300"), ("Vary", "Origin"))
WELL_KNOWN: Final = "/.well-known/"  # RFC 8615; OpenID Connect has it behind the path of an issuer
_OBJECT: Final = b"{"  # the first byte of most bodies, and of no batch
# Principals whose lists of tools are remembered; for others the parameter headers are not compared.
LEARNERS_LIMIT: Final = 1000
LEARNED_BYTES: Final = 32 * 2**20  # of these lists
# Legs without a session that are remembered, most of which are over: a listener serves 800 at a time.
LEGS_LIMIT: Final = 1024
LEGS_BYTES: Final = 8 * 2**20  # of these legs and their views, which clients may narrow
LEG_BYTES: Final = 4 * 2**10  # the most that a leg takes, with its client's name and revision


def _place_of_leg(request: HttpRequest) -> tuple[str, str, bytes]:
    """Return the key of the leg of a request without a session: its client's address, view and name."""
    return request.peer, request.principal.view, introduction_in(request.body)


class HttpEndpoint:
    """All HTTP clients of one listener. `handle` answers a request while `sessions.run` runs."""

    def __init__(
        self,
        service: Service,
        listener: HttpListener,
        limits: Limits,
        gate: Gate | None = None,
        stopping: trio.Event | None = None,
        marks: Marks | None = None,
        records: SessionRecords | None = None,
        card: ServerCard | None = None,
        bodies: BodyBudget | None = None,
    ) -> None:
        """`gate` admits clients and knows which scopes a method needs; None admits every client.

        `stopping`: ends the streams of HTTP+SSE. `marks`: a prefix of every session id, by which requests
        reach their process. `records` keep sessions beyond the life of this process. `card`: the server card
        to publish. `bodies`: the budget for large messages over HTTP+SSE.
        """
        self._gate = gate
        self._card = card
        self._service = service
        self._path = listener.path
        self._policy = OriginPolicy(listener.host, listener.allowed_hosts, listener.allowed_origins)
        self.grants = self._policy.grants
        """The function that returns the CORS headers of every answer to a page; see OriginPolicy."""
        self._streams = Share(limits.stream_share())
        # Tools as clients see them, by the principal who listed them.
        self._tools: Lru[str, ToolHeaders] = Lru(LEARNERS_LIMIT, LEARNED_BYTES)
        self._legs: Lru[tuple[str, str, bytes], Watch] = Lru(
            LEGS_LIMIT, LEGS_BYTES
        )  # the legs without a session
        self.sessions = HttpSessions(
            service,
            limits,
            gate,
            marks or Marks(),
            records,
            lambda: len(self._sse) if self._sse is not None else 0,
        )
        # The (endpoint, view) of paths that were served before: most requests need one look here.
        self._places: dict[str, tuple[str, str]] = {}
        # The part of a path before the name of a view, and the endpoint that it belongs to.
        self._bases = {path.rstrip("/"): path for path in (listener.sse_path, listener.path) if path}
        self._sse: SseEndpoint | None = None
        if listener.sse_path:
            more = gate, stopping, self.sessions.new_id, self.sessions.is_full, self._streams, bodies
            self._sse = SseEndpoint(listener.sse_path, service, limits, *more)

    def handle(self, request: HttpRequest, reply: HttpReply) -> Handling:
        """Answer a request. Most need no task: clients' tokens were judged before, if they need any."""
        answer = self._answer_anybody(request, reply)
        if answer is not None:
            return answer
        gate = self._gate
        if gate is None:
            return self._serve(request, reply)
        # A stream may outlive its token, so `_admit` serves it in a scope that ends with the token.
        opens_stream = request.method == "GET" or request.headers.get(METHOD_HEADER) == m.LISTEN
        is_here = request.path == self._path or request.path in self._places
        admission = gate.known(request.headers) if is_here and not opens_stream else None
        # A token that was issued for one resource must not open another one (RFC 8707).
        if admission is None or (
            admission.resource and admission.resource != self._resource_at(gate, request.path)
        ):
            return self._admit(gate, request, reply, opens_stream=opens_stream)
        request.principal = admission.principal
        return self._serve(request, reply)

    async def judge(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer a request before its body is read, if its head decides the answer."""
        gate = self._gate
        answer = self._answer_anybody(request, reply)
        if answer is not None:
            await answer
        elif gate is not None:
            # A client that is not admitted must not make this process read and hold a large body.
            try:
                resource = self._resource_at(gate, request.path)
                admission = await gate.admit(request.headers, request.holder, resource)
                request.principal = admission.principal  # the body counts for its budget
            except Turned as turned:
                await turn_away(reply, turned)

    def _answer_anybody(self, request: HttpRequest, reply: HttpReply) -> Handling | None:
        """Return the answer to a request that needs no authentication; None for all others."""
        host, gate = request.headers.get("host", ""), self._gate
        # A preflight carries no credentials, and the card is for pages of any origin: both come before the
        # check of Host and Origin.
        if request.method == "OPTIONS" and (preflight := self._policy.answer_preflight(request.headers)):
            return reply.send(204, preflight)
        if self._card is not None and request.path == self._card.path:
            refusal = self._policy.refuses(host, None)
            if refusal is None:
                return self._card.answer(request, reply)
            return refuse_with(reply, 403, refusal)
        # A page of another origin, or of a name that was rebound to this machine, must reach no session
        # ("Security Warning" in "Transports").
        refusal = self._policy.refuses(host, request.headers.get("origin"))
        if refusal is not None:
            if gate is None and self._service.tap is not None:
                self._watch(self._service.tap, request, reply)
            return refuse_with(reply, 403, refusal)
        if gate is None or WELL_KNOWN not in request.path or self._is_resource(self._place_of(request.path)):
            return None
        # A client reads the metadata to learn where it gets a token, so it has none yet (RFC 9728).
        metadata = gate.resource
        paths = metadata.paths_asked(request.path, self._path) if metadata is not None else ()
        place = next(filter(self._is_resource, map(self._place_of, paths)), None)
        if metadata is None or place is None:
            return refuse_with(reply, 404, "There is no such document")
        if request.method not in ("GET", "HEAD"):
            return refuse_with(reply, 405, "Method not allowed", (("Allow", "GET, HEAD"),))
        return reply.send(200, METADATA, metadata.document_of(metadata.url_of(self._path, *place)))

    async def _admit(self, gate: Gate, request: HttpRequest, reply: HttpReply, *, opens_stream: bool) -> None:
        await in_task()
        resource = self._resource_at(gate, request.path)
        try:
            admission = await gate.admit(request.headers, request.holder, resource)
        except Turned as turned:
            await turn_away(reply, turned)
            return
        request.principal = admission.principal
        # Any other request ends soon, and its answer was allowed when it began.
        if not opens_stream:
            await self._serve(request, reply)
            return
        with gate.stay(admission) as scope:
            await self._serve(request, reply)
        # A stream that has begun just ends; its client learns the reason when it opens the next one.
        if scope.cancelled_caught and not reply.started:
            await turn_away(reply, gate.expired(resource))

    def _is_resource(self, place: tuple[str, str]) -> bool:
        """Return whether a place is an endpoint, or could be a view of one."""
        # Without a look whether the view exists: these answers are public, and must not reveal which do.
        path, view = place
        return path in self._bases.values() and (not view or is_name(view))

    def _resource_at(self, gate: Gate, path: str) -> str:
        """Return the URL of the protected resource at a path; "" if clients need no tokens for a resource."""
        if gate.resource is None:
            return ""
        place = self._place_of(path)
        return gate.resource.url_of(self._path, *(place if self._is_resource(place) else (self._path, "")))

    def _place_of(self, path: str) -> tuple[str, str]:
        """Return the endpoint that a path leads to, and the view that it names, "" for none."""
        bare = path.removesuffix("/")  # many servers show their URL with a slash at the end
        endpoint = self._bases.get(bare)
        if endpoint is not None:
            return endpoint, ""
        base, _, view = bare.rpartition("/")
        endpoint = self._bases.get(base)
        return (endpoint, view) if endpoint is not None and view else (path, "")

    def _serve(self, request: HttpRequest, reply: HttpReply) -> Handling:
        """Serve the request of an admitted client, in the view that its URL names."""
        if request.path != self._path or request.query:
            asked = request.path
            entered: Principal | None = request.principal
            place = self._places.get(asked) or self._place_of(asked)
            path, view = place
            if view or request.query:
                try:
                    entered = self._service.enter(request.principal, view, request.query)
                except BadNarrowing as mistake:
                    return refuse_with(reply, 400, str(mistake))
            # Else the path stays: it leads nowhere, so that clients cannot find out which views exist.
            if entered is not None:
                request.path, request.principal = path, entered
                if view:  # not for a query: views are few, queries are not bounded
                    self._places[asked] = place
        # After the view is entered, which is part of a leg's key.
        if self._service.tap is not None:
            self._watch(self._service.tap, request, reply)
        judging = self._service.judging(request.principal) if request.query else None
        is_lost = (
            SESSION_HEADER in request.headers
            and request.path == self._path
            and self.sessions.may_recover(request)
        )
        if judging is not None or is_lost:
            return self._serve_later(judging, request, reply, is_lost=is_lost)
        return self._answer(request, reply)

    async def _serve_later(
        self, judging: Awaitable[list[str]] | None, request: HttpRequest, reply: HttpReply, *, is_lost: bool
    ) -> None:
        """Serve a request once its query is known to select an item, and its session has been taken over.

        `judging`: None if the query needs no judging. `is_lost`: its session may be one of a process that has
        gone.
        """
        await in_task()
        if judging is not None:
            try:
                await judging
            except BadNarrowing as mistake:
                await refuse_with(reply, 400, str(mistake))
                return
        trouble = await self.sessions.recover(request) if is_lost else None
        if isinstance(trouble, RpcError):
            await answer_error(reply, trouble)
        elif trouble is not None:
            # A new exception: the one object is shared by all requests that waited for the recovery.
            raise MovedElsewhere(str(trouble))
        else:
            await self._answer(request, reply)

    def _watch(self, tap: Tap, request: HttpRequest, reply: HttpReply) -> None:
        session = self.sessions.find(request)
        watch = session.watch if session is not None else None
        if watch is None:
            place = _place_of_leg(request)
            watch = self._legs.get(place)
            if watch is None:
                watch = Watch(tap, tap.client("http"))
                watch.leg.view = request.principal.view or None
                # A client without a session never says that it has gone: the oldest legs count as gone.
                for silent in self._legs.keep(place, watch, LEG_BYTES):
                    tap.gone(silent.leg)
        if EXCHANGE.get():  # left by the request before on the same connection, whose task this is
            EXCHANGE.set(0)
        if request.path == self._path:
            if request.body:
                tap.message_passed(watch.leg, "in", request.body)
            reply.tap = WatchedReply(watch)

    def _answer(self, request: HttpRequest, reply: HttpReply) -> Handling:
        """Answer a request whose principal has entered its view: by its path, its method and its content."""
        if request.path != self._path:
            if self._sse is not None and request.path == self._sse.path:
                return self._sse.handle(request, reply)
            sentence = f"Nothing here; the MCP endpoint is {self._path}"
            # Clients of a URL without a path repeat the whole request there. People read where it is.
            if request.path == "/" and (request.method == "POST" or SESSION_HEADER in request.headers):
                place = f"{self._path}?{request.query}" if request.query else self._path
                return refuse_with(reply, 308, sentence, (("Location", place),))
            return refuse_with(reply, 404, sentence)
        if request.method != "POST":
            return self._get_or_delete(request, reply)
        if request.headers.get("content-type", "") != JSON_TYPE and not is_json(request):
            return refuse_with(reply, 415, NOT_JSON)
        try:
            # Only 2025-03-26 has batches, so only a session of that revision takes one.
            if request.body[:1] != _OBJECT and is_batch(request.body):
                session = self.sessions.find(request)
                if session is not None and allows_batch(session.session.revision):
                    messages = read_batch(request.body)
                    refusal = self._refuses(messages, request, reply)
                    streams = "text/event-stream" in request.headers.get("accept", "")
                    return refusal or session.answer_batch(messages, reply, streams=streams)
            message = decode_request(request.body) or decode_message(request.body)
        except BadMessage as bad:
            # The question that this answers would otherwise wait for its whole deadline.
            if bad.is_answer and (asking := self.sessions.find(request)) is not None:
                asking.fail_question(bad)
            return answer_error(reply, bad, None if bad.is_answer else bad.id)
        if self._gate is not None and (refusal := self._refuses([message], request, reply)) is not None:
            return refusal
        if isinstance(message, Request):
            return self._take_request(message, request, reply)
        return self._take_other(message, request, reply)

    def _refuses(
        self, messages: Sequence[Message | BadMessage], request: HttpRequest, reply: HttpReply
    ) -> Handling | None:
        """Return the answer to a client that lacks the scopes for a message; None when it has all scopes."""
        gate = self._gate
        for message in messages:
            if gate is None or not isinstance(message, Request):
                continue
            method, principal = message.method, request.principal
            if gate.scopes_missing(method, principal) is not None:
                # Only a refusal names the resource, so its URL is worked out in this rare case only.
                view = principal.view_name
                resource = self._resource_at(gate, f"{request.path.rstrip('/')}/{view}")
                turned = gate.scopes_missing(method, principal, resource)
                return turn_away(reply, turned, message.id) if turned is not None else None
        return None

    def _take_request(self, message: Request, request: HttpRequest, reply: HttpReply) -> Handling:
        streams = "text/event-stream" in request.headers.get("accept", "")
        if isinstance(reply.tap, WatchedReply):
            facts = None
            if message.members is not None:  # decoded already: the tap need not read the body again
                facts = Said("request", message.id, message.method, target_in(message.members))
            reply.tap.watch.begin(message.id, request.headers, request.body, facts)
        try:
            params = message.params if message.members is None else message.members
            call = Call.of(message.method, params, principal=request.principal)
            version = request.headers.get(VERSION_HEADER)
            # `initialize` opens a session with any version in the header ("Versioning": the message decides).
            if VERSION not in call.meta and (
                version is None or not is_modern(version) or message.method == m.INITIALIZE
            ):
                if (refusal := _version_refused(request)) is not None:
                    raise refusal
                if message.method == m.INITIALIZE:
                    return self._initialize(message, request, reply)
                return self.sessions.find_existing(request).post(message, call, reply, streams=streams)
            # Headers that differ from the body are refused: a proxy may have decided by the headers.
            check_request(request.headers, call)
            if self._tools.bytes and (tools := self._tools.get(call.principal.key)) is not None:
                tools.check(request.headers, call)
            if message.method == m.LISTEN and not streams:
                raise RpcError(INVALID_REQUEST, "Invalid request: a listen needs Accept: text/event-stream")
            notify = HttpNotify(reply, streams)
            work: Awaitable[Fields]
            if message.method == m.LISTEN:
                work = self._listen(request.peer, message.id, call, notify)
            else:
                answer = self._service.answer if call.method != m.TOOLS_LIST else self._list_tools
                work = answer(message.id, call, notify)
        except Exception as error:  # the wall around one request
            return reply.send(*failure(message, error))
        return respond(message, reply, work, streams=streams)

    async def _listen(self, peer: str, request_id: Id, call: Call, notify: Notify) -> Fields:
        """Answer a listen. Raises Busy when its client has too many streams."""
        with self._streams.counted(client_of(call.principal, origin_of(peer))):
            return await self._service.answer(request_id, call, notify)

    async def _list_tools(self, request_id: Id, call: Call, notify: Notify) -> Fields:
        """Answer `tools/list`, and learn from the result which headers calls of these tools need."""
        result = await self._service.answer(request_id, call, notify)
        # For this principal only: others may not see these tools, or not with these parameters.
        principal = call.principal.key
        headers_of_tools = self._tools.get(principal) or ToolHeaders()
        headers_of_tools.learn(dict(result))
        self._tools.keep(principal, headers_of_tools, headers_of_tools.params.bytes)
        return result

    async def _initialize(self, message: Request, request: HttpRequest, reply: HttpReply) -> None:
        try:
            session_id, opened, result = await self.sessions.open(message, request.principal)
        except RpcError as refusal:
            await reply.send(*failure(message, refusal))
            return
        if isinstance(reply.tap, WatchedReply):
            opened.watch = reply.tap.watch
            opened.watch.leg.session = session_id
            self._legs.discard(_place_of_leg(request))  # the session has this leg now; others need a new one
        log.info("session opened", revision=opened.session.revision, sessions=len(self.sessions))
        await reply.send(200, (*JSON, ("Mcp-Session-Id", session_id)), encode_reply(message.id, result))

    def _take_other(self, message: Message, request: HttpRequest, reply: HttpReply) -> Handling:
        if (refusal := _version_refused(request)) is not None:
            return answer_error(reply, refusal)
        if SESSION_HEADER in request.headers:
            try:
                session = self.sessions.find_existing(request)
            except NoSession as error:
                return answer_error(reply, error)
            if isinstance(message, Notification):
                session.take_notification(message)
            elif isinstance(message, Reply | ErrorReply):
                session.take_answer(message)
        # "Sending Messages to the Server": what has no answer gets 202.
        return reply.send(202, ())

    def _get_or_delete(self, request: HttpRequest, reply: HttpReply) -> Handling:
        if (refusal := _version_refused(request)) is not None:
            return answer_error(reply, refusal)
        # Only a legacy session has streams that a client opens by GET.
        if request.method == "GET" and SESSION_HEADER in request.headers:
            return self._get(request, reply)
        if request.method != "DELETE":
            return refuse_with(reply, 405, "Method not allowed", (("Allow", "POST, GET, DELETE"),))
        if self.sessions.find(request) is None:
            return refuse_with(reply, 404, "Session not found")
        self.sessions.end(request.headers[SESSION_HEADER], "session ended")
        return reply.send(204, ())

    async def _get(self, request: HttpRequest, reply: HttpReply) -> None:
        await in_task()
        try:
            session = self.sessions.find_existing(request)
            with self._streams.counted(client_of(request.principal, origin_of(request.peer))):
                await session.get(request.headers.get(LAST_EVENT_ID), reply)
        except (NoSession, Busy) as error:
            await answer_error(reply, error)
        except Gone as gone:
            await refuse_with(reply, 400, str(gone))


def _version_refused(request: HttpRequest) -> RpcError | None:
    """Return the error for a version that is not supported, to any request ("Protocol Version Header")."""
    version = request.headers.get(VERSION_HEADER)
    return unsupported_version(version) if version is not None and version not in SUPPORTED else None


async def turn_away(reply: HttpReply, turned: Turned, request_id: Id | None = None) -> None:
    """Answer a client that is not admitted, or lacks scopes. `request_id`: of the request, if it was read."""
    await reply.send(turned.status, (*JSON, *turned.fields), encode_error(request_id, turned.as_error()))
