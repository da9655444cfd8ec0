"""Log a person in at the authorization server of one upstream: the authorization code grant with PKCE.

An answer counts only with our `state` and, where the server sends one, its own `iss`. The browser returns
to a page on this machine only, which never shows what was received.

Source: RFC 6749, section 4.1; RFC 7591, sections 2 and 3; RFC 7636; RFC 8252, section 7.3; RFC 9207, section
2.4; "Client Registration", "Authorization Flow Steps" and "Authorization Response Validation", 2026-07-28.
"""

from __future__ import annotations

import hmac
import html
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import trio
from oauthlib.common import add_params_to_uri
from oauthlib.oauth2 import WebApplicationClient

from mcpmux.auth.bearer import Challenge, read_challenge
from mcpmux.auth.credential import Clock
from mcpmux.auth.discovery import ACCEPT, AuthorizationServer, DiscoveredServer, OAuthHttp, discover
from mcpmux.auth.token_store import Login, LoginFile, OAuthClient, StoreTrouble
from mcpmux.auth.upstream_auth import SHOWN_CHARACTERS, Denied, configured_client, request_tokens
from mcpmux.config import Limits
from mcpmux.config.auth import OAuth
from mcpmux.errors import RemoteProtocolError, TransportError
from mcpmux.printable import printable
from mcpmux.protocol.envelope import UNREADABLE
from mcpmux.transports.byte_stream import reason_of
from mcpmux.transports.http.message import HeaderFields, HttpRequest
from mcpmux.transports.http.reply import HttpReply
from mcpmux.transports.http.server import serve_http

STATE_BYTES = 32
VERIFIER_CHARACTERS = 64  # 43 to 128 by RFC 7636, section 4.1
OFFLINE = "offline_access"
PROBE = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'  # any request will do: it goes without a token
PROBE_FIELDS = (("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream"))

HOST = "127.0.0.1"
PATH = "/callback"
CONNECTIONS = 16
MOST_MEMBERS = 32  # of an answer

PAGE: HeaderFields = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "default-src 'none'"),
    ("Referrer-Policy", "no-referrer"),
)

Show = Callable[[str], Awaitable[None]]
"""Has a person open a URL."""


async def log_in(
    http: OAuthHttp, file: LoginFile, clock: Clock, show: Show, more: Sequence[str] = (), seconds: float = 300
) -> Login:
    """Log in at an upstream and keep the login in its `file`.

    `more`: other scopes to ask for; `seconds`: for a person. Raises McpmuxError.
    """
    config = http.config
    discovered = await discover(http, Challenge() if http.is_provider else await _challenge_of(http))
    server, endpoint = discovered.server, discovered.server.check_login()
    try:
        kept = await trio.to_thread.run_sync(file.load)
    except StoreTrouble:
        kept = None  # a new one will replace it
    scopes = _choose_scopes(discovered, config, kept, more)
    # The port of the kept registration comes first: the server may know no other redirect URI.
    known_uri = kept.client.redirect_uri if kept is not None else None
    ports = [config.redirect_port] if config.redirect_port else [urlsplit(known_uri or "").port or 0, 0]
    async with await _listen(ports) as listener:
        redirect_uri = f"http://{HOST}:{listener.socket.getsockname()[1]}{PATH}"
        client = _known_client(config, server, redirect_uri, kept)
        client = client or await _register(http, server, redirect_uri, scopes)
        pkce = WebApplicationClient(client.id)
        verifier: str = pkce.create_code_verifier(VERIFIER_CHARACTERS)
        query = {
            "response_type": "code",
            "client_id": client.id,
            "redirect_uri": redirect_uri,
            "state": secrets.token_urlsafe(STATE_BYTES),
            "code_challenge": pkce.create_code_challenge(verifier, "S256"),
            "code_challenge_method": "S256",
            "resource": discovered.resource,
            "scope": " ".join(scopes),
        }
        http.origin_of(endpoint)  # checks the URL before the browser is sent there
        url = add_params_to_uri(endpoint, [(key, value) for key, value in query.items() if value])
        answer = await _wait_for_browser(listener, redirect_uri, query["state"], partial(show, url), seconds)
    if answer is None:
        raise TransportError(f"nobody came back from the browser within {seconds:g} s")
    form = {
        "grant_type": "authorization_code",
        "code": read_code(answer, server),
        "redirect_uri": redirect_uri,
        "code_verifier": verifier,
        "resource": discovered.resource,
    }
    tokens = await request_tokens(http, server, client, form, scopes, clock())
    login = Login(file.upstream, file.url, server.issuer, discovered.resource, client, tokens)
    await trio.to_thread.run_sync(file.save, login)
    return login


async def _challenge_of(http: OAuthHttp) -> Challenge:
    """Return an upstream's challenge to a request without a token."""
    probe = await http.ask(http.url, PROBE_FIELDS, PROBE)
    return read_challenge(probe.headers.get("www-authenticate", "") if probe.status == 401 else "")


def _choose_scopes(
    found: DiscoveredServer, config: OAuth, kept: Login | None, more: Sequence[str]
) -> tuple[str, ...]:
    names = [*(config.scopes or found.scopes), *more]
    if kept is not None and kept.issuer == found.server.issuer:
        names += kept.wanted  # what a request was refused for lack of, "Step-Up Authorization Flow"
    # Without this scope some servers give no refresh token.
    if OFFLINE in (found.server.scopes_supported or ()):
        names.append(OFFLINE)
    return tuple(dict.fromkeys(names))


