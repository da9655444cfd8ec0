"""The values that two sides exchange to know each other: `server/discover` and `initialize`.

Source: `server/discover` and "Versioning and Compatibility", 2026-07-28; "Lifecycle" of 2025-11-25 and
earlier.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import msgspec

from mcpmux.errors import McpmuxError, RemoteProtocolError, RpcError
from mcpmux.protocol.call import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    META,
    SERVER_INFO,
    VERSION,
    Call,
    Meta,
)
from mcpmux.protocol.codes import HEADER_MISMATCH, INVALID_PARAMS, MODERN_ONLY, UNSUPPORTED_VERSION
from mcpmux.protocol.envelope import (
    EMPTY_OBJECT,
    data_of,
    decode_any,
    decode_fields,
    members_of,
    raw,
    text_of,
    value_at,
    value_of,
)
from mcpmux.protocol.method import DISCOVER, INITIALIZE, OWN
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.revisions import LEGACY, NEWEST, NEWEST_LEGACY, V_2024_11_05

_REVISION: Final = re.compile(r"\b\d{4}-\d\d-\d\d\b")
_ABOUT_REVISIONS: Final = re.compile(r"version|revision", re.IGNORECASE)


INSTANCES: Final = f"{OWN}instances"
"""In `_meta` of a mcpmux's description of itself: its own id, and those of all mcpmux behind it."""

INSTANCES_LIMIT: Final = 100  # ids in a description; a loop of more is not found


class ServerFacts(msgspec.Struct, frozen=True):
    """A server's description of itself. `capabilities` is decoded; `info` is its raw Implementation.

    `instances`: see INSTANCES; empty for a server that is no mcpmux.
    """

    revision: str
    capabilities: dict[str, Any]
    info: Raw | None = None
    instructions: str | None = None
    instances: tuple[str, ...] = ()

    def offers(self, capability: str) -> bool:
        """Return whether the server declared a capability."""
        # 2024-11-05 has completions, and no capability for them.
        if capability == "completions" and self.revision == V_2024_11_05:
            return True
        return isinstance(self.capabilities.get(capability), dict)

    def announces(self, capability: str) -> bool:
        """Return whether the server announces changes of the lists of a capability."""
        options = self.capabilities.get(capability)
        return isinstance(options, dict) and options.get("listChanged") is True


def discover_call(client_info: Raw) -> Call:
    """Return the probe that every modern server answers."""
    meta = {VERSION: raw(NEWEST), CLIENT_INFO: client_info, CLIENT_CAPABILITIES: EMPTY_OBJECT}
    return Call(DISCOVER, {}, meta)


def initialize_call(client_info: Raw, capabilities: Raw, revision: str = NEWEST_LEGACY) -> Call:
    """Return the request that opens a legacy session, in the newest legacy revision or another."""
    # A server is promised no tasks for its questions, even if its client can make them.
    able = members_of(capabilities)
    if able.pop("tasks", None) is not None:
        capabilities = raw(able)
    params = {"protocolVersion": raw(revision), "capabilities": capabilities, "clientInfo": client_info}
    return Call(INITIALIZE, params, {})


def read_discover_result(result: Fields) -> ServerFacts | None:
    """Return the facts in a DiscoverResult; None when it is invalid or does not support our version."""
    try:
        versions = decode_any(result.get("supportedVersions", b"null"))
        if not isinstance(versions, list) or NEWEST not in versions:
            return None
        return _facts(NEWEST, result, decode_fields(result.get(META)).get(SERVER_INFO))
    except ValueError:
        return None


def read_initialize_result(result: Fields) -> ServerFacts:
    """Return the facts in an InitializeResult. Raises RemoteProtocolError when it is invalid."""
    version = text_of(result.get("protocolVersion"))
    if version is None:
        raise RemoteProtocolError("it answered `initialize` without a protocolVersion")
    if version not in LEGACY:
        revisions = ", ".join(LEGACY)
        raise RemoteProtocolError(f"it speaks revision {version!r}; mcpmux knows {revisions} and {NEWEST}")
    try:
        return _facts(version, result, result.get("serverInfo"))
    except ValueError:
        raise RemoteProtocolError("it answered `initialize` with malformed capabilities") from None


def _facts(revision: str, result: Fields, info: Raw | None) -> ServerFacts:
    """Return facts about a server. Raises ValueError for malformed capabilities."""
    capabilities = decode_any(result.get("capabilities", b"{}"))
    if not isinstance(capabilities, dict):
        raise ValueError("capabilities are not an object")
    instances = value_at(value_of(result.get(META)), (INSTANCES,))
    if not isinstance(instances, list) or not all(isinstance(instance, str) for instance in instances):
        instances = []
    instructions = text_of(result.get("instructions"))
    return ServerFacts(revision, capabilities, info, instructions, tuple(instances[:INSTANCES_LIMIT]))


def is_final(error: RpcError) -> bool:
    """Return whether an error comes from a modern server that offers no legacy revision known here."""
    return error.code in MODERN_ONLY and not set(LEGACY).intersection(_supported(error))


def offers_newest(error: RpcError) -> bool:
    """Return whether an UnsupportedProtocolVersion error lists the very revision that was asked for."""
    return NEWEST in _supported(error)


def next_revision(refusal: McpmuxError, asked: Sequence[str]) -> str | None:
    """Return the legacy revision to ask for after a refused `initialize`; None: that was not the reason.

    If the refusal names revisions, in `data.supported` or in words, the next one is the newest of these; else
    the next older one. `asked`: the revisions refused so far, in order.
    """
    # "If the server does not support the requested protocol version, it MUST respond with another", but many
    # refuse it instead.
    named = _listed(refusal) if isinstance(refusal, RpcError) else []
    others = set(named or _REVISION.findall(refusal.in_full)).difference(asked)
    if others:
        return max(others.intersection(LEGACY), default=None)
    # Without a list, only a refusal of the parameters or about versions is worth another attempt.
    is_about_it = isinstance(refusal, RpcError) and refusal.code == INVALID_PARAMS
    if not is_about_it and _ABOUT_REVISIONS.search(refusal.in_full) is None:
        return None
    return max((revision for revision in LEGACY if revision < min(asked)), default=None)


def refusal(error: RpcError) -> str:
    """Return why a modern error on `server/discover` rules out the server, in a sentence for people."""
    if error.code == UNSUPPORTED_VERSION:
        if offers_newest(error):
            return f"it refuses revision {NEWEST} and says that it supports it"
        versions = ", ".join(_supported(error)) or "none that it would name"
        return f"no revision in common; it supports {versions}"
    hint = "; something on the way may remove or change the Mcp-* headers"
    return f"it refused `{DISCOVER}`: {error.message}{hint if error.code == HEADER_MISMATCH else ''}"


def _supported(error: RpcError) -> list[str]:
    return _listed(error) if error.code == UNSUPPORTED_VERSION else []


def _listed(error: RpcError) -> list[str]:
    versions = value_at(data_of(error), ("supported",))
    return [version for version in versions if isinstance(version, str)] if isinstance(versions, list) else []


class ClientFacts(msgspec.Struct, frozen=True, dict=True):
    """The declarations of a legacy client in `initialize`, as raw JSON, and the log level it set since."""

    info: Raw
    capabilities: Raw
    log_level: str | None = None

    @cached_property
    def meta(self) -> Meta:
        """The facts as `_meta` of a 2026-07-28 request."""
        members = {VERSION: raw(NEWEST), CLIENT_INFO: self.info, CLIENT_CAPABILITIES: self.capabilities}
        return Meta(members if self.log_level is None else {**members, LOG_LEVEL: raw(self.log_level)})
