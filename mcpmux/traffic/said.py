"""The shape of what a message says it is and is about, see `glance`."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from mcpmux.protocol.shapes import Id


class Params(msgspec.Struct, gc=False):
    """What a method is about."""

    name: Any = None
    uri: Any = None
    progressToken: Any = None  # noqa: N815 - the field's name
    requestId: Any = None  # noqa: N815 - the field's name
    ref: Any = None

    @property
    def target(self) -> str | None:
        """The name or URI that a message is about."""
        about = self.uri if self.uri is not None else self.name
        if about is None and isinstance(self.ref, dict):
            about = self.ref.get("uri", self.ref.get("name"))
        return about if isinstance(about, str) else None


class Result(msgspec.Struct, gc=False):
    """What is known of a result. `isError`: true for a tool that failed."""

    isError: Any = None  # noqa: N815 - the field's name


class Error(msgspec.Struct, gc=False):
    """What is known of an error."""

    code: int
    message: str = ""


NOTHING: Final = Params()


class Glance(msgspec.Struct, gc=False):
    """A request (`method` and `id`), a notification (`method`), or an answer: an `error` or a `result`."""

    jsonrpc: Literal["2.0"]
    id: Id | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Params | None = None
    result: Result | UnsetType = UNSET
    error: Error | UnsetType = UNSET
