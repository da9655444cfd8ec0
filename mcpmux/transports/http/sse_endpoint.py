"""Where the POSTs of HTTP+SSE go: the URI in the stream's first event, and what of it is trusted. Pure.

Source: "HTTP with SSE" in "Transports", 2024-11-05.
"""

from __future__ import annotations

import re
from urllib.parse import urljoin, urlsplit

from mcpmux.errors import RemoteProtocolError
from mcpmux.transports.http.origin import HttpOrigin

SHOWN_BYTES = 100  # of a bad address in an error

_URI = re.compile(r"[\x21-\x7e]+")


def target_of(url: str) -> str:
    """Path and query of a URL, as a request line has them."""
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def resolve_endpoint(url: str, reference: bytes) -> str:
    """The URL that an `endpoint` event means; `reference` may be relative to `url`, the stream's own.

    Raises RemoteProtocolError when it means none, or one of another origin: that would be sent our headers.
    """
    try:
        text = reference.decode("ascii")
        resolved = urljoin(url, text) if _URI.fullmatch(text) else ""
        origin = HttpOrigin.from_url(resolved)
    except ValueError:
        shown = reference[:SHOWN_BYTES].decode(errors="replace")
        raise RemoteProtocolError(f"its `endpoint` event holds no usable URI: {shown!r}") from None
    if origin != HttpOrigin.from_url(url):
        raise RemoteProtocolError(
            f"its `endpoint` event names another origin, {origin.authority}, which is not to see our headers"
        )
    return resolved
