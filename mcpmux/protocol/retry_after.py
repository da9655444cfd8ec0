"""The `Retry-After` header field: for how long a server wants to be left alone.

Source: RFC 9110 section 10.2.3 (a number of seconds, or a date).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

LONGEST_SECONDS = 24 * 3600.0  # a longer wish is told as a day; nobody waits so long for an answer


def read_retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds from `now` (aware), from 0 to a day; None for no value, or one that says nothing."""
    if value is None:
        return None
    value = value.strip()
    if re.fullmatch(r"[0-9]{1,10}", value):
        return min(float(value), LONGEST_SECONDS)
    from email.utils import parsedate_to_datetime  # not at the top: it is large, and few servers say a date

    try:
        then = parsedate_to_datetime(value)
    except ValueError:
        return None
    if then.tzinfo is None:  # "-0000" is an unknown zone; of an HTTP date only GMT can be meant
        then = then.replace(tzinfo=UTC)
    return min(max((then - now).total_seconds(), 0.0), LONGEST_SECONDS)
