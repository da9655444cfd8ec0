"""Keep an access token for an upstream, fetched before it is needed and again before it expires.

For any number of waiting requests there is one token request at a time, and any of them may be cancelled. A
valid token stays in use while no new one can be got. A token is in no log and no repr.

Rules
  * A token is renewed AHEAD_SECONDS before it expires, sooner if its life is short.
  * After a renewal that failed there is no other for RETRY_SECONDS.
  * A refused token is renewed once: if a new one is refused at once, more of them do not help.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog
import trio

from mcpmux.auth.bearer import Challenge, read_challenge
from mcpmux.errors import McpmuxError, TransportError

if TYPE_CHECKING:
    from mcpmux.auth.token_store import Tokens

AHEAD_SECONDS: Final = 60.0
AHEAD_SHARE: Final = 0.2  # of a token's life, when that is less
RENEW_SECONDS: Final = 45.0  # for all requests of one renewal: discovery and the token
RETRY_SECONDS = 5.0
NEW_SECONDS: Final = 30.0  # after which a refused token may be renewed again

REFUSES_TOKEN: Final = frozenset({401, 403})
"""Statuses that are about a token: invalid, or not enough for this request."""

Header = tuple[tuple[str, str], ...]
Clock = Callable[[], float]
"""Seconds since 1970."""

log = structlog.get_logger()


@dataclass(eq=False, repr=False)
class Credential(ABC):
    """One upstream's token. `advice`: what to do about the last refusal."""

    name: str
    _clock: Clock
    advice: str | None = field(default=None, init=False)
    _header: Header = field(default=(), init=False)
    _due: float = field(default=-math.inf, init=False)  # the time of its renewal
    _until: float = field(default=-math.inf, init=False)  # the time at which it expires
    _made: float = field(default=-math.inf, init=False)
    _trouble: TransportError | None = field(default=None, init=False)
    _failed: float = field(default=-math.inf, init=False)  # the time of the last failed renewal
    _turn: trio.Lock = field(default_factory=trio.Lock, init=False)

    def header_now(self) -> Header:
        """Return the Authorization header, or () when it needs a renewal first."""
        return self._header if self._clock() < self._due else ()

    async def header(self) -> Header:
        """Return the Authorization header. Raises TransportError when no token can be got."""
        async with self._turn:
            may_ask = not self._is_within(RETRY_SECONDS, self._failed)
            if self.header_now() or (may_ask and await self._attempt(self._renew)):
                return self._header
            assert self._trouble is not None
            if not self._header or self._clock() >= self._until:
                raise self._trouble.anew()
            self._due = min(self._failed + RETRY_SECONDS, self._until)  # the old one is still valid
            return self._header

    async def refused(self, shown: Header, status: int, www_authenticate: str) -> bool:
        """Handle the refusal of a request with the header `shown`. Return whether to repeat the request.

        `www_authenticate`: the value of that field. A request refused so was not carried out (RFC 9110,
        section 15.5.2), so any may be repeated.
        """
        challenge = read_challenge(www_authenticate)
        if status == 403 and challenge.error != "insufficient_scope":
            return False
        async with self._turn:
            if self._header and self._header != shown:
                return True  # another request has renewed it meanwhile
            renewed = await self._attempt(lambda: self._answer(challenge, status))
            self.advice = None if renewed or self._trouble is None else str(self._trouble)
            return renewed

    async def _answer(self, challenge: Challenge, status: int) -> bool:
        """Renew or extend the token after a refusal. Raises McpmuxError."""
        if status == 403:
            return await self._step_up(challenge)
        if self._is_within(NEW_SECONDS, self._made):
            raise TransportError("it refuses a token that was made for it just now")
        self._header = ()
        self._due = self._until = -math.inf
        await self._renew(challenge)
        return True

    def _adopt(self, tokens: Tokens, *, made_now: bool) -> None:
        now = self._clock()
        left = tokens.until - now
        self._header = (("Authorization", f"Bearer {tokens.access}"),)
        self._until = tokens.until
        self._due = tokens.until - min(AHEAD_SECONDS, AHEAD_SHARE * left)
        self._trouble = None
        if made_now:
            self._made = now
            seconds = round(left) if left < math.inf else None
            log.info("new token for an upstream", upstream=self.name, seconds=seconds)

    async def _attempt(self, work: Callable[[], Awaitable[bool | None]]) -> bool:
        # Shielded: a client that leaves must not cancel a request that has used up a refresh token.
        trouble = TransportError(f"no token came within {RENEW_SECONDS:g} s")
        try:
            with trio.move_on_after(RENEW_SECONDS, shield=True):
                return await work() is not False
        except McpmuxError as error:
            trouble = (
                error
                if isinstance(error, TransportError)
                else TransportError(str(error)).quoting(error.quoted)
            )
        log.warning("no new token for an upstream", upstream=self.name, reason=trouble.in_full)
        self._trouble, self._failed = trouble, self._clock()
        return False

    def _is_within(self, seconds: float, since: float) -> bool:
        # A time that is still to come is one before the system's clock was set back, perhaps by hours.
        return 0 <= self._clock() - since < seconds

    @abstractmethod
    async def _renew(self, challenge: Challenge | None = None) -> None:
        """Get another token; `challenge`: when the previous one was refused. Raises McpmuxError."""

    @abstractmethod
    async def _step_up(self, challenge: Challenge) -> bool:
        """Get a token with more scopes. Raises McpmuxError, which names the remedy."""
