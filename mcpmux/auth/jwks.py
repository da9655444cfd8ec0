"""The keys of one issuer (RFC 7517): fetched when they are first needed, and again when one is unknown.

Rules
  * However many clients wait, keys are fetched once at a time, and at most every RETRY_SECONDS: a token with
    an invented `kid` makes no traffic.
  * Keys that are older than FRESH_SECONDS are fetched again, in the background of whoever needs one.
  * While the issuer cannot be asked the keys that are known go on, for STALE_SECONDS at most.
  * Keys that are damaged, weak, secret, or not for checking signatures are left out.

By joserfc: without it, importing this module raises ConfigError.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog
import trio

from mcpmux.auth.bearer import BadToken
from mcpmux.auth.metadata import read_keys_url, server_urls
from mcpmux.config.auth import Issuer
from mcpmux.errors import ConfigError, McpmuxError, RemoteProtocolError, TransportError
from mcpmux.protocol.envelope import UNREADABLE
from mcpmux.protocol.principal import Turned
from mcpmux.transports.wire import reason_of

try:
    from joserfc.errors import JoseError
    from joserfc.jwk import Key, RSAKey, import_key
except ImportError:
    raise ConfigError(["auth.issuers need the library joserfc: pip install 'mcpmux[auth]'"]) from None

RETRY_SECONDS = 30.0  # between two attempts to get keys
FRESH_SECONDS = 3600.0  # keys that were taken back are trusted no longer than this, when the issuer answers
LOAD_SECONDS = 20.0  # for metadata and keys; clients wait for them
STALE_SECONDS = 24 * 3600.0  # and no longer than this when it does not

Fetch = Callable[[str, str | None], Awaitable[bytes]]
"""(URL, file of authorities) → the document. Raises McpmuxError."""

MOST_KEYS = 200  # of one issuer; large providers have about ten
MOST_TRIED = 4  # keys for one token, when it does not say which or several are called the same
LEAST_RSA_BITS = 2048  # RFC 7518, section 3.3
MOST_RSA_BITS = 8192  # a check of a longer one takes too long

_FITTING = {"RSA": ("RS", "PS"), "EC": ("ES",), "OKP": ("Ed",)}
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519", "Ed25519": "Ed25519"}

log = structlog.get_logger()


class UnknownKey(BadToken):
    """The token is signed with a key that is not among those that are known; the issuer may have new ones."""


class SigningKey(NamedTuple):
    """One key of an issuer. `kid` and `algorithm` are None when the issuer does not say."""

    kid: str | None
    algorithm: str | None
    kind: str
    curve: str | None
    key: Key

    def fits(self, algorithm: str) -> bool:
        """Whether a signature by this algorithm can be of this key."""
        if self.algorithm not in (None, algorithm) or not algorithm.startswith(_FITTING[self.kind]):
            return False
        return self.curve is None or self.curve == _CURVES.get(algorithm)


def read_key_set(data: bytes) -> tuple[SigningKey, ...]:
    """The usable keys in a JWKS (RFC 7517): public, for signatures, strong. Raises RemoteProtocolError."""
    try:
        document: Any = msgspec.json.decode(data)
        entries = document["keys"]
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise TypeError
    except (*UNREADABLE, TypeError, KeyError):
        raise RemoteProtocolError("this is no JSON Web Key Set") from None
    keys = tuple(key for entry in entries[:MOST_KEYS] if (key := _read_key(entry)) is not None)
    if not keys:
        raise RemoteProtocolError("no key in the key set can be used for signatures")
    return keys


def _read_key(entry: Mapping[str, Any]) -> SigningKey | None:
    """None for what is damaged, weak, secret, or not for checking signatures."""
    kind, kid, algorithm = entry.get("kty"), entry.get("kid"), entry.get("alg")
    operations = entry.get("key_ops")
    if not isinstance(kind, str) or kind not in _FITTING or entry.get("use", "sig") != "sig":
        return None
    if operations is not None and (not isinstance(operations, list) or "verify" not in operations):
        return None
    if not all(text is None or isinstance(text, str) for text in (kid, algorithm)):
        return None
    public = {name: entry[name] for name in ("kty", "n", "e", "crv", "x", "y") if name in entry}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of weak keys, which are not used
            key = import_key(public)
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    if isinstance(key, RSAKey) and not LEAST_RSA_BITS <= key.raw_value.key_size <= MOST_RSA_BITS:
        return None
    return SigningKey(kid, algorithm, kind, entry.get("crv"), key)


class IssuerKeys:
    """The keys of one issuer. `name` is what the configuration calls it."""

    def __init__(self, name: str, config: Issuer, fetch: Fetch) -> None:
        self._name = name
        self._config = config
        self._fetch = fetch
        self._keys: tuple[SigningKey, ...] = ()
        self._fetched = -math.inf
        self._tried = -math.inf
        self._turn = trio.Lock()

    def __repr__(self) -> str:
        return f"<IssuerKeys {self._name} {[key.kid for key in self._keys]}>"

    async def find(self, kid: str | None, algorithm: str) -> tuple[SigningKey, ...]:
        """The keys that a token may mean. Raises UnknownKey, and Turned while there are none."""
        if trio.current_time() - self._fetched > FRESH_SECONDS:
            await self._renew()
        try:
            return self._known(kid, algorithm)
        except UnknownKey:
            if not await self._renew():
                raise
        return self._known(kid, algorithm)

    def _known(self, kid: str | None, algorithm: str) -> tuple[SigningKey, ...]:
        if trio.current_time() - self._fetched > STALE_SECONDS:
            sentence = f"the keys of {self._config.issuer} cannot be had at the moment"
            raise Turned(503, sentence, (("Retry-After", "30"),))
        fitting = tuple(key for key in self._keys if key.fits(algorithm) and kid in (None, key.kid))
        if not fitting:
            raise UnknownKey("the token is signed with a key that its issuer does not have")
        return fitting[:MOST_TRIED]

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
            log.info("keys of an issuer", issuer=self._config.issuer, keys=[key.kid for key in self._keys])
            return True

    def _failed(self, reason: str) -> bool:
        log.warning("keys of an issuer cannot be had", issuer=self._config.issuer, reason=reason)
        return False

    async def _load(self) -> tuple[SigningKey, ...]:
        """Raises McpmuxError."""
        if self._config.jwks_file is not None:
            return await trio.to_thread.run_sync(_read_key_file, self._config.jwks_file)
        url = self._config.jwks_url or await self._discover()
        return read_key_set(await self._fetch(url, self._config.ca))

    async def _discover(self) -> str:
        problem: McpmuxError = RemoteProtocolError("it has no metadata")
        for url in server_urls(self._config.issuer):
            try:
                return read_keys_url(await self._fetch(url, self._config.ca), self._config.issuer)
            except McpmuxError as error:
                problem = error
        raise problem


def check_key_file(name: str, config: Issuer) -> None:
    """Raises ConfigError when the file of keys cannot be used. Reads it: call it in a thread."""
    if config.jwks_file is not None:
        try:
            _read_key_file(config.jwks_file)
        except McpmuxError as error:
            raise ConfigError([f"auth.issuers.{name}.jwks_file: {error}"]) from None


def _read_key_file(path: str) -> tuple[SigningKey, ...]:
    try:
        return read_key_set(Path(path).read_bytes())
    except OSError as error:
        raise TransportError(f"{path}: {reason_of(error)}") from None
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"{path}: {error}") from None
