"""What a request of 2026-07-28 must say about itself, and the HTTP status of what goes wrong.

Source: "_meta" and "Error Codes" in the Base Protocol overview, "Streamable HTTP" (server validation),
`server/utilities/logging`; all 2026-07-28.
"""

from __future__ import annotations

from typing import Any, Final

from mcpmux.protocol.call import CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, VERSION, Call, Meta
from mcpmux.protocol.codes import MalformedRequest, unsupported_version
from mcpmux.protocol.envelope import first_byte, text_of
from mcpmux.protocol.headers import VERSION_HEADER, check_headers, check_version
from mcpmux.protocol.raw_json import Raw
from mcpmux.protocol.revisions import is_modern

LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Least to most severe (RFC 5424)."""


def check_call(call: Call) -> None:
    """The required members of `_meta` are there and make sense. Raises RpcError."""
    meta = call.meta
    if isinstance(meta, Meta) and meta.sound:
        return
    version = stated_version(call)
    if version is None:
        raise MalformedRequest(f'"_meta" must have "{VERSION}", a string')
    if not is_modern(version):
        raise unsupported_version(version)
    _expect_object(meta.get(CLIENT_CAPABILITIES), CLIENT_CAPABILITIES, required=True)
    _expect_object(meta.get(CLIENT_INFO), CLIENT_INFO, required=False)
    if LOG_LEVEL in meta and text_of(meta[LOG_LEVEL]) not in LOG_LEVELS:
        raise MalformedRequest(f'"{LOG_LEVEL}" must be one of {", ".join(LOG_LEVELS)}')
    if isinstance(meta, Meta):
        meta.sound = True


def check_request(headers: dict[str, str], call: Call) -> None:
    """`_meta` is complete, and the HTTP headers say what the body says. Raises RpcError."""
    meta = call.meta
    if not (isinstance(meta, Meta) and meta.sound and headers.get(VERSION_HEADER) == meta.version):
        version = stated_version(call)
        if version is not None:
            check_version(headers, version)
        check_call(call)
    check_headers(headers, call)


def stated_version(call: Call) -> str | None:
    """The version in `_meta`; None when there is no text."""
    meta = call.meta
    return meta.version if isinstance(meta, Meta) else text_of(meta.get(VERSION))


def _expect_object(value: Raw | None, key: str, *, required: bool) -> None:
    if value is None:
        if required:
            raise MalformedRequest(f'"_meta" must have "{key}", an object')
    elif first_byte(value) != b"{":
        raise MalformedRequest(f'"{key}" must be an object')


def severity(level: Any) -> int:
    """Rank of a log level, higher is worse; an unknown one ranks highest, so that it is not lost."""
    return LOG_LEVELS.index(level) if level in LOG_LEVELS else len(LOG_LEVELS)
