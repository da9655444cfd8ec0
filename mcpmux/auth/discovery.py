"""Whom to ask for an upstream's tokens: resource metadata, then the authorization server's own; and what
mcpmux says of itself as a resource.

An authorization server that the configuration names is the only one that is asked. One that the upstream
names must be one that may be asked (`AddressPolicy`). The metadata of either must be its own.

Source: RFC 8414, sections 2, 3.1 and 3.3; OpenID Connect Discovery 1.0, section 4; RFC 9207, section 3; RFC
9728, sections 2, 3.1 and 3.3; "Authorization Server Discovery", 2025-11-25 and 2026-07-28; "Server Metadata
Discovery" and "Fallbacks for Servers without Metadata Discovery", 2025-03-26: a server is its own
authorization server.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import structlog

from mcpmux.auth.bearer import Challenge, read_scopes
from mcpmux.auth.http import OAuthHttp
from mcpmux.config.auth import Auth, OAuth
from mcpmux.errors import RemoteProtocolError, TransportError
from mcpmux.protocol.envelope import UNREADABLE
from mcpmux.transports.http.route import HttpOrigin

MOST_SERVERS = 16  # authorization servers of one upstream

_OAUTH = "/.well-known/oauth-authorization-server"
_OPENID = "/.well-known/openid-configuration"
_RESOURCE = "/.well-known/oauth-protected-resource"

log = structlog.get_logger()


class AuthorizationServer(msgspec.Struct, frozen=True):
    """What it says about itself. What it does not say is None."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    code_challenge_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None
    scopes_supported: tuple[str, ...] | None = None
    authorization_response_iss_parameter_supported: bool = False
    client_id_metadata_document_supported: bool = False

    def choose_method(self, *methods: str) -> str:
        """How to authenticate at its token endpoint: the first that it takes, else the first.

        By RFC 8414 it takes Basic when it does not say.
        """
        taken = self.token_endpoint_auth_methods_supported or ("client_secret_basic",)
        return next((method for method in methods if method in taken), methods[0])

    def check_login(self) -> str:
        """The authorization endpoint. Raises RemoteProtocolError when nobody can log in there safely."""
        problem = "has no authorization endpoint: nobody can log in there"
        if self.authorization_endpoint is not None:
            if "S256" in (self.code_challenge_methods_supported or ()):
                return self.authorization_endpoint
            problem = "does not say that it supports PKCE with S256: codes could be stolen"
        raise RemoteProtocolError(f"{self.issuer} {problem}")


def server_urls(issuer: str) -> tuple[str, ...]:
    """Where the metadata of an authorization server may be, in the order to try. Raises ValueError."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    if not path:
        return origin + _OAUTH, origin + _OPENID
    return origin + _OAUTH + path, origin + _OPENID + path, origin + path + _OPENID


def is_same_issuer(one: str, other: str) -> bool:
    """Whether two identifiers are the same, letter by letter.

    One slash behind a bare host is let pass: libraries that parse URLs add it (RFC 3986, section 6.2.3).
    """
    bare, spelled = sorted((one, other), key=len)
    return one == other or (spelled == f"{bare}/" and "/" not in bare.partition("://")[2])


_Servers = Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=MOST_SERVERS)]


class ProtectedResource(msgspec.Struct):
    """What tokens are to be made for, by whom, and with which scopes, as an upstream says."""

    identifier: str = msgspec.field(name="resource")
    issuers: _Servers = msgspec.field(name="authorization_servers")
    scopes: tuple[str, ...] = msgspec.field(default=(), name="scopes_supported")


def read_resource(data: bytes, url: str) -> ProtectedResource:
    """The metadata of the upstream at `url`. Raises RemoteProtocolError when it is not about that."""
    problem = "is that of another resource"
    try:
        resource = msgspec.json.decode(data, type=ProtectedResource)
        resource.scopes = read_scopes(" ".join(resource.scopes))
        if _covers(resource.identifier, url):
            return resource
    except UNREADABLE:
        problem = "has no `resource` or no `authorization_servers`"
    raise RemoteProtocolError(f"its resource metadata {problem}")


def _covers(resource: str, url: str) -> bool:
    """Whether a server that calls itself `resource` may stand at `url`: there or above it, nowhere else."""
    try:
        if HttpOrigin.from_url(as_http(resource)) != HttpOrigin.from_url(as_http(url)):
            return False
        above, path = urlsplit(resource).path.rstrip("/"), urlsplit(url).path.rstrip("/")
    except ValueError:
        return False
    return path == above or path.startswith(f"{above}/")


def as_http(url: str) -> str:
    """A WebSocket URL as the one of the HTTP server that it is at."""
    return f"http{url[2:]}" if url.startswith(("ws:", "wss:")) else url


class OwnMetadata:
    """What clients of mcpmux are told about whom to ask for tokens."""

    def __init__(self, config: Auth, name: str) -> None:
        """`name`: of mcpmux for people. The configuration has issuers."""
        assert config.resource is not None
        parts = urlsplit(config.resource)
        self.path = parts.path.rstrip("/")
        self.metadata_url = f"{parts.scheme}://{parts.netloc}{_RESOURCE}{self.path}"
        document: dict[str, Any] = {
            "resource": config.resource,
            "authorization_servers": [issuer.issuer for issuer in config.issuers.values()],
            "bearer_methods_supported": ["header"],
            "resource_name": name,
        }
        if config.required_scopes:
            document["scopes_supported"] = sorted(config.required_scopes)
        self.document = msgspec.json.encode(document)

    def is_metadata(self, path: str, endpoint: str) -> bool:
        """Whether a request's path asks for the metadata of the endpoint at `endpoint` of a listener."""
        below = path.removeprefix(_RESOURCE).rstrip("/")
        return path.startswith(_RESOURCE) and below in ("", self.path, endpoint.rstrip("/"))


