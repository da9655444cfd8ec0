"""Who may come in: what shows that a client is somebody, and what tokens must carry. Settings alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias
from urllib.parse import urlsplit

from attrs import field, frozen

from mcpmux.config.expansion import Secret
from mcpmux.config.listener import (
    FilePath,
    HttpListener,
    Listeners,
    TcpListener,
    WebSocketListener,
    is_loopback,
)
from mcpmux.config.report import Unfit
from mcpmux.config.scalars import Choice, Duration, Flag, HttpUrl, SecretText, Text, Whole, about

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "Ed25519", "EdDSA"),
)
"""Signatures that anybody can check and nobody without the private key can make. There is no other choice."""

RESERVED = "cert"  # principals out of certificates begin with it

PrincipalName: TypeAlias = Annotated[
    str, Text("a name of letters, digits, and . _ @ -", r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
]
Scope: TypeAlias = Annotated[
    str, Text("a scope: printable text without spaces and quotes", r"[\x21\x23-\x5b\x5d-\x7e]{1,256}")
]
Digest: TypeAlias = Annotated[
    str, Text("64 hexadecimal digits, as `mcpmux auth new-token` prints them", r"[0-9a-f]{64}")
]
ClaimName: TypeAlias = Annotated[str, Text("the name of a claim", r"[^\x00-\x20]{1,64}")]
Audience: TypeAlias = Annotated[str, Text("text that is not empty", r"[^\x00-\x1f]+")]
MethodPattern: TypeAlias = Annotated[
    str, Text('a method such as "tools/call", or all below "tools/*"', r"[a-z][A-Za-z_/]*(?:/\*)?|\*")
]


class TrustedUrl(HttpUrl, frozen=True):
    """A URL whose answer is believed: https, or http on this machine."""

    expected: str = "an https:// URL (http:// for loopback addresses only) without query"
    pattern: str = r"https?://[^\s\x00-\x1f/?#@]+(?:/[^\s\x00-\x1f?#]*)?"

    def read(self, value: object) -> str:
        url: str = super().read(value)
        parts = urlsplit(url)
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise Unfit(f"expected {self.expected}")
        return url


class ResourceUrl(HttpUrl, frozen=True):
    """A resource identifier (RFC 8707): an absolute URL without query and fragment."""

    expected: str = 'the URL that clients use, such as "https://mux.example.com/mcp"'
    pattern: str = r"https?://[^\s\x00-\x1f/?#@]+(?:/[^\s\x00-\x1f?#]*)?"


def _read_only(table: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(table))


@frozen(kw_only=True)
class StaticToken:
    """A token that is given to somebody by hand. Only its hash is here, so the file gives nobody entry."""

    sha256: Digest = field(
        metadata=about("SHA-256 of the token, in hexadecimal. `mcpmux auth new-token` makes both.")
    )
    scopes: tuple[Scope, ...] = field(
        default=(), metadata=about("Scopes that whoever has the token is granted.")
    )


@frozen(kw_only=True)
class Issuer:
    """An authorization server whose tokens (JWTs) are accepted."""

    issuer: Annotated[str, TrustedUrl()] = field(
        metadata=about("Its issuer identifier, exactly as its tokens have it in `iss`.")
    )
    audience: tuple[Audience, ...] = field(
        default=(),
        metadata=about("What `aud` of its tokens must have one of, where that is not `auth.resource`."),
    )
    jwks_url: Annotated[str, TrustedUrl()] | None = field(
        default=None, metadata=about("Where its keys are; default: where its metadata says.")
    )
    jwks_file: FilePath | None = field(
        default=None, metadata=about("File with its keys (a JWKS); then it is never asked.")
    )
    ca: FilePath | None = field(
        default=None, metadata=about("PEM file with authorities to trust for it, in place of the system's.")
    )
    algorithms: tuple[Annotated[str, Choice(ALGORITHMS)], ...] = field(
        default=ALGORITHMS, metadata=about("Signature algorithms that are accepted.")
    )
    principal: ClaimName = field(
        default="sub", metadata=about("Claim that names the principal: it becomes `NAME:` and its value.")
    )
    leeway: Annotated[float, Duration()] = field(
        default=30.0, metadata=about("How far clocks may differ when `exp` and `nbf` are judged.")
    )

    def __attrs_post_init__(self) -> None:
        """Raises Unfit for keys that contradict each other."""
        if self.jwks_url is not None and self.jwks_file is not None:
            raise Unfit("`jwks_url` and `jwks_file` are given; remove one of them")
        if not self.algorithms:
            raise Unfit("`algorithms` is empty, so no token could be accepted")
        if self.leeway > MOST_LEEWAY:
            raise Unfit(f"`leeway` is longer than {MOST_LEEWAY:g} s; set the clocks right instead")


MOST_LEEWAY = 300.0  # seconds; more would keep tokens alive that have expired


@frozen(kw_only=True)
class Auth:
    """How clients of HTTP and WebSocket listeners show who they are; by default nobody is asked."""

    tokens: Mapping[PrincipalName, StaticToken] = field(
        factory=dict, converter=_read_only, metadata=about("Static bearer tokens, by the principal's name.")
    )
    issuers: Mapping[PrincipalName, Issuer] = field(
        factory=dict,
        converter=_read_only,
        metadata=about("Authorization servers by name; their principals are called `NAME:SUBJECT`."),
    )
    resource: Annotated[str, ResourceUrl()] | None = field(
        default=None,
        metadata=about("URL at which clients reach mcpmux: tokens of `issuers` must be made for it."),
    )
    required_scopes: tuple[Scope, ...] = field(
        default=(), metadata=about("Scopes that every token must have.")
    )
    method_scopes: Mapping[MethodPattern, tuple[Scope, ...]] = field(
        factory=dict,
        converter=_read_only,
        metadata=about('Scopes that a method needs besides: `"tools/*" = ["mcp:tools"]`.'),
    )
    certificates: Annotated[bool, Flag()] = field(
        default=False,
        metadata=about("Whether a client certificate (`tls.client_ca`) will do in place of a token."),
    )
    allow_anyone: Annotated[bool, Flag()] = field(
        default=False,
        metadata=about("Start even if a listener lets strangers in from the network who show nothing."),
    )

    def __attrs_post_init__(self) -> None:
        """Raises Unfit for what does not go together."""
        if self.issuers and self.resource is None:
            raise Unfit("`issuers` need `resource`, the URL that their tokens must be made for")
        if RESERVED in self.issuers:
            raise Unfit(f'an issuer cannot be called "{RESERVED}": so begin principals out of certificates')
        for key, group, what in (
            ("tokens", self.tokens, "sha256"),
            ("issuers", self.issuers, "issuer"),
        ):
            for names in _same(group, what):
                raise Unfit(
                    f"`{key}` {' and '.join(names)} have the same `{what}`, so it is not known who comes"
                )

    @property
    def asks_tokens(self) -> bool:
        """Whether there are tokens that can be shown."""
        return bool(self.tokens or self.issuers)


def _same(group: Mapping[str, StaticToken | Issuer], what: str) -> Iterator[list[str]]:
    """Names whose `what` is the same."""
    names: dict[str, list[str]] = {}
    for name, each in group.items():
        names.setdefault(getattr(each, what), []).append(name)
    return (same for same in names.values() if len(same) > 1)


def find_open_doors(listeners: Listeners, auth: Auth) -> Iterator[tuple[str, str]]:
    """Every (listener, mistake): strangers get in there, and nothing says that they should."""
    if auth.allow_anyone:
        return
    for kind, group in (("http", listeners.http), ("websocket", listeners.websocket), ("tcp", listeners.tcp)):
        for listener in group:
            problem = _open_door(listener, auth)
            if problem is not None:
                yield f"listeners.{kind} {listener.host}:{listener.port}", problem


def _open_door(listener: HttpListener | WebSocketListener | TcpListener, auth: Auth) -> str | None:
    if listener.tls is not None and listener.tls.client_ca is not None:
        return None
    if isinstance(listener, TcpListener):
        if auth.asks_tokens:
            return f"nobody can show a token on TCP: set `tls.client_ca` too, or remove it; {EXPLICITLY}"
    elif auth.asks_tokens:
        return None
    if is_loopback(listener.host):
        return None
    return (
        "it is reached from the network and nothing asks who comes: use 127.0.0.1, or set `auth.tokens`, "
        f"`auth.issuers` or `tls.client_ca`; {EXPLICITLY}"
    )


EXPLICITLY = "or say `auth.allow_anyone = true` (--allow-anyone) if strangers may come in"


# How mcpmux gets tokens for one upstream from its authorization server. Settings alone.

AUTHORIZATION_CODE, CLIENT_CREDENTIALS = "authorization_code", "client_credentials"

ClientId: TypeAlias = Annotated[str, Text("printable ASCII text that is not empty", r"[\x20-\x7e]+")]
ClientSecret: TypeAlias = Annotated[
    Secret, SecretText("printable ASCII text that is not empty", r"[\x20-\x7e]+")
]


class MetadataUrl(HttpUrl, frozen=True):
    """The URL of a client's own metadata document: it is the client's name, so it is https and has a path."""

    expected: str = "an https:// URL with a path and without query"
    pattern: str = r"https://[^\s\x00-\x1f/?#@]+/[^\s\x00-\x1f?#]+"


@frozen(kw_only=True)
class OAuth:
    """Tokens for an upstream; without `client_id` mcpmux registers, where it may."""

    grant: Annotated[str, Choice((AUTHORIZATION_CODE, CLIENT_CREDENTIALS))] = field(
        default=AUTHORIZATION_CODE,
        metadata=about(
            "`authorization_code`: a person logs in with `mcpmux auth login`. "
            "`client_credentials`: mcpmux shows its own secret."
        ),
    )
    issuer: Annotated[str, TrustedUrl()] | None = field(
        default=None,
        metadata=about("The authorization server, and no other; default: the one that the upstream names."),
    )
    client_id: ClientId | None = field(
        default=None, metadata=about("Of mcpmux, where it was registered by hand.")
    )
    client_secret: ClientSecret | None = field(
        default=None,
        metadata=about("Goes with `client_id`, and needs `issuer`, which alone it is shown to."),
    )
    client_metadata_url: Annotated[str, MetadataUrl()] | None = field(
        default=None,
        metadata=about("URL of a client metadata document of yours: the client id where servers take such."),
    )
    scopes: tuple[Scope, ...] = field(
        default=(), metadata=about("Scopes to ask for; default: those that the upstream says it needs.")
    )
    redirect_port: Annotated[int, Whole(0, 65535)] = field(
        default=0,
        metadata=about("Loopback port that the browser comes back to at a login; 0: one that is free."),
    )
    ca: FilePath | None = field(
        default=None,
        metadata=about("PEM file with authorities to trust for the authorization server."),
    )

    def __attrs_post_init__(self) -> None:
        """Raises Unfit for keys that do not go together."""
        if self.client_secret is not None and self.client_id is None:
            raise Unfit("`client_secret` needs `client_id` beside it")
        if self.client_secret is not None and self.issuer is None:
            raise Unfit("`client_secret` needs `issuer`: the upstream must not choose who is shown it")
        if self.grant == CLIENT_CREDENTIALS and self.client_secret is None:
            raise Unfit('`grant` "client_credentials" needs `client_id`, `client_secret` and `issuer`')
        if self.client_id is not None and self.client_metadata_url is not None:
            raise Unfit("`client_id` and `client_metadata_url` are given; remove one of them")
