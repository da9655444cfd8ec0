"""Who may come in at a listener that asks: tokens and certificates in, principals out.

Promises: nobody comes in without showing something that counts; a token that was judged a moment ago costs a
hash and a look-up. A token is kept nowhere, only its hash. Refuses to know what is asked for: scopes of a
method are looked up by its name.

    401  nothing was shown, or what was shown does not count: `invalid_token`
    403  `insufficient_scope`: the token is good, and does not reach so far
    503  the issuer's keys cannot be had
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import structlog

from mcpmux.auth import jose
from mcpmux.auth.bearer import BadToken, challenge, read_bearer
from mcpmux.auth.claims import check_type, principal_of
from mcpmux.auth.issuer_keys import Fetch, IssuerKeys, KeysUnavailable
from mcpmux.auth.resource import ProtectedResource
from mcpmux.auth.static_token import StaticTokens
from mcpmux.config.auth import Auth
from mcpmux.errors import McpmuxError
from mcpmux.protocol.principal import Principal

CACHE_SECONDS = 300.0  # a token is judged anew after this: its issuer may have taken back the key
CACHE_LIMIT = 10_000  # tokens; about 2 MB

Fields = tuple[tuple[str, str], ...]

log = structlog.get_logger()


class Turned(McpmuxError):
    """Somebody is not let in. `status` and `fields` are for HTTP, the text is for whoever asked."""

    def __init__(self, status: int, sentence: str, fields: Fields) -> None:
        super().__init__(sentence)
        self.status = status
        self.fields = fields


class Admission(NamedTuple):
    """Who it is, and until when that holds (seconds since 1970, or infinity)."""

    principal: Principal
    expires: float = math.inf


class Gate:
    """What one mcpmux asks of clients from the network. `clock`: seconds since 1970."""

    def __init__(self, config: Auth, name: str, fetch: Fetch, clock: Callable[[], float]) -> None:
        self.resource = ProtectedResource(config, name) if config.issuers else None
        self._config = config
        self._clock = clock
        self._tokens = StaticTokens(config.tokens)
        self._required = frozenset(config.required_scopes)
        self._issuers = {
            issuer.issuer: (name, issuer, IssuerKeys(name, issuer, fetch))
            for name, issuer in config.issuers.items()
        }
        self._judged: dict[bytes, tuple[Admission, float]] = {}

    def __repr__(self) -> str:
        return f"<Gate {self._tokens!r}, {len(self._issuers)} issuers, {len(self._judged)} judged>"

    @property
    def asks_tokens(self) -> bool:
        """Whether there are tokens that can be shown."""
        return self._config.asks_tokens

    async def admit(self, headers: Mapping[str, str], holder: str) -> Admission:
        """Who sends a request with these headers; `holder`: of the client's certificate, "" for none.

        Raises Turned.
        """
        if not self._config.asks_tokens:
            return certified(holder)
        try:
            token = read_bearer(headers)
            if token is not None:
                return await self._judge(token)
        except BadToken as error:
            log.info("a token is refused", reason=str(error))
            raise self._unauthorized("invalid_token", str(error)) from None
        except KeysUnavailable as error:
            raise Turned(503, str(error), (("Retry-After", "30"),)) from None
        if self._config.certificates and holder:
            return certified(holder)
        raise self._unauthorized(None, "this needs a bearer token in the Authorization header")

    def _unauthorized(self, error: str | None, sentence: str) -> Turned:
        value = challenge(self._metadata_url, self._required, error, sentence if error else None)
        return Turned(401, sentence, (("WWW-Authenticate", value),))

    @property
    def _metadata_url(self) -> str | None:
        return self.resource.metadata_url if self.resource is not None else None

    async def _judge(self, token: str) -> Admission:
        """Raises BadToken, KeysUnavailable, Turned."""
        now = self._clock()
        digest = hashlib.sha256(token.encode()).digest()
        known = self._judged.get(digest)
        if known is not None and now < known[1]:
            return known[0]
        admission = await self._verify(token, now)
        missing = self._required - admission.principal.scopes
        if missing:
            raise self._insufficient(self._required)
        self._remember(digest, admission, now)
        return admission

    def _remember(self, digest: bytes, admission: Admission, now: float) -> None:
        self._judged.pop(digest, None)
        if len(self._judged) >= CACHE_LIMIT:
            del self._judged[next(iter(self._judged))]
        self._judged[digest] = admission, min(admission.expires, now + CACHE_SECONDS)

    async def _verify(self, token: str, now: float) -> Admission:
        principal = self._tokens.find(token)
        if principal is not None:
            return Admission(principal)
        if not self._issuers:
            raise BadToken("this token is not known here")
        header = jose.read_header(token)
        check_type(header)
        found = self._issuers.get(jose.read_issuer(token) or "")
        if found is None:
            raise BadToken("the token's issuer is not one that is trusted here")
        name, config, keys = found
        kid, algorithm = jose.key_wanted(header, config.algorithms)
        claims = jose.verify(token, await keys.find(kid, algorithm), algorithm)
        assert self._config.resource is not None
        audience = config.audience or _spellings(self._config.resource)
        jose.check_claims(claims, config.issuer, audience, config.leeway, now)
        return Admission(principal_of(claims, name, config.principal), claims["exp"] + config.leeway)

    def seconds_left(self, admission: Admission) -> float:
        """How long an admission still holds; infinity, or 0 when it does not."""
        return max(0.0, admission.expires - self._clock())

    def expired(self) -> Turned:
        """What to answer when a token has expired meanwhile."""
        return self._unauthorized("invalid_token", "the token has expired")

    def scopes_missing(self, method: str, principal: Principal) -> Turned | None:
        """What to answer when a method needs scopes that its client does not have; None when it has them.

        One challenge names all that the method needs. Clients that showed a certificate have no scopes.
        """
        if not self._config.method_scopes:
            return None
        needed = self.scopes_of(method)
        if needed <= principal.scopes:
            return None
        return self._insufficient(self._required | needed)

    def scopes_of(self, method: str) -> frozenset[str]:
        """The scopes that `method_scopes` asks for."""
        group = f"{method.rpartition('/')[0]}/*"
        rules = self._config.method_scopes
        return frozenset(scope for pattern in (method, group, "*") for scope in rules.get(pattern, ()))

    def _insufficient(self, scopes: frozenset[str]) -> Turned:
        sentence = "the token does not have the scopes that this needs"
        value = challenge(self._metadata_url, scopes, "insufficient_scope", sentence)
        return Turned(403, sentence, (("WWW-Authenticate", value),))


def certified(holder: str) -> Admission:
    """Who the holder of a certificate is. Raises Turned when it names nobody."""
    if not holder:
        raise Turned(403, "the client's certificate names nobody", ())
    return Admission(Principal(f"cert:{holder}"))


def _spellings(resource: str) -> tuple[str, ...]:
    """A resource with and without a slash at its end: clients and servers differ in how they write it."""
    bare = resource.rstrip("/")
    return bare, f"{bare}/"
