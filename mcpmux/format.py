"""Numbers as people read them: three significant digits and a unit. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

NOTHING = "-"
_TIMES = ((60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_BARS = "▁▂▃▄▅▆▇█"


def digits(value: float) -> str:
    """Return three significant digits, never an exponent; longer whole numbers stay whole."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    places = max(0, 2 - int(f"{value:.2e}".partition("e")[2]))  # of 0.9996, which rounds to 1.00: two
    return f"{value:,.{places}f}"


def _in_units(value: float, units: Sequence[tuple[float, str]]) -> str:
    unit, name = next((unit for unit in units if value >= unit[0] * 0.9995), units[-1])
    return f"{digits(value / unit)} {name}"


def time_text(seconds: float | None) -> str:
    """Return a duration."""
    return NOTHING if seconds is None else _in_units(seconds, _TIMES)


def rate_text(rate: float | None) -> str:
    """Return a rate in requests per second, for people."""
    return NOTHING if rate is None else f"{digits(rate)}/s"


def share_text(share: float | None) -> str:
    """Return a share as percent. Only 0 is shown as 0 %, and only 1 as 100 %."""
    if share is None:
        return NOTHING
    if 0 < share < 1e-5:
        return "<0.001 %"
    if 0.9995 <= share < 1:
        return f"{math.floor(share * 1e5) / 1e3} %"
    return f"{digits(share * 100)} %"


def bytes_text(count: float) -> str:
    """Return a size in the units of the configuration."""
    return _in_units(count, _SIZES) if count >= 1023.5 else f"{count:.0f} B"


def count_text(number: int, noun: str) -> str:
    """Return a number with its noun: `1 record`, `2 records`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def counts_text(counts: Iterable[tuple[str, int]]) -> str:
    """Return numbers with their nouns: `3 redacted, 1 truncated`."""
    return ", ".join(f"{number} {what}" for what, number in counts)


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Return the last `width` values as bars from 0 to their most; a space where there is none."""
    shown = values[-width:]
    most = max((value for value in shown if value is not None), default=0.0) or 1.0
    return "".join(" " if value is None else _BARS[min(int(value / most * 8), 7)] for value in shown)
