"""A server that speaks HTTP: where it is, and how much is asked of it and taken from it at a time."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from mcpmux.transports.http.message import HEAD_FIELDS


class HttpOrigin(msgspec.Struct, frozen=True):
    """Scheme, host and port of a URL."""

    secure: bool
    host: str
    port: int

    @classmethod
    def from_url(cls, url: str) -> HttpOrigin:
        """Raises ValueError when `url` is not an http or https URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an http or https URL: {url!r}")
        secure = parts.scheme == "https"
        port = _default_port(secure) if parts.port is None else parts.port
        return cls(secure, parts.hostname.encode("idna").decode(), port)

    @property
    def authority(self) -> str:
        """What the Host field says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _default_port(self.secure) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """Without a path."""
        return f"{'https' if self.secure else 'http'}://{self.authority}"


class PoolLimits(msgspec.Struct, frozen=True):
    """How much a pool asks of its origin, and how much it takes from it."""

    head_bytes: int = 64 * 1024
    head_fields: int = HEAD_FIELDS
    body_bytes: int = 64 * 1024 * 1024  # of a response that is read whole
    connections: int = 256  # every running request holds one, streams included
    waiting: int = 1024  # requests queued for a connection; one more fails at once
    idle: int = 64  # connections kept for reuse
    idle_seconds: float = 30  # most servers close theirs sooner, which is noticed


def _default_port(secure: bool) -> int:
    return 443 if secure else 80
