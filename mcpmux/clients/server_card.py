"""The server card of an HTTP endpoint: public facts for clients that have not connected yet.

It contains the name and version of mcpmux, the URL, the revisions, and whether a token is needed, but no
upstreams, views or principals. Reading it needs no credentials; pages of any origin may read it.

Source: "MCP Server Cards" and "Hosted Server Card Location", docs/discovery.md of
experimental-ext-server-card, 2026-07-24 (SEP-2127).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from mcpmux import __version__
from mcpmux.clients.http_answer import refuse_with
from mcpmux.config import Config, HttpListener
from mcpmux.config.listener import CARD, HOST_PATTERN
from mcpmux.protocol.revisions import SUPPORTED
from mcpmux.transports.http.message import HttpRequest
from mcpmux.transports.http.reply import HttpReply

SCHEMA: Final = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
NAMESPACE: Final = "dev.mcpmux"  # for names without a namespace
MOST_CHARACTERS: Final = 100  # of a title; a name may have twice as many

_NAME = "(?=.{1,200}$)[A-Za-z0-9.-]+/[A-Za-z0-9._-]+"  # such as com.example/weather

_CORS = (
    ("Access-Control-Allow-Origin", "*"),
    ("Access-Control-Allow-Methods", "GET"),
    ("Access-Control-Allow-Headers", "Content-Type, If-None-Match"),
    ("Access-Control-Expose-Headers", "ETag"),
)
_HEADERS = (
    ("Content-Type", "application/mcp-server-card+json"),
    ("Cache-Control", "public, max-age=3600"),
    *_CORS,
)


class ServerCard:
    """The card of one listener. `config` returns the current configuration. `path`: of the card."""

    def __init__(self, listener: HttpListener, config: Callable[[], Config]) -> None:
        self.path = f"{listener.path.rstrip('/')}/{CARD}"
        self._listener = listener
        self._config = config

    def answer(self, request: HttpRequest, reply: HttpReply) -> Awaitable[None]:
        """Answer a request for the card. The caller has checked its Host."""
        if request.method == "OPTIONS":
            return reply.send(204, _CORS)
        if request.method not in ("GET", "HEAD"):
            return refuse_with(reply, 405, "Method not allowed", (("Allow", "GET, HEAD, OPTIONS"),))
        config, host = self._config(), request.headers.get("host", "")
        url = config.auth.resource
        if not url and re.fullmatch(HOST_PATTERN, host):  # the name by which the client has reached it
            scheme = "http" if self._listener.tls is None else "https"
            url = f"{scheme}://{host}{self._listener.path}"
        document = msgspec.json.encode(make_card(config, url))
        tag = f'"{hashlib.sha256(document).hexdigest()[:32]}"'
        headers = (*_HEADERS, ("ETag", tag))
        if tag in request.headers.get("if-none-match", ""):
            return reply.send(304, headers)
        return reply.send(200, headers, document)


def make_card(config: Config, url: str | None) -> dict[str, Any]:
    """Return the card of an endpoint at `url`; without a remote when that is None."""
    identity, auth = config.identity, config.auth
    name = identity.name
    if not re.fullmatch(_NAME, name):
        name = f"{NAMESPACE}/{re.sub('[^A-Za-z0-9._-]+', '-', name)[:MOST_CHARACTERS]}"
    card: dict[str, Any] = {
        "$schema": SCHEMA,
        "name": name,
        "version": __version__,
        "description": "MCP servers behind one endpoint",
    }
    if identity.title:
        card["title"] = identity.title[:MOST_CHARACTERS]
    if url is None:
        return card
    remote: dict[str, Any] = {
        "type": "streamable-http",
        "url": url,
        "supportedProtocolVersions": list(SUPPORTED),
    }
    if auth.asks_tokens and not auth.issuers:  # with issuers, the answer to a request says where tokens are
        token = {"description": "Token of a client", "isRequired": True, "isSecret": True}
        header = {"name": "Authorization", "value": "Bearer {token}", "variables": {"token": token}}
        remote["headers"] = [{**header, "isRequired": not auth.certificates, "isSecret": True}]
    return {**card, "remotes": [remote]}