def read_code(answer: dict[str, str], server: AuthorizationServer) -> str:
    """Return the code in an answer with the right `state` and issuer. Raises Denied, RemoteProtocolError."""
    # The issuer comes first, before even an error is believed: this prevents mix-up attacks (RFC 9207).
    issuer = answer.get("iss")
    if issuer is None and server.authorization_response_iss_parameter_supported:
        raise RemoteProtocolError(f"the answer does not say that it is of {server.issuer}: it is not used")
    if issuer is not None and issuer != server.issuer:
        raise RemoteProtocolError(f"the answer is not of {server.issuer}: it is not used")
    if "error" in answer:
        raise Denied(server.issuer, answer["error"], answer.get("error_description", ""))
    if not answer.get("code"):
        raise RemoteProtocolError(f"{server.issuer} sent no code")
    return answer["code"]


async def _listen(ports: Sequence[int]) -> trio.SocketListener:
    """Listen on the first available of these loopback ports, 0 for any. Raises TransportError."""
    for port in ports:
        try:
            return (await trio.open_tcp_listeners(port, host=HOST))[0]
        except OSError as error:
            reason = reason_of(error)
    raise TransportError(f"cannot listen on {HOST}:{port} for the browser to come back: {reason}")


async def _wait_for_browser(
    listener: trio.SocketListener, url: str, state: str, show: Callable[[], Awaitable[None]], seconds: float
) -> dict[str, str] | None:
    """Return the query that the browser brings to `url` with our `state`; None after `seconds`."""
    answer: dict[str, str] = {}
    came = trio.Event()

    async def handle(request: HttpRequest, reply: HttpReply) -> None:
        members = _members(request.query)
        status, text = 200, "mcpmux has its answer. You can close this page and go back to the terminal."
        # The Host header is part of the comparison: a page of another name must not reach this one.
        if (request.method, f"http://{request.headers.get('host')}{request.path}") != ("GET", url):
            status, text = 404, "There is nothing here."
        elif not hmac.compare_digest(members.get("state", "").encode(), state.encode()):
            status, text = 400, "This does not belong to the login that mcpmux waits for."
        await reply.send(status, *_page(status, text))
        if status == 200 and not answer:  # the same page may be loaded again
            answer.update(members)
            came.set()

    async with trio.open_nursery() as nursery:
        limits = Limits(max_connections=CONNECTIONS, max_message_bytes=1024)
        serve = partial(serve_http, refuse=_page, stopping=trio.Event(), limits=limits)
        await nursery.start(serve, [listener], handle, name="login callback")
        await show()
        with trio.move_on_after(seconds):
            await came.wait()
        nursery.cancel_scope.cancel(reason="the login is over")
    return answer or None


def _members(query: str) -> dict[str, str]:
    """Return each member; {} when one is repeated or there are too many (RFC 6749, section 3.1)."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=MOST_MEMBERS, errors="strict")
    except ValueError:
        return {}
    unique = dict(pairs)
    return unique if len(unique) == len(pairs) else {}


def _page(_status: int, text: str, _limit: str = "") -> tuple[HeaderFields, bytes]:
    return PAGE, f"<!doctype html><title>mcpmux</title><p>{html.escape(text)}</p>".encode()


# mcpmux as a client of the server: configured, known by its own URL, or registered now, in the order of
# "Client Registration".


def _known_client(
    config: OAuth, server: AuthorizationServer, redirect_uri: str, kept: Login | None
) -> OAuthClient | None:
    """Return the client that mcpmux already is at the server; None when it has to register."""
    if config.client_id is not None:
        return configured_client(config, server)
    if config.client_metadata_url is not None and server.client_id_metadata_document_supported:
        return OAuthClient(config.client_metadata_url)
    if kept is not None and kept.issuer == server.issuer and kept.client.redirect_uri == redirect_uri:
        return kept.client
    return None


class _Registered(msgspec.Struct):
    client_id: str = ""
    client_secret: str | None = None
    token_endpoint_auth_method: str | None = None
    error: Any = ""
    error_description: Any = ""


async def _register(
    http: OAuthHttp, server: AuthorizationServer, redirect_uri: str, scopes: tuple[str, ...]
) -> OAuthClient:
    """Register with the authorization server. Raises RemoteProtocolError, which names the alternative."""
    if server.registration_endpoint is None:
        raise RemoteProtocolError(
            f"{server.issuer} registers no clients by itself: register mcpmux there, "
            "and set `oauth.client_id` of the upstream"
        )
    method = server.choose_method("none", "client_secret_basic", "client_secret_post")
    wish: dict[str, Any] = {
        "client_name": "mcpmux",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        "application_type": "native",
    }
    if scopes:
        wish["scope"] = " ".join(scopes)
    fields = (*ACCEPT, ("Content-Type", "application/json"))
    answer = await http.ask(server.registration_endpoint, fields, msgspec.json.encode(wish))
    try:
        made = msgspec.json.decode(answer.body, type=_Registered)
    except UNREADABLE:
        made = _Registered(error="it names no client")
    if answer.status not in (200, 201) or not made.client_id:
        words = f"{made.error} {made.error_description}".strip()[:SHOWN_CHARACTERS]
        raise RemoteProtocolError(
            f"{server.issuer} does not register mcpmux (status {answer.status}): {printable(words)}"
        )
    # The server may choose another method than the one asked for.
    method = made.token_endpoint_auth_method or method
    return OAuthClient(made.client_id, made.client_secret, method, redirect_uri)
