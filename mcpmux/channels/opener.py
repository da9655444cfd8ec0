"""From a configured target to an open channel: the one place that knows which transports there are.

Over HTTP that is Streamable HTTP or HTTP+SSE: "Clients wanting to support older servers should" POST
`initialize`, and when that is answered with 400, 404 or 405 GET the same URL. An event stream that begins
with `endpoint` is HTTP+SSE.

Source: "Backwards Compatibility" in "Transports", 2025-11-25; "HTTP with SSE" of 2024-11-05.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import structlog
import trio
from msgspec.structs import replace
from trio.abc import HalfCloseableStream

from mcpmux.auth.credential import REFUSES_TOKEN, Credential
from mcpmux.channels.channel import Channel
from mcpmux.channels.duplex_channel import Answer, DuplexChannel
from mcpmux.channels.http_channel import HttpChannel, OpenOlder
from mcpmux.channels.http_peer import HttpPlace
from mcpmux.channels.opening import open_duplex_channel
from mcpmux.channels.tap import EXCHANGE, Watch, tapped
from mcpmux.config import ClientTls, Http, Limits, Missing, Stdio, Tcp, Unix, Upstream, WebSocket
from mcpmux.config.expansion import Hide, make_hide
from mcpmux.config.model import secrets_of
from mcpmux.errors import ConfigError, ConnectFailed, McpmuxError, RpcError, TransportClosed, TransportError
from mcpmux.protocol.call import Hear, Notify
from mcpmux.protocol.codes import METHOD_NOT_FOUND
from mcpmux.protocol.envelope import Request
from mcpmux.protocol.headers import Headers
from mcpmux.protocol.method import PING
from mcpmux.protocol.raw_json import Fields
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin, PoolLimits, Route, choose_proxy
from mcpmux.transports.http.sse_streams import NoEventStream, open_sse_client_stream
from mcpmux.transports.message_stream import MessageStream, open_line_stream
from mcpmux.transports.orphan_guard import OrphanGuard
from mcpmux.transports.process import LastWords, StopLadder, open_process
from mcpmux.transports.tls import TlsContexts
from mcpmux.transports.waiting import ReadinessPoller

log = structlog.get_logger()

STREAMS = 32  # connections to a server besides those of exchanges: its event streams, listens, answers
DETECT_SECONDS = 5.0  # for the first event, where it is not sure that there will be one


async def answer_server(request: Request, _notify: Notify) -> Fields:
    """What mcpmux itself answers to a server's request: it is alive, and has nothing else to offer."""
    if request.method == PING:
        return {}
    raise RpcError(METHOD_NOT_FOUND, f"Method not found: {request.method}")


@asynccontextmanager
async def open_streamable(place: HttpPlace, older: OpenOlder | None = None) -> AsyncIterator[HttpChannel]:
    """A channel over Streamable HTTP; leaving ends the session at the server.

    The server need not be there yet. `older`: opens what it may need instead.
    """
    if place.watch is not None:
        place.watch.leg.transport = "http"  # it may be another one than last time
    async with trio.open_nursery() as nursery:
        channel = HttpChannel(place, nursery, older)
        nursery.start_soon(channel.deadlines.run, name="http deadlines")
        nursery.start_soon(place.pool.deadlines.run, name="ends of http streams")
        try:
            yield channel
        finally:
            channel.fail_calls()
            await channel.peer.end_session()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_sse(place: HttpPlace) -> AsyncIterator[DuplexChannel]:
    """A channel over HTTP+SSE. Raises NoEventStream, another RemoteProtocolError, TransportError."""
    pool, url, headers, limit, answer, hear, patience, watch, credential, hide = place
    async with AsyncExitStack() as stack:
        show = credential.header if credential is not None else None
        try:
            messages = await stack.enter_async_context(
                open_sse_client_stream(pool, url, headers, limit, patience, show, hide)
            )
        except NoEventStream as error:
            shown = credential.header_now() if credential is not None else ()
            await _raise_advice(error, credential, shown, error.status, error.challenge)
            raise
        if watch is not None:
            watch.leg.transport = "sse"
        channel = await stack.enter_async_context(
            open_duplex_channel(tapped(messages, watch), answer, hear, objects=False)
        )
        channel.legacy_only = True
        channel.session = messages.target
        yield channel


async def _raise_advice(
    error: McpmuxError, credential: Credential | None, shown: Headers, status: int, challenge: str
) -> None:
    """Raises ConnectFailed, with what a person can do about it, when a token was refused for good."""
    if credential is None or status not in REFUSES_TOKEN:
        return
    if not await credential.refused(shown, status, challenge) and credential.advice is not None:
        raise ConnectFailed(f"{error}: {credential.advice}").quoting(error.quoted) from None


