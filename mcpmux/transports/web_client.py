"""HTTP requests that are no exchanges: to authorization servers, and to a running mcpmux. By httpx.

This is the one module that knows httpx, and it is imported when there is something to ask, as httpx is large.

Promises: no redirect is followed, no body is decompressed, no environment variable counts; each request has a
separate connection; a response is bounded in size; errors name no query, no credentials, and no part of what
was sent. With `find`, connections go only to the addresses that it returns: a name is not resolved again. The
caller owns the deadline.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from typing import Any, NamedTuple

import httpx
import trio

from mcpmux.config import ClientTls
from mcpmux.errors import ConnectFailed, MessageTooLarge, RemoteProtocolError, TransportClosed
from mcpmux.printable import printable
from mcpmux.transports.byte_stream import KEEP_ALIVE, reason_of
from mcpmux.transports.http.message import HEAD_FIELDS, HeaderFields
from mcpmux.transports.http.route import AUTHENTICATION_REQUIRED, Proxy
from mcpmux.transports.tls import client_context, explain_server

CONNECT_SECONDS = 15.0  # for TCP, and again for TLS
MOST_ADDRESSES = 4  # of one name that are tried
SHOWN_CHARACTERS = 100  # of a library's or a proxy's text that are shown in an error

_OWN_FIELDS = (("User-Agent", "mcpmux"), ("Accept-Encoding", "identity"), ("Connection", "keep-alive"))
_EXTENSIONS = {"timeout": {"connect": CONNECT_SECONDS}}

Find = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host, port) → the addresses to connect to. Raises McpmuxError when there is none that may be."""


class WebAnswer(NamedTuple):
    """A whole response. Header names are lower-case."""

    status: int
    headers: dict[str, str]
    body: bytes


class WebResponse:
    """A response whose head was received. Iterating it yields the body as it comes, without a limit."""

    def __init__(self, response: httpx.Response, body_bytes: int) -> None:
        self.status = response.status_code
        self.headers = dict(response.headers)
        self._response = response
        self._chunks = response.aiter_raw()
        self._body_bytes = body_bytes

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def read(self) -> bytes:
        """Return the whole body. Raises MessageTooLarge."""
        body = bytearray()
        missing = int(self.headers.get("content-length", 0))
        while missing <= self._body_bytes and len(body) <= self._body_bytes:
            chunk = await anext(self._chunks, b"")
            if not chunk:
                return bytes(body)
            body += chunk
        raise MessageTooLarge(f"the response's body is larger than {self._body_bytes} bytes")

    async def close(self) -> None:
        """Close the response."""
        await self._response.aclose()
        # httpx nests generators, none of which closes the next: reading on after `aclose` ends them.
        with suppress(httpx.HTTPError, httpx.StreamError):
            async for _ in self._chunks:
                pass


