"""Moments as records write them. Pure; made for many of them in the same second."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

MICROS: Final = 1_000_000
SECONDS_CACHED: Final = 16  # what is written at one time is from one or two


def micros_of(seconds: float) -> int:
    """The nearest whole number of microseconds."""
    return round(seconds * MICROS)


def rfc3339(micros: int) -> str:
    """Microseconds since 1970 in UTC."""
    second, rest = divmod(micros, MICROS)
    return f"{second_of(second)}.{rest:06}Z"


@lru_cache(SECONDS_CACHED)
def second_of(seconds: int) -> str:
    """Seconds since 1970, as RFC 3339 up to the fraction."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").removesuffix("+00:00")
