"""Dates as HTTP writes them. Pure; RFC 9110, section 5.6.7.

The standard library has this among all that e-mail needs, which is more than a server's start should pay for.
"""

from __future__ import annotations

from time import gmtime

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def http_date(seconds: float) -> str:
    """`Sun, 06 Nov 1994 08:49:37 GMT` of seconds since 1970."""
    then = gmtime(seconds)
    clock = f"{then.tm_hour:02}:{then.tm_min:02}:{then.tm_sec:02}"
    day = f"{then.tm_mday:02} {_MONTHS[then.tm_mon - 1]} {then.tm_year:04}"
    return f"{_DAYS[then.tm_wday]}, {day} {clock} GMT"
