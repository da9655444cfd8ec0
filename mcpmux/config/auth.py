"""Who may connect and who may use what; how mcpmux logs in at upstreams. Settings only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import unquote, urlsplit

from attrs import field, frozen

from mcpmux.config.expansion import Secret
from mcpmux.config.listener import (
    LISTENER_KEYS,
    FilePath,
    Listeners,
    Port,
    TcpListener,
    UnixListener,
    asks_certificate,
    is_loopback,
)
from mcpmux.config.report import InvalidValue, closest, suggestion
from mcpmux.config.scalars import Choice, Flag, Seconds, Text, read_only, read_url

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "Ed25519", "EdDSA"),
)
"""Signatures that anyone can check and only the owner of the private key can make. No others count."""

RESERVED: Final = "cert"  # names of principals from certificates begin with it
MOST_LEEWAY: Final = 300.0  # seconds; more would keep tokens alive that have expired

PRINCIPAL_NAME: Final = Text("a name of letters, digits, and . _ @ -", r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
SCOPE: Final = Text("a scope: printable text without spaces and quotes", r"[\x21\x23-\x5b\x5d-\x7e]{1,256}")

PrincipalName: TypeAlias = Annotated[str, PRINCIPAL_NAME]
Scope: TypeAlias = Annotated[str, SCOPE]
DIGEST: Final = Text("64 hexadecimal digits, as `mcpmux auth new-token` prints them", r"[0-9a-f]{64}")
CLAIM_NAME: Final = Text("the name of a claim", r"[^\x00-\x20]{1,64}")
AUDIENCE: Final = Text("text that is not empty", r"[^\x00-\x1f]+")
METHODS: Final = Text('a method such as "tools/call", or all below "tools/*"', r"[a-z][A-Za-z_/]*(?:/\*)?|\*")
MethodScopes: TypeAlias = Mapping[Annotated[str, METHODS], tuple[Scope, ...]]

_WITHOUT_QUERY: Final = r"https?://[^\s\x00-\x1f/?#@]+(?:/[^\s\x00-\x1f?#]*)?"


def _read_trusted_url(text: str) -> str | None:
    url = read_url(text)
    is_safe = url is not None and (url.startswith("https") or is_loopback(urlsplit(url).hostname or ""))
    return url if is_safe else None


TRUSTED_URL: Final = Text(
    "an https:// URL (http:// for loopback addresses only) without query", _WITHOUT_QUERY, _read_trusted_url
)
"""A URL whose response is trusted: https, or http on this machine."""

TrustedUrl: TypeAlias = Annotated[str, TRUSTED_URL]
RESOURCE: Final = Text(
    'the URL that clients use, such as "https://mux.example.com/mcp"', _WITHOUT_QUERY, read_url
)
"""A resource identifier (RFC 8707)."""


@frozen(kw_only=True)
class StaticToken:
    """A token that was handed to a client. The file only has its hash, which cannot be used to log in."""

    sha256: Annotated[str, DIGEST]
    """SHA-256 of the token in hexadecimal. `mcpmux auth new-token` makes a token and its hash."""
    scopes: tuple[Scope, ...] = ()
    """Scopes of the token."""


@frozen(kw_only=True)
class Issuer:
    """An authorization server whose tokens (JWTs) are accepted."""

    issuer: TrustedUrl
    """Its issuer identifier, exactly as the claim `iss` of its tokens has it."""
    audience: tuple[Annotated[str, AUDIENCE], ...] = ()
    """The claim `aud` of its tokens must have one of these. Default: `auth.resource`."""
    jwks_url: TrustedUrl | None = None
    """URL of its keys. Default: the one in its metadata."""
    jwks_file: FilePath | None = None
    """File with its keys (a JWKS). mcpmux then never connects to it."""
    ca: FilePath | None = None
    """PEM file with the authorities to trust for it in place of the system's."""
    algorithms: tuple[Annotated[str, Choice(ALGORITHMS)], ...] = ALGORITHMS
    """Signature algorithms that are accepted."""
    principal: Annotated[str, CLAIM_NAME] = "sub"
    """The claim that names the principal, who is then called `NAME:VALUE`."""
    leeway: Seconds = 30.0
    """How far clocks may differ when `exp` and `nbf` are checked."""

    def __attrs_post_init__(self) -> None:
        if self.jwks_url is not None and self.jwks_file is not None:
            raise InvalidValue("`jwks_url` and `jwks_file` are given; remove one of them")
        if not self.algorithms:
            raise InvalidValue("`algorithms` is empty, so no token could be accepted")
        if self.leeway > MOST_LEEWAY:
            raise InvalidValue(f"`leeway` is longer than {MOST_LEEWAY:g} s; set the clocks right instead")


