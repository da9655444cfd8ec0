"""A client certificate's holder as a principal. Pure: TLS has verified the certificate already.

The name is the first of: a URI (SPIFFE and the like), an e-mail address or a DNS name of its subjectAltName,
the common name of its subject. The kind stands in it, so that no name of one kind passes for one of another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mcpmux.protocol.principal import is_name

_KINDS = {"URI": "uri", "email": "email", "DNS": "dns"}  # as the ssl module calls them, most telling first


def holder_of(certificate: Mapping[str, Any] | None) -> str:
    """`dns:host.example`, from what `ssl.SSLSocket.getpeercert` gives; "" when it names nobody."""
    if not certificate:
        return ""
    names = [(kind, value) for kind, value in certificate.get("subjectAltName", ()) if kind in _KINDS]
    for kind, word in _KINDS.items():
        for found, value in names:
            if found == kind and is_name(value):
                return f"{word}:{value}"
    return next((f"cn:{value}" for value in _common_names(certificate) if is_name(value)), "")


def _common_names(certificate: Mapping[str, Any]) -> Iterator[str]:
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                yield value
