"""Raw JSON values, and the JSON-RPC messages around them as msgspec structs.

Never compiled: a compiled class keeps too little of its annotations for msgspec.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, final

import msgspec
from msgspec import UNSET, Meta, UnsetType

if TYPE_CHECKING:
    # The stubs of msgspec make it a subclass of `bytes`, which it is not; mypyc would rely on that.
    @final
    class Raw:
        """A JSON value that msgspec decodes and encodes as it stands."""

        def __init__(self, msg: bytes | bytearray | memoryview | str = b"", /) -> None: ...
        def __buffer__(self, flags: int, /) -> memoryview: ...
        def __len__(self) -> int: ...
        def copy(self) -> Raw: ...
else:
    from msgspec import Raw as Raw

Fields = dict[str, Raw]
"""A JSON object whose members are still encoded."""

Id = int | str

SHORT_CHARS: Final = 4096
"""The limit for an id, a token, a method or a name from a peer: they are remembered in many places."""

_Short = Annotated[str, Meta(max_length=SHORT_CHARS)]
_ShortId = int | _Short


class Wire(msgspec.Struct, gc=False):
    """Any message."""

    jsonrpc: str | UnsetType = UNSET
    id: _ShortId | float | UnsetType | None = UNSET
    method: _Short | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class WireError(msgspec.Struct, gc=False):
    """The value of `error`."""

    code: int
    message: str = ""
    data: Raw | UnsetType = UNSET


class WireReply(msgspec.Struct, gc=False):
    """A successful answer, decoded together with its result's members."""

    jsonrpc: str
    id: _ShortId
    result: Fields
    method: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class WireRequest(msgspec.Struct, gc=False):
    """A request, decoded together with its parameters' members."""

    jsonrpc: str
    id: _ShortId
    method: _Short
    params: Fields | None = None


_NONE: Final = Raw(b"")


class WireLarge(msgspec.Struct, gc=False):
    """Members of parameters and results that may well be large; all others are skipped."""

    content: Raw = _NONE
    structuredContent: Raw = _NONE  # noqa: N815 - as MCP spells it
    contents: Raw = _NONE
    tools: Raw = _NONE
    resources: Raw = _NONE
    resourceTemplates: Raw = _NONE  # noqa: N815
    prompts: Raw = _NONE
    messages: Raw = _NONE
    tasks: Raw = _NONE
    arguments: Raw = _NONE
    inputRequests: Raw = _NONE  # noqa: N815
    inputResponses: Raw = _NONE  # noqa: N815


class RequestOut(msgspec.Struct, gc=False, tag_field="jsonrpc", tag="2.0"):
    """A request to encode."""

    id: Id
    method: str
    params: Mapping[str, Any] | UnsetType = UNSET


class ReplyOut(msgspec.Struct, gc=False, tag_field="jsonrpc", tag="2.0"):
    """A successful answer to encode."""

    id: Id
    result: Mapping[str, Any]