@frozen(kw_only=True)
class Auth:
    """How clients of HTTP and WebSocket listeners authenticate. By default they need not."""

    tokens: Mapping[PrincipalName, StaticToken] = field(factory=dict, converter=read_only)
    """Static bearer tokens by the name of the principal."""
    issuers: Mapping[PrincipalName, Issuer] = field(factory=dict, converter=read_only)
    """Authorization servers by name. Their principals are called `NAME:SUBJECT`."""
    resource: Annotated[str, RESOURCE] | None = None
    """URL at which clients reach mcpmux. Tokens of `issuers` must be made for it."""
    required_scopes: tuple[Scope, ...] = ()
    """Scopes that every token must have."""
    method_scopes: MethodScopes = field(factory=dict, converter=read_only)
    """Scopes that a method needs in addition, such as `"tools/*" = ["mcp:tools"]`."""
    certificates: Annotated[bool, Flag()] = False
    """Whether a client certificate (`tls.client_ca`) is accepted in place of a token."""
    allow_anyone: Annotated[bool, Flag()] = False
    """Start even if strangers on the network can connect to a listener without showing anything."""

    def __attrs_post_init__(self) -> None:
        if self.issuers and self.resource is None:
            raise InvalidValue("`issuers` need `resource`, the URL that their tokens must be made for")
        if RESERVED in self.issuers:
            raise InvalidValue(
                f'an issuer cannot be called "{RESERVED}": so begin principals out of certificates'
            )
        groups: Any = (("tokens", self.tokens, "sha256"), ("issuers", self.issuers, "issuer"))
        for key, group, what in groups:
            for mark, number in Counter(getattr(setting, what) for setting in group.values()).items():
                if number > 1:
                    same = " and ".join(name for name, value in group.items() if getattr(value, what) == mark)
                    raise InvalidValue(f"`{key}` {same} have the same `{what}`, so it is not known who comes")

    @property
    def asks_tokens(self) -> bool:
        """Whether clients have to show a token."""
        return bool(self.tokens or self.issuers)


def find_unguarded_listeners(listeners: Listeners, auth: Auth) -> Iterator[tuple[str, str]]:
    """Yield (listener, mistake) for each listener that lets strangers in although no setting allows it."""
    for listener in () if auth.allow_anyone else listeners.bound:
        if isinstance(listener, UnixListener) or asks_certificate(listener):
            continue
        where = f"listeners.{LISTENER_KEYS[type(listener)]} {listener.address}"
        if auth.asks_tokens and isinstance(listener, TcpListener):
            problem = "nobody can show a token on TCP: set `tls.client_ca` too, or remove it"
            yield where, f"{problem}; {EXPLICITLY}"
        elif not auth.asks_tokens and not is_loopback(listener.host):
            problem = "it is reached from the network and nothing asks who comes: use 127.0.0.1, or set"
            yield where, f"{problem} `auth.tokens`, `auth.issuers` or `tls.client_ca`; {EXPLICITLY}"


EXPLICITLY: Final = "or say `auth.allow_anyone = true` (--allow-anyone) if strangers may come in"


# Access rules: who may use what. `mux/policy` says what they mean together.

USES: Final = ("read", "subscribe", "call", "get", "complete")
"""What is done: with resources (read, subscribe), tools (call), prompts (get); completions (complete)."""

