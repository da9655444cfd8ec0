"""Whether whole products are tested, or what covers each side of them."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

WHOLE = bool(os.environ.get("MCPMUX_WHOLE"))


def when_whole(*cases: T) -> tuple[T, ...]:
    """Return the cases that only a whole product has."""
    return cases if WHOLE else ()
