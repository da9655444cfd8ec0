"""What a start need not do: a seventh of its time, and some of its memory.

What is imported stays, so nothing of it is looked through by the collector, neither meanwhile nor later.

structlog imports asyncio for log methods that are awaited, which mcpmux must not use, and rich, where that is
installed, for coloured tracebacks, which mcpmux does not print. Promises: whoever wants either of them
afterwards gets the real one, structlog included.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any


@contextmanager
def uncollected() -> Iterator[None]:
    """What is made in here stays for good: the collector is not to look for what can go."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class _Later(ModuleType):
    """Stands for a module that is imported when something of it is wanted."""

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self.__name__), attribute)


def import_structlog() -> None:
    """Import structlog; nothing happens when somebody has done so before."""
    if "structlog" in sys.modules:
        return
    # None: as if it were not installed.
    stand_ins = {"asyncio": _Later("asyncio"), "rich": None, "structlog.twisted": None}
    absent = [name for name in stand_ins if name not in sys.modules]
    for name in absent:
        sys.modules[name] = stand_ins[name]  # type: ignore[assignment]  # None is what the import system knows
    try:
        import_module("structlog")
    finally:
        for name in absent:
            del sys.modules[name]