@asynccontextmanager
async def open_either(place: HttpPlace, sse_urls: set[str]) -> AsyncIterator[Channel]:
    """A channel over whichever of the two it is; `sse_urls` remembers those found out to be HTTP+SSE.

    A remembered one that has no event stream any more is forgotten and found out anew. Raises as `open_sse`.
    """
    place = place._replace(patience=min(place.patience, DETECT_SECONDS))

    async def hold(task_status: trio.TaskStatus[DuplexChannel]) -> None:
        EXCHANGE.set(0)  # it outlives the one that its session may have been opened for
        async with open_sse(place) as channel:
            task_status.started(channel)
            await trio.sleep_forever()

    async def older() -> DuplexChannel | None:
        try:
            channel: DuplexChannel = await nursery.start(hold, name="http+sse")
        except (NoEventStream, TransportError) as error:
            log.debug("not HTTP+SSE either", reason=str(error))
            return None
        sse_urls.add(place.url)
        return channel

    async with AsyncExitStack() as stack:
        channel: Channel | None = None
        if place.url in sse_urls:
            try:
                channel = await stack.enter_async_context(open_sse(place))
            except NoEventStream as error:
                log.info("the server does not speak HTTP+SSE any more", reason=str(error))
                sse_urls.discard(place.url)
        nursery = await stack.enter_async_context(trio.open_nursery())
        if channel is None:
            channel = await stack.enter_async_context(open_streamable(place, older))
        yield channel
        nursery.cancel_scope.cancel(reason="the channel is closed")


# A stream that stays open: WebSocket, TCP or a Unix socket. Most servers are reached otherwise, and what
# these need is a large part of a start: it is imported by the first that is opened.


@asynccontextmanager
async def open_stream_channel(
    target: WebSocket | Tcp | Unix,
    message_limit: int,
    patience: float,
    answer: Answer,
    hear: Hear,
    watch: Watch | None,
    credential: Credential | None = None,
    hide: Hide = str,
) -> AsyncIterator[DuplexChannel]:
    """A channel to the server at `target`, connected within `patience` seconds.

    Leaving closes the stream. Raises TransportError, and ConfigError for a file of the TLS settings.
    """
    tls = None if isinstance(target, Unix) else target.tls
    is_plain = isinstance(target, WebSocket) and not target.url.startswith("wss")
    if tls is not None and not tls.verify and not is_plain:
        log.warning("ANY SERVER IS BELIEVED: `tls.verify` is false", target=target.display)
    async with AsyncExitStack() as stack:
        if isinstance(target, WebSocket):
            from mcpmux.transports.websocket import HandshakeRefused, open_websocket

            headers = tuple((key, secret.reveal()) for key, secret in target.headers.items())
            shown = await credential.header() if credential is not None else ()
            opening = open_websocket(target.url, headers + shown, target.tls, message_limit, patience)
            try:
                messages: MessageStream = await stack.enter_async_context(opening)
            except HandshakeRefused as error:
                error.quoted = hide(error.quoted)
                await _raise_advice(error, credential, shown, error.status, error.challenge)
                raise
        else:
            messages = await stack.enter_async_context(
                open_line_stream(await _connect(target, patience), message_limit)
            )
        yield await stack.enter_async_context(
            open_duplex_channel(tapped(messages, watch), answer, hear, objects=False)
        )


async def _connect(target: Tcp | Unix, patience: float) -> HalfCloseableStream:
    from mcpmux.transports.stream import PatientStream, open_tcp, open_unix

    with trio.move_on_after(patience):
        if isinstance(target, Unix):
            return PatientStream(await open_unix(target.path))
        return PatientStream(await open_tcp(target.host, target.port, target.tls))
    raise ConnectFailed(f"cannot connect to {target.display}: not within {patience:g} s of `connect_timeout`")


