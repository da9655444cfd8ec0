from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.protocol.headers import LONGEST_SECONDS, read_retry_after

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0),
        ("120", 120),
        (" 7 ", 7),
        ("9999999999", LONGEST_SECONDS),
        ("Sat, 21 Nov 2026 12:00:30 GMT", 30),
        ("Sat, 21 Nov 2026 12:00:30 -0000", 30),
        ("Sat, 21 Nov 2026 11:00:00 GMT", 0),
        ("Sat, 21 Nov 2099 11:00:00 GMT", LONGEST_SECONDS),
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("Sat, 99 Nov 2026 12:00:30 GMT", None),
    ],
)
def test_a_number_of_seconds_or_a_date_is_a_wait_from_now(value, seconds):
    assert read_retry_after(value, NOW) == seconds


@given(st.text())
def test_any_text_is_a_bounded_wait_or_none(value):
    seconds = read_retry_after(value, NOW)
    assert seconds is None or 0 <= seconds <= LONGEST_SECONDS
