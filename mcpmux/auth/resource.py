"""mcpmux as an OAuth protected resource: its metadata, and where that is. Pure.

Source: RFC 9728, sections 2 and 3; "Authorization Server Discovery", 2025-11-25 and 2026-07-28.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import msgspec

from mcpmux.config.auth import Auth

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
