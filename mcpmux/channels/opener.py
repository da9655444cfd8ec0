"""Open a channel to a configured target, or over a stream: the one place that knows all transports.

Over HTTP that is Streamable HTTP or HTTP+SSE: "Clients wanting to support older servers should" POST
`initialize`, and if the answer is 400, 404 or 405, GET the same URL. An event stream that begins with
`endpoint` is HTTP+SSE.

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
from mcpmux.channels.questions import PARK_LIMIT
from mcpmux.channels.tap import EXCHANGE, Watch, tapped
from mcpmux.config import ClientTls, Http, Limits, Missing, Stdio, Tcp, Unix, Upstream, WebSocket
from mcpmux.config.expansion import Hide, make_hide
from mcpmux.config.model import secrets_of
from mcpmux.errors import ConfigError, ConnectFailed, McpmuxError, TransportClosed, TransportError
from mcpmux.protocol.call import Hear
from mcpmux.protocol.headers import Headers
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
DETECT_SECONDS = 5.0  # for the first event, where the server may not speak HTTP+SSE


@asynccontextmanager
async def open_duplex_channel(
    messages: MessageStream, hear: Hear, answer: Answer | None = None, *, linger: float = 0
) -> AsyncIterator[DuplexChannel]:
    """Open a channel over `messages` that reads in the background. The caller closes the stream.

    `answer` answers a client, inline (see `transports/inline`); None if the peer is a server. `linger`:
    seconds for which the peer's exchanges may go on after the end of the stream, which sets `closed`; the
    block goes on. Leaving cancels them.
    """
    async with trio.open_nursery() as nursery:
        channel = DuplexChannel(messages, hear, answer)
        nursery.start_soon(channel.run, linger, name="channel reader")
        nursery.start_soon(channel.deadlines.run, name="channel deadlines")
        yield channel
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_streamable(place: HttpPlace, older: OpenOlder | None = None) -> AsyncIterator[HttpChannel]:
    """Open a channel over Streamable HTTP; leaving ends the session at the server.

    The server need not be reachable yet. `older`: opens the older transport that it may need instead.
    """
    if place.watch is not None:
        place.watch.leg.transport = "http"  # another one than last time, if the server has changed
    async with trio.open_nursery() as nursery:
        channel = HttpChannel(place, nursery, older)
        place.pool.deadlines = channel.deadlines
        nursery.start_soon(channel.deadlines.run, name="http deadlines")
        try:
            yield channel
        finally:
            # The server gets no cancellations: its calls end with the session.
            channel.fail_calls()
            await channel.peer.end_session()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_sse(place: HttpPlace) -> AsyncIterator[DuplexChannel]:
    """Open a channel over HTTP+SSE. Raises NoEventStream, another RemoteProtocolError, TransportError."""
    pool, url, headers, limit, hear, patience, watch, credential, hide = place
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
        channel = await stack.enter_async_context(open_duplex_channel(tapped(messages, watch), hear))
        channel.legacy_only = True
        channel.session = messages.target
        yield channel


async def _raise_advice(
    error: McpmuxError, credential: Credential | None, shown: Headers, status: int, challenge: str
) -> None:
    """Raise ConnectFailed, with advice for a person, if a token was refused and there is no other."""
    if credential is None or status not in REFUSES_TOKEN:
        return
    if not await credential.refused(shown, status, challenge) and credential.advice is not None:
        raise ConnectFailed(f"{error}: {credential.advice}").quoting(error.quoted) from None


@asynccontextmanager
async def open_either(place: HttpPlace, sse_urls: set[str]) -> AsyncIterator[Channel]:
    """Open a channel over Streamable HTTP or HTTP+SSE, as the server needs it. Raises as `open_sse`.

    `sse_urls` remembers the URLs that turned out to be HTTP+SSE. One without an event stream any more is
    removed, and detected anew.
    """
    place = place._replace(patience=min(place.patience, DETECT_SECONDS))

    async def hold(task_status: trio.TaskStatus[DuplexChannel]) -> None:
        EXCHANGE.set(0)  # this task outlives the exchange for which the session was opened
        async with open_sse(place) as channel:
            task_status.started(channel)
            await trio.sleep_forever()

    async def older() -> DuplexChannel | None:
        try:
            channel: DuplexChannel = await nursery.start(hold, name="http+sse")
        except (NoEventStream, TransportError) as error:
            log.debug("not HTTP+SSE either", reason=str(error))
            return None
        sse_urls.add(place.url)  # the next channel need not be refused first
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


# A stream that stays open: WebSocket, TCP or a Unix socket. Few servers are reached this way, and the imports
# for it are a large part of a start: they happen when the first is opened.


@asynccontextmanager
async def open_stream_channel(
    target: WebSocket | Tcp | Unix,
    message_limit: int,
    patience: float,
    hear: Hear,
    watch: Watch | None,
    credential: Credential | None = None,
    hide: Hide = str,
) -> AsyncIterator[DuplexChannel]:
    """Open a channel to the server at `target`, connecting within `patience` seconds.

    `hide` removes secrets from the server's text in errors. Leaving closes the stream. Raises TransportError,
    and ConfigError for a file of the TLS settings.
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
        yield await stack.enter_async_context(open_duplex_channel(tapped(messages, watch), hear))


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

    `connections`: the number that an HTTP channel may open, and keeps open; None for the limits of the pool
    and the upstream. `poller` must run as long as any channel is open; without one no HTTP channel sends
    without waiting. `certificates` may be renewed; new HTTP connections use them from then on.
    """

    limits: Limits
    stop: StopLadder
    connections: int | None = None
    poller: ReadinessPoller | None = None
    certificates: TlsContexts = field(default_factory=TlsContexts)
    _guard: OrphanGuard = field(default_factory=OrphanGuard)
    _sse_urls: set[str] = field(default_factory=set)  # of servers that turned out to speak HTTP+SSE
    _credentials: dict[str, tuple[Http | WebSocket, Credential | None]] = field(default_factory=dict)

    def open(
        self, upstream: Upstream, hear: Hear, watch: Watch | None = None
    ) -> AbstractAsyncContextManager[Channel]:
        """Open a channel to `upstream`. Leaving stops its process or ends its session.

        `hear` gets the notifications of no exchange. Raises TransportError.
        """
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
        return open_stream_channel(target, limit, patience, hear, watch, credential, hide)

    def _credential_of(self, upstream: Upstream) -> Credential | None:
        """Return the credential of the upstream, shared by all its sessions; None if it needs no token."""
        target = upstream.target
        if not isinstance(target, Http | WebSocket) or target.oauth is None:
            return None
        # Not at the top: few servers want tokens that have to be fetched.
        from mcpmux.auth.upstream_auth import make_credential

        # A changed configuration needs another credential, though the name is the same.
        remembered = self._credentials.get(upstream.name)
        if remembered is None or remembered[0] != target:
            remembered = self._credentials[upstream.name] = target, make_credential(upstream.name, target)
        return remembered[1]

    @asynccontextmanager
    async def _open_process(
        self, target: Stdio, hear: Hear, watch: Watch | None, hide: Hide
    ) -> AsyncIterator[Channel]:
        last_words = LastWords()

        def on_stderr(line: str) -> None:
            # A program may print its arguments or its environment, with secrets in them.
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
            open_duplex_channel(tapped(process, watch), hear) as channel,
        ):
            channel.source, channel.hide, channel.output = "standard output", hide, last_words.output
            try:
                yield channel
                if channel.closed.is_set():
                    ended = channel.close_reason
                    raise TransportClosed(str(ended)).quoting(ended.quoted)
            except TransportClosed as error:  # the last lines on stderr often explain it
                words = str(last_words)
                more = f"; it said: {words}" if words else ""
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
            # A parked call is no exchange in flight any more, and its connection stays open.
            connections=upstream.max_in_flight + PARK_LIMIT + STREAMS,
        )
        if self.connections is not None:
            limits = replace(limits, connections=self.connections, idle=self.connections)
        # Revealed only where they are sent: a Secret shows its value in no log.
        headers = tuple((key, secret.reveal()) for key, secret in target.headers.items())
        route = await self._find_route(upstream.name, target)
        with HttpPool(route.origin, limits=limits, route=route, poller=self.poller) as pool:
            limit, patience = self.limits.max_message_bytes, upstream.connect_timeout
            place = HttpPlace(pool, target.url, headers, limit, hear, patience, watch, credential, hide)
            if target.transport == "auto":
                opening: AbstractAsyncContextManager[Channel] = open_either(place, self._sse_urls)
            else:
                opening = open_sse(place) if target.transport == "sse" else open_streamable(place)
            async with opening as channel:
                channel.hide = hide
                yield channel

    async def _find_route(self, name: str, target: Http) -> Route:
        """Return the route to `target`, with its proxy and TLS contexts. Raises ConfigError."""
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
