"""Find the authorization server of an upstream, with requests that cannot be misdirected, and publish
mcpmux's own resource metadata.

An upstream's metadata names URLs, and it is not trusted:

  * Hosts that the configuration names may be asked, at any address.
  * Others may be asked at public addresses; at private ones, or on this machine, only if a host of the
    configuration is at such an address, too.
  * Link-local addresses and the well-known ones of cloud metadata are never asked.
  * https only; http on this machine, or to a host that the configuration itself names with http.
  * An authorization server that the configuration names is the only one that is asked.
  * The metadata of a resource or a server must be its own.

Requests are bounded in time and size. A name is resolved once: `WebClient` connects to the address that was
checked. Behind a proxy, which resolves names itself, only addresses in URLs are checked. Redirects are never
followed.

Source: RFC 8414, sections 2, 3.1 and 3.3; OpenID Connect Discovery 1.0, section 4; RFC 9207, section 3; RFC
9728, sections 2, 3.1 and 3.3; "Authorization Server Discovery", 2025-11-25 and 2026-07-28; "Server Metadata
Discovery" and "Fallbacks for Servers without Metadata Discovery", 2025-03-26: a server is its own
authorization server.
"""

from __future__ import annotations

from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import urlsplit

import msgspec
import structlog
import trio

from mcpmux.auth.bearer import Challenge, read_scopes
from mcpmux.config import Auth, ClientTls, Http, Secret, WebSocket
from mcpmux.errors import ConfigError, ConnectFailed, RemoteProtocolError, TransportError
from mcpmux.protocol.envelope import UNREADABLE
from mcpmux.transports.byte_stream import reason_of
from mcpmux.transports.http.message import HeaderFields
from mcpmux.transports.http.route import HttpOrigin, as_http, choose_proxy, is_loopback

if TYPE_CHECKING:
    from mcpmux.transports.web_client import Find, WebAnswer, WebClient

FETCH_SECONDS = 10.0  # for one answer, as clients wait for it
HEAD_BYTES = 16 * 1024
BODY_BYTES = 512 * 1024  # far more than the keys of any provider

ACCEPT: HeaderFields = (("Accept", "application/json"),)
NO_PROXY = Secret("")

Address = IPv4Address | IPv6Address

PUBLIC, PRIVATE, LOOPBACK, METADATA = "public", "private", "loopback", "link-local or cloud metadata"
"""The kinds of networks that an address is in."""

_NEVER_ASKED = tuple(
    map(
        ip_network,
        ("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32", "100.100.100.200/32", "168.63.129.16/32"),
    )
)
_EMBEDDING = tuple(map(ip_network, ("64:ff9b::/96", "::/96")))  # NAT64, and IPv4-compatible of old
_NEVER_PUBLIC = tuple(map(ip_network, ("64:ff9b:1::/48", "fec0::/10")))  # a site's own NAT64, and site-local

MOST_SERVERS = 16  # authorization servers of one upstream

_OAUTH = "/.well-known/oauth-authorization-server"
_OPENID = "/.well-known/openid-configuration"
_RESOURCE = "/.well-known/oauth-protected-resource"

log = structlog.get_logger()


# Requests to the authorization server.


