"""Dates on the wire, beside the standard library's."""

from __future__ import annotations

from email.utils import formatdate

from hypothesis import given
from hypothesis import strategies as st

from mcpmux.transports.http.message import http_date


def test_the_example_of_the_specification() -> None:
    assert http_date(784111777) == "Sun, 06 Nov 1994 08:49:37 GMT"


@given(st.floats(0, 253402300799))
def test_a_date_is_what_the_standard_library_says(seconds: float) -> None:
    assert http_date(seconds) == formatdate(seconds, usegmt=True)
