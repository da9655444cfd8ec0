"""Where a response with a redirecting status leads, and whether a request may follow it there. Pure.

Only what keeps the method and stays at the same origin is followed: headers with credentials never go to
another scheme, host or port, and a POST never becomes a GET. Source: RFC 9110, sections 10.2.2 and 15.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urljoin, urlsplit

from mcpmux.config import display_url
from mcpmux.transports.http.encoding import is_target
from mcpmux.transports.http.origin import HttpOrigin

MOVES: Final = frozenset({301, 302, 303, 307, 308})
KEEPING_METHOD: Final = frozenset({307, 308})
SHOWN_CHARACTERS: Final = 200  # of a location


def target_after(origin: HttpOrigin, target: str, status: int, headers: Mapping[str, str]) -> str | None:
    """Path and query at the same origin to repeat the request for `target` at; None when it may not be."""
    url = location_of(origin, target, headers) if status in KEEPING_METHOD else None
    if url is None:
        return None
    try:
        same = HttpOrigin.from_url(url) == origin
        parts = urlsplit(url)
    except ValueError:
        return None
    there = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return there if same and is_target(there) else None


def location_of(origin: HttpOrigin, target: str, headers: Mapping[str, str]) -> str | None:
    """The absolute URL that the answer to a request for `target` names; None when it names none."""
    location = headers.get("location", "")
    try:
        return urljoin(origin.url + target, location) if location else None
    except ValueError:
        return None


def describe_move(origin: HttpOrigin, target: str, headers: Mapping[str, str]) -> str:
    """What to tell of a redirect that is not followed. Shows no query: it may hold a secret."""
    url = location_of(origin, target, headers)
    if url is None:
        return "it redirects, and does not say where to"
    return f"it redirects to {display_url(url)[:SHOWN_CHARACTERS]!r}: give that URL if you trust it"