def kind_of(address: Address) -> str:
    """Return the kind of an address; one that embeds another address has the kind of that."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        # `> 1`: :: and ::1 are in ::/96 without embedding an address.
        if inner is None and any(address in network for network in _EMBEDDING) and int(address) > 1:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return kind_of(inner)
    if any(address in network for network in _NEVER_ASKED):
        return METADATA
    if address.is_loopback or address.is_unspecified:
        return LOOPBACK
    is_public = address.is_global and not address.is_multicast
    return PUBLIC if is_public and not any(address in network for network in _NEVER_PUBLIC) else PRIVATE


class OAuthHttp:
    """Requests about one upstream's tokens: to the upstream with its own TLS, to all others with `oauth.ca`.

    `is_provider`: the target is not an upstream but an identity provider, for its ID tokens.
    """

    def __init__(self, target: Http | WebSocket, *, is_provider: bool = False) -> None:
        assert target.oauth is not None
        self.is_provider = is_provider
        self.config = target.oauth
        self.url = as_http(target.url)
        self.own = HttpOrigin.from_url(self.url)
        provider = self.config.identity_provider
        named = (self.config.issuer, provider.issuer if provider is not None else None)
        origins = [self.own, *(HttpOrigin.from_url(url) for url in named if url is not None)]
        self._hosts = frozenset(origin.host for origin in origins)
        self._plain = frozenset(origin.host for origin in origins if not origin.secure)
        self._tls = target.tls
        self._proxy = target.proxy if isinstance(target, Http) else None

    def origin_of(self, url: str) -> HttpOrigin:
        """Return the origin of a URL that an upstream names. Raises RemoteProtocolError if forbidden."""
        try:
            origin = HttpOrigin.from_url(url)
            parts = urlsplit(url)
        except ValueError:
            raise RemoteProtocolError("what should be a URL of its authorization is none") from None
        if parts.username is not None or not url.isascii() or not url.isprintable() or " " in url:
            raise RemoteProtocolError(f"a URL of its authorization at {origin.authority} is malformed")
        if not origin.secure and not is_loopback(origin.host) and origin.host not in self._plain:
            raise RemoteProtocolError(f"{origin.authority} is to be asked without TLS: tokens need https://")
        return origin

    async def find_addresses(self, host: str, port: int) -> list[str]:
        """Return the addresses to connect to for `host`. Raises ConnectFailed, RemoteProtocolError."""
        if host in self._hosts:
            return [host]
        addresses = await resolve(host, port)
        # A private address is acceptable if a configured host is on such a network itself.
        kinds = set(map(kind_of, addresses)) - {PUBLIC}
        for trusted in self._hosts if kinds else ():
            with suppress(ConnectFailed):
                kinds -= {kind_of(address) for address in await resolve(trusted, 0)} - {METADATA}
        if kinds:
            words = " and ".join(sorted(kinds))
            raise RemoteProtocolError(
                f"{host}, which it names for authorization, is at a {words} address: "
                "if that is right, set it as `issuer` in the upstream's `oauth`"
            )
        return [str(address) for address in addresses]

    async def ask(self, url: str, fields: HeaderFields = ACCEPT, body: bytes = b"") -> WebAnswer:
        """Send a GET, or a POST when there is a body. Raises TransportError, RemoteProtocolError."""
        origin = self.origin_of(url)
        tls = self._tls if origin == self.own else ClientTls(ca=self.config.ca)
        return await _ask(url, tls, self._proxy, self.find_addresses, fields, body)


async def resolve(host: str, port: int) -> list[Address]:
    """Return the addresses of a host. Raises ConnectFailed."""
    try:
        entries = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    except OSError as error:
        raise ConnectFailed(f"cannot connect to {host}: {reason_of(error)}") from error
    # The part behind `%` is the zone of a link-local address, which is not a part of the address itself.
    texts = dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in entries)
    return [ip_address(text) for text in texts]


async def fetch_json(url: str, ca: str | None) -> bytes:
    """Return the body of a trusted server's 200 answer, without a proxy. `ca`: a file. Raises McpmuxError."""
    answer = await _ask(url, ClientTls(ca=ca), NO_PROXY, None, ACCEPT, b"")
    if answer.status != 200:
        raise RemoteProtocolError(f"{urlsplit(url).netloc} answered with status {answer.status}")
    return answer.body


async def _ask(
    url: str, tls: ClientTls, proxy: Secret | None, find: Find | None, fields: HeaderFields, body: bytes
) -> WebAnswer:
    origin = HttpOrigin.from_url(url)

    def make() -> WebClient:
        from mcpmux.transports.web_client import WebClient

        return WebClient(tls, choose_proxy(origin, proxy), find, HEAD_BYTES, BODY_BYTES)

    try:
        client = await trio.to_thread.run_sync(make)  # importing httpx takes a while the first time
        with trio.move_on_after(FETCH_SECONDS):
            return await client.ask("POST" if body else "GET", url, fields, body)
    except ConfigError as error:
        raise TransportError(str(error)) from None
    raise TransportError(f"{origin.authority} did not answer within {FETCH_SECONDS:g} s")


# Metadata of authorization servers and resources.