_METHOD: Final = r"[A-Za-z][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_.*-]+)+|\*"
_LIST: Final = re.compile(r"(?:resources|resources/templates|tools|prompts|tasks)/list|list")
_TASK: Final = re.compile(r"tasks(?:/.*)?")
_DOT_SEGMENT: Final = re.compile(r"(?:^|[/\\])\.{1,2}(?:[/\\?#]|$)")
_ROUNDS: Final = 3  # of decoding, as many as when a rule is applied

PRINCIPALS: Final = Text(
    "the name of a principal, in which * stands for any text", r"[^\x00-\x20\x7f]{1,512}"
)
UPSTREAMS: Final = Text("the name of an upstream, in which * stands for any text", r"[a-z*][a-z0-9.*-]{0,63}")
RULE_NAME: Final = Text("a name of letters, digits, and . _ -", r"[A-Za-z0-9._-]{1,64}")


class UseName(Text, frozen=True):
    """What may be done: one of USES, or a method, in which * stands for any text."""

    expected: str = 'one of "read", "subscribe", "call", "get", "complete", or a method such as "tools/call"'
    pattern: str = "|".join(USES) + "|" + _METHOD

    def read(self, value: object) -> str:
        word = value if isinstance(value, str) else ""
        if _LIST.fullmatch(word):
            raise InvalidValue(
                'lists show what may be used, so they need no rule: name "read", "call" or "get"'
            )
        if _TASK.fullmatch(word):
            raise InvalidValue('a task is allowed to whoever may call its tool: name "call"')
        if word not in USES and (hint := suggestion(closest(word, USES, 0.7), '"')):
            raise InvalidValue(f"expected {self.expected}{hint}")
        return str(super().read(value))


def _check_target(text: str) -> str:
    glob = text
    for _ in range(_ROUNDS):
        glob = unquote(glob)
    if ":" in glob and _DOT_SEGMENT.search(glob):
        raise InvalidValue("expected a path without `.` and `..` in it: write where it leads to")
    return text


TARGETS: Final = Text(
    "a URI or name as the upstream has it or as clients see it, in which * stands for any text",
    r"[^\x00-\x1f\x7f\ue000]+",
    _check_target,
)


@frozen(kw_only=True)
class AccessRule:
    """One rule. It applies when everything that it names fits."""

    effect: Annotated[str, Choice(("allow", "deny"))]
    """`deny` wins over any `allow`, in any order."""
    name: Annotated[str, RULE_NAME] | None = None
    """The rule's name in the audit log. Default: its position, such as `access[0]`."""
    principals: tuple[Annotated[str, PRINCIPALS], ...] = ()
    """Names of principals. * stands for any text. Default: all clients. "*": all that have authenticated."""
    scopes: tuple[Scope, ...] = ()
    """Scopes that the principal must have, all of them."""
    upstreams: tuple[Annotated[str, UPSTREAMS], ...] = ()
    """Names of upstreams. * stands for any text. Default: all."""
    methods: tuple[Annotated[str, UseName()], ...] = ()
    """What is done: `read`, `subscribe`, `call`, `get`, `complete`, or methods by name. Default: all."""
    targets: tuple[Annotated[str, TARGETS], ...] = ()
    """URIs and names as the upstream has them, or as clients see them, with the prefix. * stands for any
    text. Default: all.
    """

    def __attrs_post_init__(self) -> None:
        asks = self.principals or self.scopes or self.upstreams or self.methods or self.targets
        if self.effect == "deny" and not asks:
            raise InvalidValue(
                "expected at least one of `principals`, `scopes`, `upstreams`, `methods`, `targets`"
            )


# How mcpmux gets tokens for one upstream from the authorization server of that upstream.

AUTHORIZATION_CODE: Final = "authorization_code"
CLIENT_CREDENTIALS: Final = "client_credentials"
IDENTITY_ASSERTION: Final = "identity_assertion"

