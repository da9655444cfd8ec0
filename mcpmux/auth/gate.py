"""Admit clients at a listener that requires authentication: tokens and certificates in, principals out.

No client is admitted without a valid one. A token that was judged a moment ago costs a hash and a
look-up; only its hash is kept. Another configuration counts at once (`adopt`): streams end whose admission
was by something that is gone or changed, and tokens are judged anew. Whether tokens are required at all is
decided at the start: when the last one is removed all clients are refused, rather than admitted.

    401  no token, or an invalid one: `invalid_token`
    403  `insufficient_scope`: the token is valid, but lacks scopes
    503  the issuer's keys cannot be fetched
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import structlog
import trio

from mcpmux.auth.bearer import BadToken, admit_holder, hash_token, read_bearer, write_challenge
from mcpmux.auth.discovery import OwnMetadata
from mcpmux.config.auth import RESERVED, Auth
from mcpmux.lru import Lru
from mcpmux.protocol.principal import CERTIFICATES, Admission, Principal, Turned, certified

if TYPE_CHECKING:  # joserfc is an extra, for configurations with issuers
    from mcpmux.auth.jwt import FetchDocument, TrustedIssuer

CACHE_SECONDS = 300.0  # after which a token is judged anew: its issuer may have withdrawn the key
CACHE_LIMIT: Final = 10_000  # tokens
CACHE_BYTES: Final = 8 * 2**20  # of their contents: issuers choose names and scopes

INSUFFICIENT: Final = "insufficient_scope"
TOO_FEW_SCOPES: Final = "the token does not have the scopes that this needs"

log = structlog.get_logger()


class Gate:
    """The authentication that one mcpmux requires of network clients. `clock`: seconds since 1970."""

    def __init__(self, config: Auth, name: str, fetch: FetchDocument, clock: Callable[[], float]) -> None:
        self.asks_tokens = config.asks_tokens
        """Whether tokens are required, even if there are none."""
        self._fetch = fetch
        self._clock = clock
        self._issuers: dict[str, TrustedIssuer] = {}
        self._judged: Lru[str, tuple[Admission, float]] = Lru(CACHE_LIMIT, CACHE_BYTES)
        self._stays: dict[trio.CancelScope, Admission] = {}
        self._take(config, name)

    def _take(self, config: Auth, name: str) -> None:
        self._config = config
        self.resource = OwnMetadata(config, name) if config.issuers and self.asks_tokens else None
        self._required = frozenset(config.required_scopes)
        self._grounds: dict[str, Any] = {f"tokens.{called}": token for called, token in config.tokens.items()}
        if config.certificates or not self.asks_tokens:
            self._grounds[CERTIFICATES] = True
        # Unchanged issuers are kept with their keys, so that a reload fetches none.
        former = {(issuer.name, issuer.config): issuer for issuer in self._issuers.values()}
        self._issuers = {}
        if config.issuers:
            from mcpmux.auth.jwt import TrustedIssuer
        for called, issuer in config.issuers.items():
            trusted = former.get((called, issuer)) or TrustedIssuer(called, issuer, self._fetch)
            self._issuers[issuer.issuer] = trusted
            self._grounds[f"issuers.{called}"] = issuer, config.resource

    def adopt(self, config: Auth, name: str) -> None:
        """Use another configuration. Streams end whose admission does not hold in it."""
        if config == self._config:
            return
        self._take(config, name)
        self._judged.clear()
        ended = [scope for scope, admission in self._stays.items() if not self.holds(admission)]
        for scope in ended:
            scope.cancel(reason="what let it in was taken back")
        log.info("who may come in has changed", ended=len(ended))
        if self.asks_tokens and not config.asks_tokens:
            log.warning("nobody has a token that counts any more; from the next start on nobody is asked")

    def known(self, headers: Mapping[str, str]) -> Admission | None:
        """Return the admission of a request whose token was judged a moment ago and still holds, or None."""
        # Without verification: only an exact hash of a judged token is accepted, all others go to `admit`.
        scheme, _, token = headers.get("authorization", "").partition(" ")
        judgement = self._judged.get(hash_token(token)) if scheme == "Bearer" else None
        return judgement[0] if judgement is not None and self._clock() < judgement[1] else None

    async def admit(self, headers: Mapping[str, str], holder: str, resource: str = "") -> Admission:
        """Return a request's admission. Raises Turned. `holder`: of the client's certificate, "" for none.

        `resource`: the URL of an endpoint or view that the request is sent to, "" for that of the
        configuration. A token may be for that URL only.
        """
        if not self.asks_tokens:
            return certified(holder)
        try:
            token = read_bearer(headers)
            if token is not None:
                return await self._judge(token, resource)
        except BadToken as error:
            log.info("a token is refused", reason=str(error))
            raise self._refuse("invalid_token", str(error), resource) from None
        # Only without a token: a client that sends a bad one must learn that.
        if self._config.certificates and holder:
            return certified(holder)
        raise self._refuse(None, "this needs a bearer token in the Authorization header", resource)

    def _refuse(
        self, error: str | None, sentence: str, resource: str, scopes: frozenset[str] | None = None
    ) -> Turned:
        """Return a refusal. `scopes`: all that are needed, the required ones by default."""
        own = self.resource
        url = own.metadata_url(resource or own.url) if own is not None else None
        needed = self._required if scopes is None else scopes
        value = write_challenge(url, needed, error, sentence if error else None)
        return Turned(403 if error == INSUFFICIENT else 401, sentence, (("WWW-Authenticate", value),))

    async def _judge(self, token: str, resource: str) -> Admission:
        """Return the admission by a token. Raises BadToken, Turned."""
        now = self._clock()
        digest = hash_token(token)
        judgement = self._judged.get(digest)
        # A token for one URL, such as a view's, must not be admitted at another one from the cache.
        if judgement is not None and now < judgement[1] and judgement[0].resource in ("", resource):
            return judgement[0]
        admission = admit_holder(digest, self._config.tokens)
        if admission is None:
            whole = self._config.resource
            if whole is None or not self._issuers:
                raise BadToken("this token is not known here")
            from mcpmux.auth.jwt import verify_token

            admission = await verify_token(token, self._issuers, whole, now, resource)
        if not self._is_granted(admission):  # the configuration changed while keys were fetched
            raise BadToken("this token does not count any more")
        if not self._required <= admission.principal.scopes:
            raise self._refuse(INSUFFICIENT, TOO_FEW_SCOPES, resource)
        self._judged[digest] = admission, min(admission.expires, now + CACHE_SECONDS)
        return admission

    def _is_granted(self, admission: Admission) -> bool:
        key, ground = admission.ground
        return bool(self._grounds.get(key) == ground)

    def holds(self, admission: Admission) -> bool:
        """Return whether an admission, expired or not, would be given again."""
        has_scopes = self._required <= admission.principal.scopes or admission.ground[0] == CERTIFICATES
        return has_scopes and self._is_granted(admission)

    def knows(self, principal: Principal) -> bool:
        """Return whether a principal of that name can still be admitted."""
        kind, colon, _ = principal.name.partition(":")
        if not colon:
            return f"tokens.{kind}" in self._grounds
        return (CERTIFICATES if kind == RESERVED else f"issuers.{kind}") in self._grounds

    def seconds_left(self, admission: Admission) -> float:
        """Return the seconds for which an admission still holds; infinity, or 0 when it does not hold."""
        return max(0.0, admission.expires - self._clock()) if self.holds(admission) else 0.0

    @contextmanager
    def stay(self, admission: Admission) -> Iterator[trio.CancelScope]:
        """Yield a scope that is cancelled when the admission expires or no longer holds."""
        with trio.move_on_after(self.seconds_left(admission)) as scope:
            self._stays[scope] = admission
            try:
                yield scope
            finally:
                del self._stays[scope]

    def expired(self, resource: str = "") -> Turned:
        """Return the answer for a token that has expired or been withdrawn. `resource`: as for `admit`."""
        return self._refuse("invalid_token", "the token has expired", resource)

    def scopes_missing(self, method: str, principal: Principal, resource: str = "") -> Turned | None:
        """Return the answer when a method needs scopes that the principal lacks; None when it has them.

        One challenge names all scopes that the method needs. Clients with a certificate have no scopes.
        `resource`: as for `admit`.
        """
        if not self._config.method_scopes:
            return None
        group = f"{method.rpartition('/')[0]}/*"
        rules = self._config.method_scopes
        needed = {scope for pattern in (method, group, "*") for scope in rules.get(pattern, ())}
        if needed <= principal.scopes:
            return None
        return self._refuse(INSUFFICIENT, TOO_FEW_SCOPES, resource, self._required | needed)
