"""The type of a JSON value that nobody has read: `msgspec.Raw`, as it is.

Its stubs make it a subclass of `bytes`, which it is not: it has the buffer of one. Code that is compiled
would believe them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:

    @final
    class Raw:
        """What msgspec decodes and encodes as it stands."""

        def __init__(self, msg: bytes | bytearray | memoryview | str = b"", /) -> None: ...

        def __buffer__(self, flags: int, /) -> memoryview: ...

        def __len__(self) -> int: ...

        def copy(self) -> Raw: ...

else:
    from msgspec import Raw

Fields = dict[str, Raw]
"""A JSON object whose members nobody has read."""

__all__ = ["Fields", "Raw"]