@dataclass(eq=False, repr=False)
class ChannelOpener:
    """Opens channels.

    `connections`: that an HTTP channel may open, and keeps open; None for the pool's own limits. `poller`
    runs as long as any channel is open; without one no HTTP channel sends without waiting. `certificates` are
    to be renewed; new HTTP connections use them as they are then.
    """

    limits: Limits
    stop: StopLadder
    connections: int | None = None
    poller: ReadinessPoller | None = None
    certificates: TlsContexts = field(default_factory=TlsContexts)
    _guard: OrphanGuard = field(default_factory=OrphanGuard)
    _sse_urls: set[str] = field(default_factory=set)  # of servers found out to speak HTTP+SSE
    _credentials: dict[str, tuple[Http | WebSocket, Credential | None]] = field(default_factory=dict)

    def open(
        self, upstream: Upstream, hear: Hear, watch: Watch | None = None
    ) -> AbstractAsyncContextManager[Channel]:
        """A channel to `upstream`. Leaving stops its process or ends its session. Raises TransportError."""
        target = upstream.target
        if isinstance(target, Missing):
            raise ConnectFailed(target.reason)
        hide = make_hide(secrets_of(target))
        if isinstance(target, Stdio):
            return self._open_process(target, hear, watch, hide)
        credential = self._credential_of(upstream)
        if isinstance(target, Http):
            return self._open_http(upstream, target, hear, watch, credential, hide)
        limit, patience = self.limits.max_message_bytes, upstream.connect_timeout
        return open_stream_channel(target, limit, patience, answer_server, hear, watch, credential, hide)

    def _credential_of(self, upstream: Upstream) -> Credential | None:
        """What gets tokens for the upstream: the same for all sessions with it. None: it needs none."""
        target = upstream.target
        if not isinstance(target, Http | WebSocket) or target.oauth is None:
            return None
        # Not at the top: few servers want tokens that have to be fetched.
        from mcpmux.auth.upstream_auth import make_credential

        known = self._credentials.get(upstream.name)
        if known is None or known[0] != target:
            known = self._credentials[upstream.name] = target, make_credential(upstream.name, target)
        return known[1]

    @asynccontextmanager
    async def _open_process(
        self, target: Stdio, hear: Hear, watch: Watch | None, hide: Hide
    ) -> AsyncIterator[Channel]:
        last_words = LastWords()

        def on_stderr(line: str) -> None:
            line = hide(line)
            last_words.add(line)
            log.info("upstream says", line=line)

        env = {key: secret.reveal() for key, secret in target.env.items()}
        async with (
            open_process(
                target.command,
                target.args,
                env,
                Path(target.cwd) if target.cwd is not None else None,
                stop=self.stop,
                on_stderr_line=on_stderr,
                max_message_bytes=self.limits.max_message_bytes,
                inherited=target.inherited,
                guard=self._guard,
            ) as process,
            open_duplex_channel(tapped(process, watch), answer_server, hear, objects=False) as channel,
        ):
            channel.source, channel.hide = "standard output", hide
            try:
                yield channel
                if channel.closed.is_set():
                    ended = channel.close_reason
                    raise TransportClosed(str(ended)).quoting(ended.quoted)
            except TransportClosed as error:  # what it wrote to stderr before often explains it
                said = str(last_words)
                more = f"; it said: {said}" if said else ""
                raise TransportClosed(str(error)).quoting(error.quoted + more) from None

    @asynccontextmanager
    async def _open_http(
        self,
        upstream: Upstream,
        target: Http,
        hear: Hear,
        watch: Watch | None,
        credential: Credential | None,
        hide: Hide,
    ) -> AsyncIterator[Channel]:
        limits = PoolLimits(
            head_bytes=self.limits.max_head_bytes,
            head_fields=self.limits.max_header_fields,
            body_bytes=self.limits.max_message_bytes,
            connections=upstream.max_in_flight + STREAMS,
        )
        if self.connections is not None:
            limits = replace(limits, connections=self.connections, idle=self.connections)
        headers = tuple((key, secret.reveal()) for key, secret in target.headers.items())
        route = await self._find_route(upstream.name, target)
        with HttpPool(route.origin, limits=limits, route=route, poller=self.poller) as pool:
            limit, patience = self.limits.max_message_bytes, upstream.connect_timeout
            place = HttpPlace(
                pool, target.url, headers, limit, answer_server, hear, patience, watch, credential, hide
            )
            if target.transport == "auto":
                opening: AbstractAsyncContextManager[Channel] = open_either(place, self._sse_urls)
            else:
                opening = open_sse(place) if target.transport == "sse" else open_streamable(place)
            async with opening as channel:
                channel.hide = hide
                yield channel

    async def _find_route(self, name: str, target: Http) -> Route:
        """Raises ConfigError."""
        origin = HttpOrigin.from_url(target.url)
        proxy = choose_proxy(origin, target.proxy)
        if proxy is not None:
            log.debug("by way of a proxy", proxy=str(proxy))
        if not origin.secure and target.tls != ClientTls():
            raise ConfigError(["`tls` does not go with an http:// URL; expected https://"])
        if not target.tls.verify:
            log.warning("ANY SERVER IS BELIEVED: `tls.verify` is false", host=origin.host)
        open_tls, where = self.certificates.open, f"upstream {name}"
        return Route(
            origin,
            await open_tls(where, target.tls) if origin.secure else None,
            target.tls.server_name,
            proxy,
            await open_tls(where, ClientTls()) if proxy is not None and proxy.origin.secure else None,
        )
