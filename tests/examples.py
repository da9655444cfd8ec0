"""The number of examples with which a law is tried."""

from __future__ import annotations

from hypothesis import settings


def examples(number: int) -> int:
    """Return how many examples the profile in force tries where `ci` tries `number`."""
    return max(5, number * settings().max_examples // 100)