class NoMetadata(RemoteProtocolError):
    """An issuer says nothing about itself: all places of its metadata answer 404."""


class IssuerChanged(TransportError):
    """The upstream names another authorization server than the one that is known."""


class Found(NamedTuple):
    """Who gives tokens for which resource, and the scopes that are needed at least, if it is known."""

    server: AuthorizationServer
    resource: str
    scopes: tuple[str, ...]


class Discovery(msgspec.Struct, frozen=True):
    """Of the authorization server of the upstream at `url`. `http`: how both are asked."""

    url: str
    config: OAuth
    http: OAuthHttp

    async def find(self, challenge: Challenge, known: str | None = None) -> Found:
        """All that is needed to ask for tokens. `known`: the issuer of an earlier login, which must hold.

        Raises IssuerChanged and other TransportErrors, RemoteProtocolError.
        """
        root, path = self.http.own.url, urlsplit(self.url).path
        resource = await self._find_resource(challenge, root, path.rstrip("/"))
        wanted = known or self.config.issuer
        if resource is None:
            # The resource identifier (RFC 8707, section 2): no query, no lone slash.
            identifier = root if path == "/" else root + path
            return Found(await self._find_own_server(root, wanted), identifier, challenge.scopes)
        if wanted is not None and not any(is_same_issuer(wanted, issuer) for issuer in resource.issuers):
            shown = repr(resource.issuers[0][:200])
            raise IssuerChanged(f"its authorization server is {shown} now, and not {wanted} any more")
        server = await self.find_server(wanted or resource.issuers[0])
        return Found(server, resource.identifier, challenge.scopes or resource.scopes)

    async def _find_own_server(self, root: str, wanted: str | None) -> AuthorizationServer:
        """One without resource metadata is of 2025-03-26, and may have only the paths that this demands."""
        try:
            return await self.find_server(wanted or root)
        except NoMetadata:
            if wanted not in (None, root):
                raise
        return AuthorizationServer(
            root,
            token_endpoint=f"{root}/token",
            authorization_endpoint=f"{root}/authorize",
            registration_endpoint=f"{root}/register",
            code_challenge_methods_supported=("S256",),
            token_endpoint_auth_methods_supported=("none", "client_secret_post", "client_secret_basic"),
        )

    async def find_server(self, issuer: str) -> AuthorizationServer:
        """The metadata of an issuer. Raises TransportError, NoMetadata and other RemoteProtocolErrors."""
        try:
            places = server_urls(issuer)
        except ValueError:
            raise RemoteProtocolError("its authorization server has no usable URL") from None
        missing = True
        for url in places:
            answer = await self.http.ask(url)
            if answer.status == 200:
                try:
                    server = msgspec.json.decode(answer.body, type=AuthorizationServer)
                except UNREADABLE:
                    raise RemoteProtocolError(f"the metadata of {issuer} cannot be used") from None
                if not is_same_issuer(server.issuer, issuer):
                    raise RemoteProtocolError(f"the metadata of {issuer} is that of another issuer")
                return server
            missing = missing and answer.status == 404
        why = f"{issuer} has no metadata of an authorization server"
        raise NoMetadata(why) if missing else RemoteProtocolError(why)

    async def _find_resource(self, challenge: Challenge, root: str, path: str) -> ProtectedResource | None:
        """The upstream's metadata; None when it has none. Raises RemoteProtocolError, TransportError."""
        places = [f"{root}{_RESOURCE}{each}" for each in dict.fromkeys((path, ""))]
        if challenge.metadata_url is not None:
            places = [challenge.metadata_url]
        for url in places:
            answer = await self.http.ask(url)
            # Many servers answer every path with the page of an application.
            kind = answer.headers.get("content-type", "").partition(";")[0].lower()
            if answer.status == 200 and "json" in kind:
                return read_resource(answer.body, self.url)
        log.debug("the upstream has no resource metadata", places=len(places))
        return None
