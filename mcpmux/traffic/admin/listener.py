"""The admin listener: the inspector's page and what it asks for, for people who have the token.

Promises: it is an HTTP listener of its own, so no client's request reaches it and none of its pages a client;
nobody gets anything without the token but whether mcpmux lives and is ready; a page of it loads nothing from
anywhere else. Refuses to know how the traffic comes into the ring.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import structlog
import trio

from mcpmux.config.expansion import Secret
from mcpmux.config.listener import Admin
from mcpmux.errors import TransportError
from mcpmux.protocol.origin import OriginPolicy
from mcpmux.traffic.admin.actions import Actions
from mcpmux.traffic.admin.api import Api, Upstreams
from mcpmux.traffic.admin.control import Control
from mcpmux.traffic.admin.door import Door, Entry
from mcpmux.traffic.admin.pages import Page, load_pages
from mcpmux.traffic.admin.route import BadQuestion, Route, Routes, Visit, read_query
from mcpmux.traffic.live.view import LiveView, encode
from mcpmux.transports.http.message import Fields, HttpLimits
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.http.server import serve_http
from mcpmux.transports.http.server_request import HttpRequest
from mcpmux.transports.stream import cannot_listen
from mcpmux.transports.tls.context import TlsContexts

CONNECTIONS = 64  # people, and whoever collects metrics
BODY_BYTES = 64 * 2**10  # of a request
TOKEN_BYTES = 32

SECURITY: Fields = (
    (
        "Content-Security-Policy",
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
NO_STORE = ("Cache-Control", "no-store")
TEXT: Fields = (("Content-Type", "text/plain; charset=utf-8"), NO_STORE)
JSON: Fields = (("Content-Type", "application/json"), NO_STORE)
HEALTH = "/health/"

log = structlog.get_logger()


class AdminEndpoint:
    """Handles the requests of one admin listener."""

    def __init__(self, door: Door, routes: Iterable[Route], pages: dict[str, Page]) -> None:
        self._door = door
        self._routes = Routes(routes)
        self._pages = pages

    def __repr__(self) -> str:
        return f"<AdminEndpoint {self._door!r} {self._routes!r}>"

    async def handle(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request."""
        found = self._routes.find(request.path)
        route = next((each for each in found if each[0].method == _method(request)), None)
        if route is None or not route[0].open:
            problem = self._door.refuses(request.headers)
            if problem is not None:
                await self._say(reply, 403, problem)
                return
            entry = self._door.judge(request.path, request.query, request.headers)
            if entry is Entry.UNKNOWN:
                await self._say(reply, 401, UNKNOWN, (("WWW-Authenticate", 'Bearer realm="mcpmux admin"'),))
                return
            if entry is Entry.WELCOME:
                fields = (("Location", "/"), ("Set-Cookie", self._door.cookie), *TEXT, *SECURITY)
                await reply.send(303, fields)
                return
            if route is not None and route[0].method != "GET" and not self._door.is_meant(request.headers):
                await self._say(reply, 403, NOT_MEANT)
                return
        await self._answer(request, reply, route, bool(found))

    async def _answer(
        self, request: HttpRequest, reply: HttpReply, route: tuple[Route, dict[str, str]] | None, known: bool
    ) -> None:
        page = self._pages.get(request.path)
        if route is not None:
            try:
                await route[0].handle(Visit(request, reply, route[1], read_query(request.query)))
            except BadQuestion as problem:
                await reply.send(400, (*JSON, *SECURITY), encode({"error": str(problem)}))
        elif page is not None and _method(request) == "GET":
            await self._send_page(request, reply, page)
        elif known or page is not None:
            allowed = "GET, HEAD" if page is not None else self._routes.allowed(request.path)
            await self._say(reply, 405, f"{request.method} is not for {request.path}", (("Allow", allowed),))
        else:
            await self._say(reply, 404, "there is nothing here")

    async def _send_page(self, request: HttpRequest, reply: HttpReply, page: Page) -> None:
        fields = (("ETag", page.etag), ("Cache-Control", "no-cache"), *SECURITY)
        if request.headers.get("if-none-match") == page.etag:
            await reply.send(304, fields)
        else:
            await reply.send(200, (("Content-Type", page.content_type), *fields), page.body)

    async def _say(self, reply: HttpReply, status: int, sentence: str, fields: Fields = ()) -> None:
        await reply.send(
            status, (*TEXT, *fields, *SECURITY), f"{sentence[:1].upper()}{sentence[1:]}.\n".encode()
        )


UNKNOWN = (
    "this needs the admin token: open the URL that mcpmux printed when it started, "
    "or send `Authorization: Bearer TOKEN`"
)


NOT_MEANT = (
    "this changes something, so it needs `Authorization: Bearer TOKEN`, or the key of /api/control "
    "in X-Mcpmux-Key"
)


def _method(request: HttpRequest) -> str:
    return "GET" if request.method == "HEAD" else request.method


async def serve_admin(
    config: Admin,
    view: LiveView,
    upstreams: Upstreams,
    stopping: trio.Event,
    announce: Callable[[str], None],
    more: Sequence[Route] = (),
    control: Control | None = None,
    certificates: TlsContexts | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the admin listener until `stopping` is set.

    `more`: routes besides those of the inspector. `control`: what changes things from here; None for nothing.
    `certificates`: renews that of this listener.

    `announce` gets the URL; the token is in it when it was made here. Raises TransportError when the address
    cannot be listened on, ConfigError when the certificate cannot be used. Cancelling closes all connections.
    """
    tls = None
    if config.tls is not None:
        tls = await (certificates or TlsContexts()).open("admin", config.tls)
    try:
        listeners = await trio.open_tcp_listeners(config.port or 0, host=config.host)
    except OSError as error:
        raise TransportError(f"admin: {cannot_listen(config.host, config.port or 0, error)}") from None
    port = listeners[0].socket.getsockname()[1]
    token = config.token or Secret(secrets.token_urlsafe(TOKEN_BYTES))
    policy = OriginPolicy(config.host, config.allowed_hosts, None)
    door = Door(policy, token, secrets.token_bytes(TOKEN_BYTES), port, https=tls is not None)
    api = Api(view, upstreams, stopping, (*JSON, *SECURITY), config.ready)
    actions = Actions(control, door.key, (*JSON, *SECURITY)).routes if control is not None else ()
    endpoint = AdminEndpoint(door, (*api.routes, *actions, *more), await trio.to_thread.run_sync(load_pages))
    limits = HttpLimits(body_bytes=BODY_BYTES, connections=CONNECTIONS)
    serve = partial(serve_http, refuse=_refuse, stopping=stopping, limits=limits, tls=tls)
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, listeners, endpoint.handle, name=f"admin {config.host}:{port}")
        announce(_url(config, port, token))
        task_status.started()


def _url(config: Admin, port: int, token: Secret) -> str:
    """Where the inspector is. A token of the user's own is not shown."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    url = f"{'http' if config.tls is None else 'https'}://{host}:{port}/"
    return url if config.token is not None else f"{url}?token={token.reveal()}"


def _refuse(_status: int, sentence: str) -> tuple[Fields, bytes]:
    return (*TEXT, *SECURITY), f"{sentence}\n".encode()
