"""How values lie in a store: bound to what they are, under what name, and for which principal."""

from __future__ import annotations

from typing import Protocol

import msgspec

from mcpmux.errors import McpmuxError


class ForeignSeal(McpmuxError):
    """It was sealed for somebody else, with another key, or as something else."""


class Seal(Protocol):
    """ClusterSeal says what each does."""

    def name(self, kind: str, text: str) -> str: ...
    def seal(self, kind: str, name: str, data: bytes, principal: str = "") -> bytes: ...
    def open(self, kind: str, name: str, sealed: bytes, principal: str = "") -> bytes: ...


class OpenSeal:
    """For a store in the memory of mcpmux itself, which nobody else reads: nothing is encrypted."""

    def name(self, kind: str, text: str) -> str:
        return f"{kind} {text}"

    def seal(self, kind: str, name: str, data: bytes, principal: str = "") -> bytes:
        return msgspec.msgpack.encode((kind, name, principal, data))

    def open(self, kind: str, name: str, sealed: bytes, principal: str = "") -> bytes:
        *bound, data = msgspec.msgpack.decode(sealed, type=tuple[str, str, str, bytes])
        if bound != [kind, name, principal]:
            raise ForeignSeal(f"this {kind} was sealed for somebody else")
        return data
