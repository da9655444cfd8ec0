"""mcpmux as an OAuth protected resource: its metadata, and where that is. Pure.

Source: RFC 9728, sections 2 and 3; "Authorization Server Discovery", 2025-11-25 and 2026-07-28.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from mcpmux.auth.challenge import read_scopes
from mcpmux.config.auth import Auth
from mcpmux.errors import RemoteProtocolError
from mcpmux.transports.http.route import HttpOrigin

# An upstream as an OAuth protected resource: where its metadata may be, and what is believed of it. Pure.
#
# Source: RFC 9728, sections 3.1 and 3.3; "Authorization Server Discovery", 2025-11-25 and 2026-07-28.

MOST_SERVERS = 16  # authorization servers of one upstream


class _Document(msgspec.Struct):
    resource: str
    authorization_servers: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MOST_SERVERS)]
    scopes_supported: list[str] = []


class Resource(NamedTuple):
    """What tokens are to be made for, by whom, and with which scopes, as the upstream says."""

    identifier: str
    issuers: tuple[str, ...]
    scopes: tuple[str, ...]


def canonical_url(url: str) -> str:
    """The resource identifier of the server at `url` (RFC 8707, section 2): no query, no lone slash."""
    path = urlsplit(url).path
    return HttpOrigin.from_url(_as_http(url)).url + ("" if path == "/" else path)


def metadata_urls(url: str) -> tuple[str, ...]:
    """Where the metadata of the server at `url` may be, in the order to try."""
    origin, path = HttpOrigin.from_url(_as_http(url)).url, urlsplit(url).path.rstrip("/")
    return (f"{origin}{WELL_KNOWN}{path}", f"{origin}{WELL_KNOWN}") if path else (f"{origin}{WELL_KNOWN}",)


def read_resource(data: bytes, url: str) -> Resource:
    """The metadata of the server at `url`. Raises RemoteProtocolError when it is not about that."""
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise RemoteProtocolError(
            "its resource metadata has no `resource` or no `authorization_servers`"
        ) from None
    if not _covers(document.resource, url):
        raise RemoteProtocolError("its resource metadata is that of another resource")
    scopes = read_scopes(" ".join(document.scopes_supported))
    return Resource(document.resource, tuple(document.authorization_servers), scopes)


def _covers(resource: str, url: str) -> bool:
    """Whether a server that calls itself `resource` may stand at `url`: there or above it, nowhere else."""
    try:
        if HttpOrigin.from_url(_as_http(resource)) != HttpOrigin.from_url(_as_http(url)):
            return False
        above, path = urlsplit(resource).path.rstrip("/"), urlsplit(url).path.rstrip("/")
    except ValueError:
        return False
    return path == above or path.startswith(f"{above}/")


def _as_http(url: str) -> str:
    """A WebSocket URL as the one of the HTTP server that it is at."""
    return f"http{url[2:]}" if url.startswith(("ws:", "wss:")) else url


WELL_KNOWN = "/.well-known/oauth-protected-resource"


class ProtectedResource:
    """What clients are told about whom to ask for tokens."""

    def __init__(self, config: Auth, name: str) -> None:
        """`name`: of mcpmux for people. The configuration has issuers."""
        assert config.resource is not None
        parts = urlsplit(config.resource)
        path = parts.path.rstrip("/")
        self.path = path
        self.metadata_url = f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{path}"
        document: dict[str, Any] = {
            "resource": config.resource,
            "authorization_servers": [issuer.issuer for issuer in config.issuers.values()],
            "bearer_methods_supported": ["header"],
            "resource_name": name,
        }
        if config.required_scopes:
            document["scopes_supported"] = sorted(config.required_scopes)
        self.document = msgspec.json.encode(document)

    def __repr__(self) -> str:
        return f"<ProtectedResource {self.metadata_url}>"

    def is_metadata(self, path: str, endpoint: str) -> bool:
        """Whether a request's path asks for the metadata of the endpoint at `endpoint` of a listener."""
        if not path.startswith(WELL_KNOWN):
            return False
        return path[len(WELL_KNOWN) :].rstrip("/") in ("", self.path, endpoint.rstrip("/"))