CLIENT_ID: Final = Text("printable ASCII text that is not empty", r"[\x20-\x7e]+")
CLIENT_SECRET: Final = Text(CLIENT_ID.expected, CLIENT_ID.pattern, Secret)
PRIVATE_KEY: Final = Text(
    "a private key as PEM or JWK, such as ${file:/run/secrets/key.pem}", r"[\x20-\x7e\r\n]+", Secret
)

# It is also the client's id, so it is https and has a path.
METADATA_PATTERN: Final = r"https://[^\s\x00-\x1f/?#@]+/[^\s\x00-\x1f?#]+"
METADATA_URL: Final = Text("an https:// URL with a path and without query", METADATA_PATTERN, read_url)


@frozen(kw_only=True)
class IdentityProvider:
    """The identity provider of an organization, and mcpmux as its client."""

    issuer: TrustedUrl
    """Issuer of its tokens."""
    client_id: Annotated[str, CLIENT_ID]
    """Client id of mcpmux there."""
    client_secret: Annotated[Secret, CLIENT_SECRET] | None = None
    """Client secret there."""
    token_file: FilePath | None = None
    """File with the ID token of whom mcpmux acts for. Default: that of a person's login."""


@frozen(kw_only=True)
class OAuth:
    """Tokens for an upstream. Without `client_id` mcpmux registers itself where it may."""

    grant: Annotated[str, Choice((AUTHORIZATION_CODE, CLIENT_CREDENTIALS, IDENTITY_ASSERTION))] = (
        AUTHORIZATION_CODE
    )
    """`authorization_code`: a person logs in with `mcpmux auth login`. `client_credentials`: mcpmux shows its
    own secret, or signs with its own key. `identity_assertion`: a person logs in at the `identity_provider`,
    which decides who may use the upstream.
    """
    issuer: TrustedUrl | None = None
    """The only authorization server to use. Default: the one that the upstream names."""
    client_id: Annotated[str, CLIENT_ID] | None = None
    """Client id of mcpmux, if it was registered by hand."""
    client_secret: Annotated[Secret, CLIENT_SECRET] | None = None
    """Client secret. It needs `client_id` and `issuer`, and is shown to that issuer only."""
    private_key: Annotated[Secret, PRIVATE_KEY] | None = None
    """Private key, RSA or EC, as PEM or JWK. mcpmux signs with it in place of showing a secret
    (`private_key_jwt`). It needs `client_id`.
    """
    client_metadata_url: Annotated[str, METADATA_URL] | None = None
    """URL of your own client metadata document. It is the client id at servers that accept one."""
    identity_provider: IdentityProvider | None = None
    """Where people log in for the grant `identity_assertion`."""
    scopes: tuple[Scope, ...] = ()
    """Scopes to ask for. Default: those that the upstream asks for."""
    redirect_port: Port = 0
    """Loopback port that the browser returns to at a login. With 0 the system chooses a free one."""
    ca: FilePath | None = None
    """PEM file with the authorities to trust for the authorization server."""

    def __attrs_post_init__(self) -> None:
        if self.client_secret is not None and self.client_id is None:
            raise InvalidValue("`client_secret` needs `client_id` beside it")
        if self.client_secret is not None and self.issuer is None:
            raise InvalidValue("`client_secret` needs `issuer`: the upstream must not choose who is shown it")
        if self.private_key is not None and (self.client_id is None or self.client_secret is not None):
            raise InvalidValue("`private_key` needs `client_id` beside it, and no `client_secret`")
        if self.grant == CLIENT_CREDENTIALS and self.client_secret is None and self.private_key is None:
            raise InvalidValue(
                "this `grant` needs `client_id` and `private_key`, or `client_secret` and `issuer`"
            )
        if (self.grant == IDENTITY_ASSERTION) != (self.identity_provider is not None):
            raise InvalidValue(
                f'`identity_provider` goes with `grant` "{IDENTITY_ASSERTION}", and with no other'
            )
        if self.grant == IDENTITY_ASSERTION and self.client_id is None:
            raise InvalidValue("this `grant` needs `client_id`")
        if self.client_id is not None and self.client_metadata_url is not None:
            raise InvalidValue("`client_id` and `client_metadata_url` are given; remove one of them")
