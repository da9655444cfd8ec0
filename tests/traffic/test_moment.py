from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.traffic.record import MICROS, micros_of, rfc3339, second_of


@given(st.integers(0, 4_000_000_000 * MICROS))
def test_a_moment_is_written_with_all_of_its_microseconds(micros: int):
    text = rfc3339(micros)
    assert datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC) == timedelta(microseconds=micros)
    assert len(text) == len("2026-11-21T12:00:00.000000Z")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "1970-01-01T00:00:00.000000Z"),
        (1_795_262_400.5, "2026-11-21T12:00:00.500000Z"),
        (1_795_262_399.9999999, "2026-11-21T12:00:00.000000Z"),
    ],
)
def test_seconds_are_rounded_to_the_nearest_microsecond(seconds: float, said: str):
    assert rfc3339(micros_of(seconds)) == said


def test_few_seconds_are_remembered():
    for second in range(1000):
        second_of(second)
    assert second_of.cache_info().currsize < 100
