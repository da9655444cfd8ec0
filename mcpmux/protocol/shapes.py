"""The shapes of JSON-RPC messages: as they are handed on, and as they are on the wire. See `envelope`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from mcpmux.errors import RpcError

Id = int | str
Fields = dict[str, Raw]


class Request(msgspec.Struct, frozen=True, gc=False):
    """A call that wants an answer. `params` is a raw JSON object, or None when it was absent.

    `members`: its members, where reading the message has shown them; `params` is empty then.
    """

    id: Id
    method: str
    params: Raw | None = None
    members: Fields | None = None

    @property
    def payload(self) -> Raw | Fields | None:
        """The parameters, for `decode_fields`."""
        return self.params if self.members is None else self.members


class Notification(msgspec.Struct, frozen=True, gc=False):
    """A message that wants no answer."""

    method: str
    params: Raw | None = None


class Reply(msgspec.Struct, frozen=True, gc=False):
    """The successful answer to `id`. `result` is raw JSON: an object, if the peer keeps the rules.

    `members`: its members, where reading the message has shown them; `result` may be empty then.
    """

    id: Id
    result: Raw
    members: Fields | None = None


class ErrorReply(msgspec.Struct, frozen=True, gc=False):
    """The failed answer to `id`; `id` is None when the peer could not read the request."""

    id: Id | None
    code: int
    message: str
    data: Raw | None = None

    def as_error(self) -> RpcError:
        """The same as an exception, to be raised in whoever waits for the answer."""
        return RpcError(self.code, self.message, self.data)


class Wire(msgspec.Struct, gc=False):
    jsonrpc: str | UnsetType = UNSET
    id: Id | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class WireError(msgspec.Struct, gc=False):
    code: int
    message: str = ""
    data: Raw | UnsetType = UNSET


class WireReply(msgspec.Struct, gc=False):
    jsonrpc: str
    id: Id
    result: Fields
    method: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class WireRequest(msgspec.Struct, gc=False):
    jsonrpc: str
    id: Id
    method: str
    params: Fields | None = None


class RequestOut(msgspec.Struct, gc=False, tag_field="jsonrpc", tag="2.0"):
    id: Id
    method: str
    params: Mapping[str, Any]


class ReplyOut(msgspec.Struct, gc=False, tag_field="jsonrpc", tag="2.0"):
    id: Id
    result: Mapping[str, Any]
