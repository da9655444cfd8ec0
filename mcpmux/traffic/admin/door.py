"""Who may come in at the admin listener. Pure but for the comparison in constant time.

Whoever shows the token: as `Authorization: Bearer …`, or a browser once as `?token=…`, which gives it a
cookie that no script reads and no other site sends. The cookie is made of the token by a one-way function
with a secret of this run, so it ends with the run. A request that changes something needs more than a cookie,
which browsers send by themselves: the token, or the key that the pages ask for. Every request must be for a
Host of ours, and one that a web page makes must come from a page of ours: the same name and port, for cookies
know no ports.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from enum import Enum
from urllib.parse import parse_qs

from mcpmux.config.expansion import Secret
from mcpmux.protocol.origin import OriginPolicy

COOKIE = "mcpmux-admin"
KEY_HEADER = "x-mcpmux-key"
FOLLOWED_LINK = ("navigate", "document")  # Sec-Fetch-Mode and -Dest of what a person does


class Entry(Enum):
    """What becomes of a request at the door."""

    IN = "in"
    WELCOME = "welcome"  # it showed the token in its URL: it gets the cookie, and a URL without the token
    UNKNOWN = "unknown"


class Door:
    """One admin listener's. Stateless."""

    def __init__(
        self, policy: OriginPolicy, token: Secret, run_secret: bytes, port: int, *, https: bool
    ) -> None:
        """`run_secret`: random, of this run. `port`: for the cookie's name, as cookies know no ports."""
        self._policy = policy
        self._token = token.reveal().encode()
        self._name = f"{COOKIE}-{port}"
        self._pass = hmac.new(run_secret, self._token, hashlib.sha256).hexdigest()
        self.key = hmac.new(run_secret, b"key" + self._token, hashlib.sha256).hexdigest()
        self._secure = "; Secure" if https else ""

    def __repr__(self) -> str:
        return f"<Door {self._name} {self._policy!r}>"

    @property
    def cookie(self) -> str:
        """The value of Set-Cookie for a browser that has shown the token."""
        return f"{self._name}={self._pass}; Path=/; HttpOnly; SameSite=Strict{self._secure}"

    def refuses(self, headers: dict[str, str]) -> str | None:
        """Why a request is not served, whoever it is from; None when it is."""
        origin = headers.get("origin")
        if origin is not None and origin.lower().partition("://")[2] != headers.get("host", "").lower():
            return f"Origin {origin!r} may not connect; only the listener's own pages may"
        if (problem := self._policy.refuses(headers)) is not None:
            return problem
        foreign = headers.get("sec-fetch-site", "none") in ("same-site", "cross-site")
        if foreign and (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) != FOLLOWED_LINK:
            return "a page of another site may not ask this; only the listener's own pages may"
        return None

    def is_meant(self, headers: Mapping[str, str]) -> bool:
        """Whether whoever is in has asked for a change in so many words."""
        shown = headers.get(KEY_HEADER, "")
        return self._shows_token(headers) or hmac.compare_digest(
            shown.encode("utf-8", "surrogateescape"), self.key.encode()
        )

    def _shows_token(self, headers: Mapping[str, str]) -> bool:
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self._is_token(shown.strip())

    def judge(self, path: str, query: str, headers: Mapping[str, str]) -> Entry:
        """Whether whoever asks may come in."""
        if self._shows_token(headers):
            return Entry.IN
        if self._has_pass(headers.get("cookie", "")):
            return Entry.WELCOME if path == "/" and "token=" in query else Entry.IN
        if path == "/" and any(self._is_token(shown) for shown in parse_qs(query).get("token", ())[:1]):
            return Entry.WELCOME
        return Entry.UNKNOWN

    def _is_token(self, shown: str) -> bool:
        return hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), self._token)

    def _has_pass(self, cookies: str) -> bool:
        for each in cookies.split(";"):
            name, _, value = each.strip().partition("=")
            if name == self._name and hmac.compare_digest(
                value.encode("utf-8", "surrogateescape"), self._pass.encode()
            ):
                return True
        return False
