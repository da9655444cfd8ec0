"""The shapes of JSON-RPC messages, as msgspec reads and writes them. What they mean is the envelope's.

In a module that is never compiled: a compiled class keeps too little of its annotations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from mcpmux.protocol.raw_json import Fields, Raw

Id = int | str


class Wire(msgspec.Struct, gc=False):
    """Any message."""

    jsonrpc: str | UnsetType = UNSET
    id: Id | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class WireError(msgspec.Struct, gc=False):
    """What is in `error`."""

    code: int
    message: str = ""
    data: Raw | UnsetType = UNSET


class WireReply(msgspec.Struct, gc=False):
    """A successful answer, read at once."""

    jsonrpc: str
    id: Id
    result: Fields
    method: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class WireRequest(msgspec.Struct, gc=False):
    """A request, read at once."""

    jsonrpc: str
    id: Id
    method: str
    params: Fields | None = None


class RequestOut(msgspec.Struct, gc=False, tag_field="jsonrpc", tag="2.0"):
    """A request to be written."""

    id: Id
    method: str
    params: Mapping[str, Any]


class ReplyOut(msgspec.Struct, gc=False, tag_field="jsonrpc", tag="2.0"):
    """A successful answer to be written."""

    id: Id
    result: Mapping[str, Any]