class AuthorizationServer(msgspec.Struct, frozen=True):
    """A server's metadata. Absent members are None."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    code_challenge_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_signing_alg_values_supported: tuple[str, ...] | None = None
    scopes_supported: tuple[str, ...] | None = None
    authorization_response_iss_parameter_supported: bool = False
    client_id_metadata_document_supported: bool = False

    def choose_method(self, *methods: str) -> str:
        """Return the method to authenticate at its token endpoint: the first it takes, else the first."""
        # By RFC 8414 the default is Basic.
        taken = self.token_endpoint_auth_methods_supported or ("client_secret_basic",)
        return next((method for method in methods if method in taken), methods[0])

    def check_login(self) -> str:
        """Return the authorization endpoint. Raises RemoteProtocolError when logging in there is not safe."""
        problem = "has no authorization endpoint: nobody can log in there"
        if self.authorization_endpoint is not None:
            if "S256" in (self.code_challenge_methods_supported or ()):
                return self.authorization_endpoint
            problem = "does not say that it supports PKCE with S256: codes could be stolen"
        raise RemoteProtocolError(f"{self.issuer} {problem}")


def server_urls(issuer: str) -> tuple[str, ...]:
    """Return the possible URLs of an authorization server's metadata, in the order to try."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    if not path:
        return origin + _OAUTH, origin + _OPENID
    return origin + _OAUTH + path, origin + _OPENID + path, origin + path + _OPENID


def is_same_issuer(one: str, other: str) -> bool:
    """Return whether two identifiers are equal, but for one slash behind a bare host."""
    # Libraries that parse URLs add it (RFC 3986, section 6.2.3).
    bare, spelled = sorted((one, other), key=len)
    return one == other or (spelled == f"{bare}/" and "/" not in bare.partition("://")[2])


_Servers = Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=MOST_SERVERS)]


class ProtectedResource(msgspec.Struct):
    """The resource that tokens are for, their issuers, and their scopes, as an upstream states them."""

    identifier: str = msgspec.field(name="resource")
    issuers: _Servers = msgspec.field(name="authorization_servers")
    scopes: tuple[str, ...] = msgspec.field(default=(), name="scopes_supported")


def read_resource(data: bytes, url: str) -> ProtectedResource:
    """Return the metadata of the upstream at `url`. Raises RemoteProtocolError when it is not about that."""
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
    """Return whether a server with the identifier `resource` may be at `url`: there or below it only."""
    with suppress(ValueError):
        if HttpOrigin.from_url(as_http(resource)) == HttpOrigin.from_url(url):
            above, path = urlsplit(resource).path.rstrip("/"), urlsplit(url).path.rstrip("/")
            return f"{path}/".startswith(f"{above}/")
    return False


class OwnMetadata:
    """The metadata of mcpmux as a resource: one document for each URL that clients use.

    `auth.resource` is the URL of a listener's MCP endpoint. A proxy in front may add a path to those here:

        path here     URL                                    path of the metadata, behind _RESOURCE
        /mcp          https://mux.example.com/api/mcp        /api/mcp, /mcp or none
        /mcp/coding   https://mux.example.com/api/mcp/coding /api/mcp/coding or /mcp/coding
        /sse          https://mux.example.com/api/sse        /api/sse or /sse
    """

    def __init__(self, config: Auth, name: str) -> None:
        """`name`: of mcpmux, for people. The configuration has issuers."""
        assert config.resource is not None
        self.url = config.resource
        parts = urlsplit(config.resource)
        self._origin, self._path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
        document = {
            "authorization_servers": [issuer.issuer for issuer in config.issuers.values()],
            "bearer_methods_supported": ["header"],
            "resource_name": name,
            "scopes_supported": sorted(config.required_scopes),
        }
        self._said = {key: value for key, value in document.items() if value}

    def url_of(self, own: str, endpoint: str, view: str) -> str:
        """Return the URL by which clients know an endpoint, or a view of it.

        `own`: the path of the listener's MCP endpoint. Where that is not the end of the path in
        `auth.resource`, the URL of another endpoint is unknown: it is taken for the MCP endpoint.
        """
        path, own = self._path, own.rstrip("/")
        if endpoint.rstrip("/") != own and path.endswith(own):
            path = path.removesuffix(own) + endpoint.rstrip("/")
        elif not view:
            return self.url
        return f"{self._origin}{path}/{view}" if view else f"{self._origin}{path}"

    def metadata_url(self, url: str) -> str:
        """Return the URL of the document for a URL."""
        return f"{self._origin}{_RESOURCE}{urlsplit(url).path.rstrip('/')}"

    def document_of(self, url: str) -> bytes:
        """Return the document of a URL, whose `resource` is exactly that."""
        return msgspec.json.encode({"resource": url, **self._said})

    def paths_asked(self, path: str, own: str) -> list[str]:
        """Return the paths of a listener that a request for `path` may be about, the likeliest first."""
        if not path.startswith(_RESOURCE):
            return []
        suffix, bare = path.removeprefix(_RESOURCE).rstrip("/"), own.rstrip("/")
        if suffix in ("", self._path, bare):
            return [own]
        above = self._path.removesuffix(bare)
        there = [bare + suffix.removeprefix(self._path)] if suffix.startswith(f"{self._path}/") else []
        return [*there, suffix, *([suffix.removeprefix(above)] if suffix.startswith(f"{above}/") else [])]


