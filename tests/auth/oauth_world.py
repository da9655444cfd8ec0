"""An authorization server and an upstream that asks for its tokens, on one real socket, both scripted.

The real ones are in tests/real; here every answer can be wrong.
"""

from __future__ import annotations

import base64
import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import trio

from mcpmux import app
from mcpmux.auth.authorization_code import log_in
from mcpmux.auth.credential import Credential
from mcpmux.auth.discovery import OAuthHttp
from mcpmux.auth.token_store import Login, LoginFile
from mcpmux.auth.upstream_auth import make_credential
from mcpmux.config import Config, Http, OAuth, Secret, Upstream, WebSocket
from tests.peers.http_server import open_http
from tests.peers.web import JSON, Web, initialize

NOW = 1_800_000_000.0
Json = dict[str, Any]


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class World(Web):
    """`metadata`, `resource`: changes of the documents; None takes one away. `answer_token`: what the token
    endpoint answers, (status, body), None for a token. `lifetime`: of tokens, None for unsaid.
    """

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(play)
        self.url = f"{url}/mcp"
        self.issuer = url
        self.file = LoginFile(folder, "web", self.url)
        self.clock = Clock()
        self.metadata: Json | None = {}
        self.resource: Json | None = {}
        self.lifetime: int | None = 3600
        self.rotates = True
        self.answer_token: Callable[[Json], tuple[int, bytes] | None] = lambda form: None
        self.before_token: Callable[[], Any] | None = None
        self.answer_browser: Callable[[Json], Json] = lambda said: said
        self.good: dict[str, str] = {}  # access token → its scopes
        self.refresh: dict[str, str] = {}
        self.forms: list[Json] = []
        self.asked: list[Json] = []  # of /authorize
        self.registered: list[Json] = []
        self.codes: dict[str, Json] = {}
        self.shown: list[str] = []  # Authorization headers at /mcp
        self.paths: list[str] = []
        self.needs = ""  # scope for /mcp
        self.challenges = True
        self.moves = False  # documents are elsewhere
        self.made = 0

    async def handle(self, request: Any, reply: Any) -> None:
        self.paths.append(request.path)
        if request.path == "/mcp":
            await self._guarded(request, reply)
        elif request.path == "/token":
            if self.before_token is not None:
                await self.before_token()
            await self._give_token(request, reply)
        elif request.path == "/authorize":
            await self._authorize(request, reply)
        elif request.path == "/register":
            self.registered.append(json.loads(request.body))
            client = {"client_id": f"client-{len(self.registered)}", **self.registered[-1]}
            await reply.send(201, JSON, json.dumps(client).encode())
        elif self.moves and not request.path.startswith("/moved"):
            await reply.send(302, (("Location", f"/moved{request.path}"),))
        else:
            document = self._document(request.path.removeprefix("/moved"))
            await reply.send(404 if document is None else 200, JSON, json.dumps(document).encode())

    def _document(self, path: str) -> Json | None:
        if path == "/.well-known/oauth-protected-resource/mcp" and self.resource is not None:
            return {
                "resource": self.url,
                "authorization_servers": [self.issuer],
                "scopes_supported": ["read"],
                **self.resource,
            }
        if path == "/.well-known/oauth-authorization-server" and self.metadata is not None:
            start = self.url.removesuffix("/mcp")
            return {
                "issuer": start,
                "authorization_endpoint": f"{start}/authorize",
                "token_endpoint": f"{start}/token",
                "registration_endpoint": f"{start}/register",
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
                "authorization_response_iss_parameter_supported": True,
                **self.metadata,
            }
        return None

    async def _guarded(self, request: Any, reply: Any) -> None:
        shown = request.headers.get("authorization", "")
        self.shown.append(shown)
        scope = self.good.get(shown.removeprefix("Bearer "))
        place = f'resource_metadata="{self.issuer}/.well-known/oauth-protected-resource/mcp"'
        if scope is None:
            challenge = f"Bearer {place}" if self.challenges else "Bearer"
            await reply.send(401, (("WWW-Authenticate", challenge),), b"who are you?")
        elif self.needs and self.needs not in scope.split():
            challenge = f'Bearer error="insufficient_scope", scope="{self.needs}", {place}'
            await reply.send(403, (("WWW-Authenticate", challenge),))
        else:
            await super().handle(request, reply)

    async def _authorize(self, request: Any, reply: Any) -> None:
        query = {key: values[0] for key, values in parse_qs(request.query).items()}
        self.asked.append(query)
        code = f"code-{len(self.asked)}"
        self.codes[code] = query
        answer = self.answer_browser({"code": code, "state": query["state"], "iss": self.issuer})
        answer = {key: value for key, value in answer.items() if value is not None}
        await reply.send(302, (("Location", f"{query['redirect_uri']}?{urlencode(answer)}"),))

    async def _give_token(self, request: Any, reply: Any) -> None:
        form = {key: values[0] for key, values in parse_qs(request.body.decode()).items()}
        if "authorization" in request.headers:
            form["basic"] = base64.b64decode(request.headers["authorization"].removeprefix("Basic ")).decode()
        self.forms.append(form)
        answer = self.answer_token(form) or self._token_for(form)
        await reply.send(answer[0], JSON, answer[1])

    def _token_for(self, form: Json) -> tuple[int, bytes]:
        scope = form.get("scope", "read")
        if form["grant_type"] == "authorization_code":
            query = self.codes.pop(form["code"])
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == query["code_challenge"]
            assert form["redirect_uri"] == query["redirect_uri"]
            scope = query.get("scope", "")
        elif form["grant_type"] == "refresh_token":
            if form["refresh_token"] not in self.refresh:
                return 400, b'{"error": "invalid_grant", "error_description": "gone"}'
            scope = self.refresh[form["refresh_token"]]
            if self.rotates:
                del self.refresh[form["refresh_token"]]
        assert form["resource"] == self.url
        self.made += 1
        access, refresh = f"SECRET-access-{self.made}", f"SECRET-refresh-{self.made}"
        self.good = {access: scope}
        answer = {"access_token": access, "token_type": "Bearer", "scope": scope}
        if self.lifetime is not None:
            answer["expires_in"] = self.lifetime
        if form["grant_type"] != "client_credentials" and (self.rotates or not self.refresh):
            self.refresh[refresh] = scope
            answer["refresh_token"] = refresh
        return 200, json.dumps(answer).encode()

    def target(self, **oauth: Any) -> Http:
        return Http(self.url, oauth=OAuth(**oauth))

    def own_target(self, **more: Any) -> Http:
        """Return the target with client credentials."""
        pair = {"client_id": "me", "client_secret": Secret("SECRET-client"), "issuer": self.issuer}
        return self.target(**({"grant": "client_credentials"} | pair | more))

    def credential(self, target: Http | WebSocket) -> Credential:
        return make_credential("web", target, self.file.folder, self.clock)

    async def log_in(
        self,
        target: Http,
        *more: str,
        show: Callable[[str], Awaitable[None]] | None = None,
        seconds: float = 5,
    ) -> Login:
        return await log_in(OAuthHttp(target), self.file, self.clock, show or browse, more, seconds)

    @property
    def grants(self) -> list[str]:
        return [form["grant_type"] for form in self.forms]


async def play(web: Web, request: Any, message: Json, reply: Any) -> None:
    if not await initialize(web, request, message, reply) and message.get("method") == "resources/read":
        await web.answer(reply, message, {"contents": []})


async def browse(url: str) -> None:
    """Visit a URL as a person's browser does: redirects are followed, and errors are pages, too."""

    def visit() -> None:
        try:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10).close()
        except urllib.error.HTTPError as error:
            error.close()

    await trio.to_thread.run_sync(visit, abandon_on_cancel=True)


def query_of(url: str) -> Json:
    return {key: values[0] for key, values in parse_qs(urlsplit(url).query).items()}


@asynccontextmanager
async def open_world(folder: Path) -> AsyncIterator[World]:
    async with open_http(lambda request, reply: world.handle(request, reply)) as port:
        world = World(f"http://127.0.0.1:{port}", folder / "mcpmux" / "logins")
        with trio.fail_after(20):
            yield world


@asynccontextmanager
async def open_mux(target: Http) -> AsyncIterator[app.Mux]:
    """Open mcpmux with the target as its only, unprefixed upstream."""
    async with app.open_mux(Config(upstreams=(Upstream(name="web", target=target, prefix=""),))) as mux:
        yield mux
