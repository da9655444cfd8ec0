"""The keys of one issuer: read or fetched when they are first needed, and again when one is unknown.

Rules
  * However many clients wait, keys are fetched once at a time, and at most every RETRY_SECONDS: a token with
    an invented `kid` makes no traffic.
  * Keys that are older than FRESH_SECONDS are fetched again, in the background of whoever needs one.
  * While the issuer cannot be asked the keys that are known go on, for STALE_SECONDS at most.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
import trio

from mcpmux.auth.claims import KeySet, SigningKey, UnknownKey, read_key_set
from mcpmux.auth.discovery import metadata_urls, read_keys_url
from mcpmux.config.auth import Issuer
from mcpmux.errors import ConfigError, McpmuxError, RemoteProtocolError, TransportError

RETRY_SECONDS = 30.0  # between two attempts to get keys
FRESH_SECONDS = 3600.0  # keys that were taken back are trusted no longer than this, when the issuer answers
LOAD_SECONDS = 20.0  # for metadata and keys; clients wait for them
STALE_SECONDS = 24 * 3600.0  # and no longer than this when it does not

Fetch = Callable[[str, str | None], Awaitable[bytes]]
"""(URL, file of authorities) → the document. Raises McpmuxError."""

log = structlog.get_logger()


class KeysUnavailable(McpmuxError):
    """The issuer's keys cannot be had, so its tokens can be judged by nobody."""


class IssuerKeys:
    """The keys of one issuer. `name` is what the configuration calls it."""

    def __init__(self, name: str, config: Issuer, fetch: Fetch) -> None:
        self._name = name
        self._config = config
        self._fetch = fetch
        self._keys: KeySet | None = None
        self._fetched = -math.inf
        self._tried = -math.inf
        self._turn = trio.Lock()

    def __repr__(self) -> str:
        return f"<IssuerKeys {self._name} {self._keys!r}>"

    async def find(self, kid: str | None, algorithm: str) -> tuple[SigningKey, ...]:
        """The keys that a token may mean. Raises UnknownKey, and KeysUnavailable."""
        if trio.current_time() - self._fetched > FRESH_SECONDS:
            await self._renew()
        try:
            return self._known(kid, algorithm)
        except UnknownKey:
            if not await self._renew():
                raise
        return self._known(kid, algorithm)

    def _known(self, kid: str | None, algorithm: str) -> tuple[SigningKey, ...]:
        if self._keys is None or trio.current_time() - self._fetched > STALE_SECONDS:
            raise KeysUnavailable(f"the keys of {self._config.issuer} cannot be had at the moment")
        return self._keys.find(kid, algorithm)

    async def _renew(self) -> bool:
        """Try to get the keys, unless that was done a moment ago; whether there are other ones now."""
        before = self._fetched
        async with self._turn:
            if self._fetched > before:
                return True  # somebody else did while we waited
            now = trio.current_time()
            if now - self._tried < RETRY_SECONDS:
                return False
            self._tried = now
            # A client that leaves takes nobody's keys with it.
            with trio.move_on_after(LOAD_SECONDS, shield=True) as patience:
                try:
                    self._keys = await self._load()
                except McpmuxError as error:
                    return self._failed(str(error))
            if patience.cancelled_caught:
                return self._failed(f"no answer within {LOAD_SECONDS:g} s")
            self._fetched = trio.current_time()
            log.info("keys of an issuer", issuer=self._config.issuer, keys=repr(self._keys))
            return True

    def _failed(self, reason: str) -> bool:
        log.warning("keys of an issuer cannot be had", issuer=self._config.issuer, reason=reason)
        return False

    async def _load(self) -> KeySet:
        """Raises McpmuxError."""
        if self._config.jwks_file is not None:
            try:
                return read_key_set(await trio.Path(self._config.jwks_file).read_bytes())
            except OSError as error:
                raise TransportError(f"{self._config.jwks_file}: {error.strerror}") from None
        url = self._config.jwks_url or await self._discover()
        return read_key_set(await self._fetch(url, self._config.ca))

    async def _discover(self) -> str:
        problem: McpmuxError = RemoteProtocolError("it has no metadata")
        for url in metadata_urls(self._config.issuer):
            try:
                return read_keys_url(await self._fetch(url, self._config.ca), self._config.issuer)
            except McpmuxError as error:
                problem = error
        raise problem


def check_key_file(name: str, config: Issuer) -> None:
    """Raises ConfigError when the file of keys cannot be used. Reads it: call it in a thread."""
    if config.jwks_file is None:
        return
    where = f"auth.issuers.{name}.jwks_file: {config.jwks_file}"
    try:
        read_key_set(Path(config.jwks_file).read_bytes())
    except OSError as error:
        raise ConfigError([f"{where}: {(error.strerror or 'cannot be read').lower()}"]) from None
    except RemoteProtocolError as error:
        raise ConfigError([f"{where}: {error}"]) from None