class NoMetadata(RemoteProtocolError):
    """An issuer has no metadata: all its places answer 404."""


class IssuerChanged(TransportError):
    """The upstream names another authorization server than the known one."""


class DiscoveredServer(NamedTuple):
    """The server that gives tokens, the resource that they are for, and the scopes needed, if known."""

    server: AuthorizationServer
    resource: str
    scopes: tuple[str, ...]


async def discover(http: OAuthHttp, challenge: Challenge, known: str | None = None) -> DiscoveredServer:
    """Return what is needed to ask for an upstream's tokens. `known`: the issuer of a login, which must hold.

    Raises IssuerChanged and other TransportErrors, RemoteProtocolError.
    """
    expected = known or http.config.issuer
    if http.is_provider and expected is not None:
        return DiscoveredServer(await find_server(http, expected), "", ())
    resource = None
    paths = urlsplit(http.url).path.rstrip("/"), ""
    places = dict.fromkeys(challenge.metadata_url or f"{http.own.url}{_RESOURCE}{path}" for path in paths)
    for url in places:
        answer = await http.ask(url)
        # Many servers answer every path with the page of an application, so the status alone is not enough.
        kind = answer.headers.get("content-type", "").partition(";")[0].lower()
        if answer.status == 200 and "json" in kind:
            resource = read_resource(answer.body, http.url)
            break
    if resource is None:
        log.debug("the upstream has no resource metadata", places=len(places))
        # The resource identifier (RFC 8707, section 2): no query, no lone slash.
        root, path = http.own.url, urlsplit(http.url).path
        identifier = root if path == "/" else root + path
        return DiscoveredServer(await _find_own_server(http, root, expected), identifier, challenge.scopes)
    # A login's refresh token must not go to a server that the upstream has only named since.
    if expected is not None and not any(is_same_issuer(expected, issuer) for issuer in resource.issuers):
        shown = repr(resource.issuers[0][:200])
        raise IssuerChanged(f"its authorization server is {shown} now, and not {expected} any more")
    server = await find_server(http, expected or resource.issuers[0])
    return DiscoveredServer(server, resource.identifier, challenge.scopes or resource.scopes)


async def _find_own_server(http: OAuthHttp, root: str, wanted: str | None) -> AuthorizationServer:
    """Find the server of an upstream without resource metadata, by the rules of 2025-03-26."""
    try:
        return await find_server(http, wanted or root)
    except NoMetadata:
        if wanted not in (None, root):
            raise
    # 2025-03-26 demands these default paths of a server without metadata.
    token, authorize, register = (f"{root}/{path}" for path in ("token", "authorize", "register"))
    methods = ("none", "client_secret_post", "client_secret_basic")
    return AuthorizationServer(root, token, authorize, register, ("S256",), methods)


async def find_server(http: OAuthHttp, issuer: str) -> AuthorizationServer:
    """Return the metadata of an issuer. Raises TransportError, NoMetadata and other RemoteProtocolErrors."""
    http.origin_of(issuer)
    missing = True
    for url in server_urls(issuer):
        answer = await http.ask(url)
        if answer.status == 200:
            try:
                server = msgspec.json.decode(answer.body, type=AuthorizationServer)
            except UNREADABLE:
                raise RemoteProtocolError(f"the metadata of {issuer} cannot be used") from None
            # RFC 8414 section 3.3: else one server could pass for another.
            if not is_same_issuer(server.issuer, issuer):
                raise RemoteProtocolError(f"the metadata of {issuer} is that of another issuer")
            return server
        missing = missing and answer.status == 404
    why = f"{issuer} has no metadata of an authorization server"
    raise NoMetadata(why) if missing else RemoteProtocolError(why)
