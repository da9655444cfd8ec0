"""May this browser page, or this name of ours, be talked to? The defence against DNS rebinding.

Source: "Security Warning" of Streamable HTTP in every revision since 2025-03-26.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final
from urllib.parse import urlsplit

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
VERDICTS: Final = 256  # kept; the same few names are asked for again and again
_ANYWHERE: Final = frozenset({"0.0.0.0", "::", ""})


class OriginPolicy:
    """Which Host and Origin headers one listener accepts. Stateless."""

    def __init__(
        self, host: str, allowed_hosts: Collection[str], allowed_origins: Collection[str] | None
    ) -> None:
        """`host`: the address that is listened on. The rest is accepted besides it and the loopback names.

        `allowed_origins` is None for a listener that has no such setting.

        Listening on every address names no host, so `allowed_hosts` decides alone; when it is empty any
        Host is accepted, as the person who opened the listener to the world must expect.
        """
        self._any_host = host in _ANYWHERE and not allowed_hosts
        self._hosts = _LOOPBACK | {_plain(host)} | {_name(entry) for entry in allowed_hosts}
        self._hosts -= {""}  # what makes no sense is nobody's
        self._exact = frozenset(entry.lower() for entry in allowed_hosts)
        self._origins = frozenset(entry.lower() for entry in allowed_origins or ())
        self._remedy = (
            "add its host to the listener's allowed_hosts"
            if allowed_origins is None
            else "add it to the listener's allowed_origins"
        )
        self._refuses = lru_cache(VERDICTS)(self._judge)

    def __repr__(self) -> str:
        return f"OriginPolicy({sorted(self._hosts)}, origins={sorted(self._origins)})"

    def refuses(self, headers: dict[str, str]) -> str | None:
        """Why a request with these headers (lower-case names) is refused; None when it is not."""
        return self._refuses(headers.get("host", ""), headers.get("origin"))

    def _judge(self, host: str, origin: str | None) -> str | None:
        if not self._any_host and _name(host) not in self._hosts and host.lower() not in self._exact:
            return f"Host {host!r} is not served here; add it to the listener's allowed_hosts if it should be"
        if origin is not None and not self._accepts_origin(origin.lower()):
            return f"Origin {origin!r} may not connect; {self._remedy} if it should"
        return None

    def _accepts_origin(self, origin: str) -> bool:
        if origin in self._origins:
            return True
        try:
            return _plain(urlsplit(origin).hostname or "") in self._hosts
        except ValueError:
            return False


def _name(host: str) -> str:
    """The host name in a Host header as `_plain` has it, without port; "" when it makes no sense."""
    if host.startswith("["):
        address, bracket, port = host[1:].partition("]")
        return _plain(address) if bracket and (not port or _is_port(port)) else ""
    if host.count(":") == 1:
        name, _, port = host.partition(":")
        return _plain(name) if _is_port(f":{port}") else ""
    return _plain(host)


def _is_port(text: str) -> bool:
    return text[0] == ":" and (text[1:].isdigit() or text == ":") and text.isascii()


def _plain(host: str) -> str:
    """One spelling for each name and address: lower case, an IPv6 address in its short form."""
    host = host.lower()
    if ":" not in host:
        return host
    try:
        return str(IPv6Address(host))
    except ValueError:
        return host
