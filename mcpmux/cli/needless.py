"""The logging library without what it brings along and mcpmux never uses: a tenth of a start and its memory.

structlog imports asyncio for log methods that are awaited, which mcpmux must not use, and rich, where that is
installed, for coloured tracebacks, which mcpmux does not print. Promises: whoever wants either of them
afterwards gets the real one, structlog included.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """Stands for a module that is imported when something of it is wanted."""

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self.__name__), attribute)


def import_structlog() -> None:
    """Import structlog; nothing happens when somebody has done so before."""
    if "structlog" in sys.modules:
        return
    stand_ins = {"asyncio": _Later("asyncio"), "rich": None}  # None: as if it were not installed
    absent = [name for name in stand_ins if name not in sys.modules]
    for name in absent:
        sys.modules[name] = stand_ins[name]  # type: ignore[assignment]  # None is what the import system knows
    try:
        import_module("structlog")
    finally:
        for name in absent:
            del sys.modules[name]