class WebClient(NamedTuple):
    """Settings for requests. `tls`: towards the server; a proxy is verified with the system's authorities."""

    tls: ClientTls = ClientTls()
    proxy: Proxy | None = None
    find: Find | None = None
    head_bytes: int = 64 * 1024
    body_bytes: int = 64 * 1024 * 1024  # of a response that is read whole

    async def ask(self, method: str, url: str, fields: HeaderFields, body: bytes = b"") -> WebAnswer:
        """Send a request and return the whole response. Raises as `open`, and MessageTooLarge."""
        async with self.open(method, url, fields, body) as response:
            return WebAnswer(response.status, response.headers, await response.read())

    @asynccontextmanager
    async def open(
        self, method: str, url: str, fields: HeaderFields, body: bytes = b""
    ) -> AsyncIterator[WebResponse]:
        """Send a request and open its response, once its head was received. Leaving closes the connection.

        Raises ConnectFailed, other TransportErrors, RemoteProtocolError, ConfigError for files of `tls`, and
        what `find` raises.
        """
        place, headers = _read_url(url), [*_OWN_FIELDS, *fields]
        authority = place.netloc.decode("ascii")
        request = httpx.Request(method, url, headers=headers, content=body, extensions=_EXTENSIONS)
        transport = await trio.to_thread.run_sync(self._make_transport, place)
        try:
            # No httpx.AsyncClient: it adds headers, cookies and the environment.
            async with transport:
                answered = await self._send(request, transport, authority)
                response = WebResponse(answered, self.body_bytes)
                try:
                    received = answered.headers.raw
                    if len(received) > HEAD_FIELDS:
                        raise RemoteProtocolError(f"the response has more than {HEAD_FIELDS} header fields")
                    size = sum(len(name) + len(value) + len(": \r\n") for name, value in received)
                    if size > self.head_bytes:
                        limit = f"{self.head_bytes} bytes"
                        raise RemoteProtocolError(f"the response's head is larger than {limit}")
                    yield response
                finally:
                    await response.close()
        except (httpx.HTTPError, httpx.StreamError) as error:
            if not isinstance(error, httpx.RemoteProtocolError):
                reason = f"the connection to {authority} broke off: {_reason(error)}"
                raise TransportClosed(reason) from None
            broken = RemoteProtocolError(f"what {authority} answers is no whole HTTP response")
            raise broken.quoting(f": {printable(str(error)[:SHOWN_CHARACTERS])}") from None

    def _make_transport(self, url: httpx.URL) -> WebTransport:
        """Return a transport for one request, reading the files of `tls`. Raises ConfigError."""
        context: ssl.SSLContext | bool = False
        if url.scheme == "https":
            context, host = client_context(self.tls), url.raw_host.decode("ascii")
            name = (self.tls.server_name or host).partition("%")[0].rstrip(".")
            wrap = context.wrap_bio

            # Servers are verified by this name, though the connection goes to an address or to a proxy.
            def wrap_bio(*args: Any, **options: Any) -> ssl.SSLObject:
                return wrap(*args, **{**options, "server_hostname": name})

            context.wrap_bio = wrap_bio  # type: ignore[method-assign]  # of this one context
        proxy = None
        if self.proxy is not None:
            own = client_context(ClientTls()) if self.proxy.origin.secure else None
            proxy = httpx.Proxy(self.proxy.origin.url, headers=list(self.proxy.fields), ssl_context=own)
        return WebTransport(verify=context, trust_env=False, proxy=proxy, socket_options=KEEP_ALIVE)

    async def _send(self, request: httpx.Request, transport: WebTransport, authority: str) -> httpx.Response:
        """Return the response with its head. Raises ConnectFailed, errors of `find`, and httpx.HTTPError."""
        url, failure = request.url, ConnectFailed(f"cannot connect to {authority}")
        host, port = url.raw_host.decode("ascii"), url.port or (443 if url.scheme == "https" else 80)
        if self.proxy is not None:
            # A proxy resolves names, so only an address that stands in the URL can be judged.
            if self.find is not None and _is_address(host):
                await self.find(host, port)
            return await _send_by_proxy(self.proxy, request, transport, authority)
        addresses = [host] if self.find is None else await self.find(host, port)
        for address in addresses[:MOST_ADDRESSES]:
            # Connect to the address itself: resolving the name again may give one that was not checked. The
            # Host field and the name for TLS are set by now.
            request.url = url.copy_with(host=address)
            try:
                return await _send_once(request, transport, authority)
            except ConnectFailed as error:
                failure = error
        raise failure


WebTransport = httpx.AsyncHTTPTransport
"""Makes the connection for one request: to an address from `find`, or to a proxy."""


async def _send_by_proxy(
    proxy: Proxy, request: httpx.Request, transport: WebTransport, authority: str
) -> httpx.Response:
    try:
        response = await _send_once(request, transport, f"{authority} through the proxy {proxy}")
    except httpx.ProxyError as error:
        status, _, phrase = str(error).partition(" ")
        if status == str(AUTHENTICATION_REQUIRED):
            raise proxy.wants_credentials() from None
        refused = ConnectFailed(f"the proxy {proxy} does not connect to {authority}: status {status[:3]}")
        raise refused.quoting(f" ({printable(phrase[:SHOWN_CHARACTERS])})") from None
    if response.status_code == AUTHENTICATION_REQUIRED and request.url.scheme == "http":
        await response.aclose()
        raise proxy.wants_credentials()
    return response


async def _send_once(request: httpx.Request, transport: WebTransport, where: str) -> httpx.Response:
    try:
        return await transport.handle_async_request(request)
    except (httpx.ConnectError, httpx.ConnectTimeout, ValueError) as error:
        raise ConnectFailed(f"cannot connect to {where}: {_reason(error)}") from None


def _read_url(url: str) -> httpx.URL:
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        parts = httpx.URL()
    if parts.scheme not in ("http", "https") or not parts.host or parts.userinfo or (parts.port or 0) > 65535:
        raise RemoteProtocolError("what should be the URL of a server is none")
    return parts


def _is_address(host: str) -> bool:
    """Return whether `host` is a number of some kind, which a proxy may take for an address, and no name."""
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return host.replace(".", "").isdigit()
    return True


def _reason(error: BaseException) -> str:
    if isinstance(error, httpx.ConnectTimeout):
        return f"no answer within {CONNECT_SECONDS:g} s"
    # Libraries in between raise their own errors, and not always `from` the error of the system or of TLS.
    while not isinstance(error, OSError | trio.BrokenResourceError):
        cause = error.__cause__ or error.__context__
        if cause is None:
            break
        error = cause
    tls = error if isinstance(error, ssl.SSLError) else error.__cause__
    return f"TLS: {explain_server(tls)}" if isinstance(tls, ssl.SSLError) else reason_of(error)
