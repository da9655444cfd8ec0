"""Serve the admin listener: the inspector's pages and its data, for people who have the token.

Promises: it is an HTTP listener of its own, so no client's request reaches it and none of its pages a client;
without the token it only answers whether mcpmux lives and is ready; its pages load nothing from elsewhere.
Refuses to know how the traffic comes into the ring.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from importlib import resources

import trio

from mcpmux.config import Limits
from mcpmux.config.expansion import Secret
from mcpmux.config.listener import Admin, join_address
from mcpmux.protocol.headers import OriginPolicy
from mcpmux.traffic.admin.api import Api
from mcpmux.traffic.admin.route import SECURITY, TEXT, HttpExchange, Route, read_query
from mcpmux.traffic.admin.upstreams import Control, Replicas, Upstreams
from mcpmux.traffic.admin.view import LiveView
from mcpmux.transports.http.message import HeaderFields, HttpRequest
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.http.server import serve_http
from mcpmux.transports.stream import cannot_listen
from mcpmux.transports.tls import TlsContexts

CONNECTIONS = 64  # people, and collectors of metrics
BODY_BYTES = 64 * 2**10  # of a request
TOKEN_BYTES = 32


async def handle(
    access: AccessCheck, routes: Sequence[Route], request: HttpRequest, reply: HttpReply
) -> None:
    """Answer a request to the admin listener, if the access check permits it."""
    matches = [(route, match) for route in routes if (match := route.match(request.path)) is not None]
    method = "GET" if request.method == "HEAD" else request.method
    route, arguments = next((pair for pair in matches if pair[0].method == method), (None, {}))
    # Unknown paths are checked, too: without the token nothing about them can be learned.
    if route is None or not route.open:
        changes = route is not None and route.method != "GET"
        refusal = access.refusal(request, changes=changes)
        if refusal is not None:
            await _say(reply, *refusal)
            return
    if route is not None:
        await HttpExchange(request, reply, arguments, read_query(request.query)).answer(route.handle)
    elif matches:
        allowed = ("GET, HEAD" if route.method == "GET" else route.method for route, _ in matches)
        fields = (("Allow", ", ".join(dict.fromkeys(allowed))),)
        await _say(reply, 405, f"{request.method} is not for {request.path}", fields)
    else:
        await _say(reply, 404, "there is nothing here")


async def _say(reply: HttpReply, status: int, sentence: str, fields: HeaderFields = ()) -> None:
    text = f"{sentence[:1].upper()}{sentence[1:]}.\n" if sentence else ""
    await reply.send(status, (*TEXT, *fields), text.encode())


UNKNOWN = (
    "this needs the admin token; open the URL that mcpmux printed when it started, "
    "or send `Authorization: Bearer TOKEN`"
)
NOT_DELIBERATE = (
    "this changes something, so it needs `Authorization: Bearer TOKEN`, or the key of /api/control "
    "in X-Mcpmux-Key"
)


async def serve_admin(
    config: Admin,
    view: LiveView,
    upstreams: Upstreams,
    stopping: trio.Event,
    announce: Callable[[str], None],
    more: Sequence[Route],
    control: Control,
    certificates: TlsContexts,
    replicas: Replicas | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the admin listener until `stopping` is set. Cancelling closes all connections.

    `more`: routes besides those of `Api`. `control`: carries out changes. `certificates`: renews that of this
    listener. `replicas`: of a cluster. `announce` gets the URL; the token is in it when it was made here.
    Raises TransportError when the address cannot be listened on, ConfigError when the certificate cannot be
    used.
    """
    tls = await certificates.open("admin", config.tls) if config.tls is not None else None
    try:
        listeners = await trio.open_tcp_listeners(config.port or 0, host=config.host)
    except OSError as error:
        failure = cannot_listen(config.host, config.port or 0, error)
        raise type(failure)(f"admin: {failure}") from None
    port = listeners[0].socket.getsockname()[1]
    token = config.token or Secret(secrets.token_urlsafe(TOKEN_BYTES))
    access = AccessCheck(config, token, port)
    api = Api(view, upstreams, control, stopping, config.ready, access.key, replicas)
    pages = await trio.to_thread.run_sync(page_routes)
    answer = partial(handle, access, (*api.routes, *more, *pages))
    limits = Limits(max_message_bytes=BODY_BYTES, max_connections=CONNECTIONS)
    serve = partial(serve_http, refuse=_refuse, stopping=stopping, limits=limits, tls=tls)
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, listeners, answer, name=f"admin {config.host}:{port}")
        url = f"{'http' if config.tls is None else 'https'}://{join_address(config.host, port)}/"
        announce(url if config.token is not None else f"{url}?token={token.reveal()}")
        task_status.started()


