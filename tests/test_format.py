"""Numbers as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.format import bytes_text, rate_text, share_text, sparkline, time_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (1e-6, "1.00 µs"),
        (0.0009999, "1.00 ms"),
        (0.000999, "999 µs"),
        (0.0123456, "12.3 ms"),
        (0.999, "999 ms"),
        (0.9999, "1.00 s"),
        (59.94, "59.9 s"),
        (3600, "60.0 min"),
        (0.0, "0 µs"),
    ],
)
def test_a_duration_has_three_digits_and_its_unit(seconds: float | None, text: str):
    assert time_text(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "-"),
        (0, "0 %"),
        (0.0000001, "<0.001 %"),
        (0.001, "0.100 %"),
        (0.25, "25.0 %"),
        (0.99999, "99.999 %"),
        (0.9999999, "99.999 %"),
        (1, "100 %"),
    ],
)
def test_a_share_never_looks_like_nothing_or_all_when_it_is_not(share: float | None, text: str):
    assert share_text(share) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (5 * 2**40, "5,120 GiB")]
)
def test_a_size_has_its_unit(count: float, text: str):
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(0, "0/s"), (0.5, "0.500/s"), (99.96, "100/s"), (12345.6, "12,346/s")]
)
def test_a_rate_is_per_second(rate: float, text: str):
    assert rate_text(rate) == text


@given(st.floats(1e-6, 3600))
def test_a_duration_as_told_is_within_half_a_percent(seconds: float):
    number, unit = time_text(seconds).split()
    value = float(number.replace(",", "")) * {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}[unit]
    assert value == pytest.approx(seconds, rel=0.0051)


@pytest.mark.parametrize(
    ("values", "width", "bars"),
    [([], 5, ""), ([0, 0], 5, "▁▁"), ([0, 5, 10], 5, "▁▅█"), ([9, 9, 1, None, 8], 3, "▂ █")],
)
def test_a_sparkline_shows_the_last_values_from_nothing_to_the_most(values: list, width: int, bars: str):
    assert sparkline(values, width) == bars
