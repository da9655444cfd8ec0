"""Who may come in at a listener that asks: tokens and certificates in, principals out.

Nobody comes in without showing something that counts. A token that was judged a moment ago costs a hash and a
look-up; only its hash is kept. Another configuration counts at once (`adopt`): whoever was let in by
something that is gone or changed loses their streams, and their token is judged anew. Whether tokens are
asked for at all is decided at the start: with the last one taken back nobody comes in, rather than everybody.

    401  nothing was shown, or what was shown does not count: `invalid_token`
    403  `insufficient_scope`: the token is good, and does not reach so far
    503  the issuer's keys cannot be had
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import structlog
import trio

from mcpmux.auth.bearer import BadToken, admit_holder, hash_token, read_bearer, write_challenge
from mcpmux.auth.discovery import OwnMetadata
from mcpmux.config.auth import RESERVED, Auth
from mcpmux.lru import Lru
from mcpmux.protocol.principal import CERTIFICATES, Admission, Principal, Turned, certified

if TYPE_CHECKING:  # joserfc is for those who have issuers
    from mcpmux.auth.jwt import FetchDocument, TrustedIssuer

CACHE_SECONDS = 300.0  # a token is judged anew after this: its issuer may have taken back the key
CACHE_LIMIT = 10_000  # tokens
CACHE_BYTES = 8 * 2**20  # of what they say: issuers choose names and scopes

INSUFFICIENT = "insufficient_scope"
TOO_FEW_SCOPES = "the token does not have the scopes that this needs"

log = structlog.get_logger()


class Gate:
    """What one mcpmux asks of clients from the network. `clock`: seconds since 1970."""

    def __init__(self, config: Auth, name: str, fetch: FetchDocument, clock: Callable[[], float]) -> None:
        self.asks_tokens = config.asks_tokens
        """Whether tokens have to be shown, be there any or none."""
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
        known = {(each.name, each.config): each for each in self._issuers.values()}  # with their keys
        self._issuers = {}
        if config.issuers:
            from mcpmux.auth.jwt import TrustedIssuer
        for called, issuer in config.issuers.items():
            trusted = known.get((called, issuer)) or TrustedIssuer(called, issuer, self._fetch)
            self._issuers[issuer.issuer] = trusted
            self._grounds[f"issuers.{called}"] = issuer, config.resource

    def adopt(self, config: Auth, name: str) -> None:
        """The configuration is another one now. Streams end of those whom it does not let in as they are."""
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
        """Who sends a request, when the token that it shows was judged a moment ago and still holds."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        found = self._judged.get(hash_token(token)) if scheme == "Bearer" else None
        return found[0] if found is not None and self._clock() < found[1] else None

    async def admit(self, headers: Mapping[str, str], holder: str, resource: str = "") -> Admission:
        """Return who sends a request. Raises Turned. `holder`: of the client's certificate, "" for none.

        `resource`: the URL of an endpoint or view that the request is sent to, "" for that of the
        configuration. A token may be for that URL alone.
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
        if self._config.certificates and holder:
            return certified(holder)
        raise self._refuse(None, "this needs a bearer token in the Authorization header", resource)

    def _refuse(
        self, error: str | None, sentence: str, resource: str, scopes: frozenset[str] | None = None
    ) -> Turned:
        """`scopes`: all that are needed, the required ones by default."""
        own = self.resource
        url = own.metadata_url(resource or own.url) if own is not None else None
        needed = self._required if scopes is None else scopes
        value = write_challenge(url, needed, error, sentence if error else None)
        return Turned(403 if error == INSUFFICIENT else 401, sentence, (("WWW-Authenticate", value),))

    async def _judge(self, token: str, resource: str) -> Admission:
        """Raises BadToken, Turned."""
        now = self._clock()
        digest = hash_token(token)
        known = self._judged.get(digest)
        if known is not None and now < known[1] and known[0].resource in ("", resource):
            return known[0]
        admission = admit_holder(digest, self._config.tokens)
        if admission is None:
            whole = self._config.resource
            if whole is None or not self._issuers:
                raise BadToken("this token is not known here")
            from mcpmux.auth.jwt import verify_token

            admission = await verify_token(token, self._issuers, whole, now, resource)
        if not self._is_granted(admission):  # taken back while its issuer was asked for keys
            raise BadToken("this token does not count any more")
        if not self._required <= admission.principal.scopes:
            raise self._refuse(INSUFFICIENT, TOO_FEW_SCOPES, resource)
        self._judged[digest] = admission, min(admission.expires, now + CACHE_SECONDS)
        return admission

    def _is_granted(self, admission: Admission) -> bool:
        key, ground = admission.ground
        return bool(self._grounds.get(key) == ground)

    def holds(self, admission: Admission) -> bool:
        """Whether an admission, expired or not, would be given again."""
        has_scopes = self._required <= admission.principal.scopes or admission.ground[0] == CERTIFICATES
        return has_scopes and self._is_granted(admission)

    def knows(self, principal: Principal) -> bool:
        """Whether there is still a way to come in as somebody of that name."""
        kind, colon, _ = principal.name.partition(":")
        if not colon:
            return f"tokens.{kind}" in self._grounds
        return (CERTIFICATES if kind == RESERVED else f"issuers.{kind}") in self._grounds

    def seconds_left(self, admission: Admission) -> float:
        """How long an admission still holds; infinity, or 0 when it does not."""
        return max(0.0, admission.expires - self._clock()) if self.holds(admission) else 0.0

    @contextmanager
    def stay(self, admission: Admission) -> Iterator[trio.CancelScope]:
        """For something that stays open: cancelled when the admission expires or is taken back."""
        with trio.move_on_after(self.seconds_left(admission)) as scope:
            self._stays[scope] = admission
            try:
                yield scope
            finally:
                del self._stays[scope]

    def expired(self, resource: str = "") -> Turned:
        """Return the answer for a token that has expired, or was taken back. `resource`: as for `admit`."""
        return self._refuse("invalid_token", "the token has expired", resource)

    def scopes_missing(self, method: str, principal: Principal, resource: str = "") -> Turned | None:
        """What to answer when a method needs scopes that its client does not have; None when it has them.

        One challenge names all that the method needs. Clients that showed a certificate have no scopes.
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