def _refuse(_status: int, sentence: str, _limit: str) -> tuple[HeaderFields, bytes]:
    return TEXT, f"{sentence}\n".encode()


# The admin listener is for everyone with the token, as `Authorization: Bearer …`, or once in a browser as
# `?token=…`, for which it gets a cookie that no script reads and no other site sends. The cookie is a secret
# of this run, so it ends with the run. A request that changes something needs more than a cookie, which
# browsers send automatically: the token, or the key that the pages ask for. Every request must be for a Host
# of ours, and a web page's must come from a page of ours.

COOKIE = "mcpmux-admin"
KEY_HEADER = "x-mcpmux-key"
FOLLOWED_LINK = ("navigate", "document")  # Sec-Fetch-Mode and -Dest when a person follows a link


Refusal = tuple[int, str, HeaderFields]
"""The answer to a request that is refused, or redirected: status, sentence, header fields."""


class AccessCheck:
    """Decides which requests one admin listener accepts. Immutable."""

    def __init__(self, config: Admin, token: Secret, port: int) -> None:
        """`port`: for the cookie's name, as cookies know no ports."""
        self._policy = OriginPolicy(config.host, config.allowed_hosts, None)
        self._token = token.reveal()
        self._name = f"{COOKIE}-{port}"
        self._pass, self.key = secrets.token_hex(TOKEN_BYTES), secrets.token_hex(TOKEN_BYTES)
        self._secure = "; Secure" if config.tls is not None else ""

    def refusal(self, request: HttpRequest, *, changes: bool) -> Refusal | None:
        """Return the answer to a refused request, or None. `changes`: the request changes something."""
        headers = request.headers
        # First what is refused even with the token: a request from a page of another site.
        origin = headers.get("origin")
        if origin is not None and origin.lower().partition("://")[2] != headers.get("host", "").lower():
            return 403, f"Origin {origin!r} may not connect; only the listener's own pages may", ()
        if (problem := self._policy.refuses(headers.get("host", ""), origin)) is not None:
            return 403, problem, ()
        foreign = headers.get("sec-fetch-site", "none") in ("same-site", "cross-site")
        if foreign and (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) != FOLLOWED_LINK:
            return 403, "a page of another site may not ask this; only the listener's own pages may", ()
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _is_same(shown.strip(), self._token):
            return None
        cookies = (cookie.strip().partition("=") for cookie in headers.get("cookie", "").split(";"))
        has_pass = any(name == self._name and _is_same(value, self._pass) for name, _, value in cookies)
        token = read_query(request.query).get("token") if request.path == "/" else None
        if token is not None and (has_pass or _is_same(token, self._token)):
            # The cookie, and a URL without the token, so that it does not stay in the address bar.
            cookie = f"{self._name}={self._pass}; Path=/; HttpOnly; SameSite=Strict{self._secure}"
            return 303, "", (("Location", "/"), ("Set-Cookie", cookie))
        if not has_pass:
            return 401, UNKNOWN, (("WWW-Authenticate", 'Bearer realm="mcpmux admin"'),)
        if changes and not _is_same(headers.get(KEY_HEADER, ""), self.key):
            return 403, NOT_DELIBERATE, ()
        return None


def _is_same(shown: str, secret: str) -> bool:
    return hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), secret.encode())


# The inspector's files: read once, served with an entity tag each.

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
ETAG_BYTES = 12


def page_routes() -> list[Route]:
    """Return a route for every file of the inspector; `/` is the page itself."""
    routes = []
    folder = resources.files("mcpmux.traffic").joinpath("inspector")
    for place, files in (("/", folder.iterdir()), ("/vendor/", folder.joinpath("vendor").iterdir())):
        for file in files:
            content_type = _TYPES.get(file.name.rpartition(".")[2])
            if content_type is not None:
                path = "/" if file.name == "index.html" else f"{place}{file.name}"
                routes.append(Route(path, partial(_send_page, content_type, file.read_bytes())))
    return routes


async def _send_page(content_type: str, body: bytes, http: HttpExchange) -> None:
    etag = f'"{hashlib.sha256(body).hexdigest()[: 2 * ETAG_BYTES]}"'
    fields = (("ETag", etag), ("Cache-Control", "no-cache"), *SECURITY)
    if http.request.headers.get("if-none-match") == etag:
        await http.reply.send(304, fields)
    else:
        await http.reply.send(200, (("Content-Type", content_type), *fields), body)
