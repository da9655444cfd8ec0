from __future__ import annotations

from mcpmux.protocol import codes

CODES = {
    name: value
    for name, value in vars(codes).items()
    if name.isupper() and isinstance(value, int) and value < 0
}
OWN = {"UPSTREAM_UNAVAILABLE", "UPSTREAM_TIMEOUT", "BUSY", "REFUSED"}


def test_no_two_codes_are_the_same():
    assert len(set(CODES.values())) == len(CODES)


def test_codes_of_our_own_stay_out_of_the_reserved_range():
    """ "Error Codes", 2026-07-28: new codes SHOULD be allocated outside -32768 to -32000."""
    assert {name for name, value in CODES.items() if not -32768 <= value <= -32000} == OWN


def test_modern_codes_are_those_that_the_specification_reserved_for_itself():
    """ "Error Codes", 2026-07-28: -32020 to -32099 are defined by the specification only."""
    assert {value for value in CODES.values() if -32099 <= value <= -32020} - codes.MODERN_ONLY == {
        codes.URL_ELICITATION_REQUIRED  # a leftover of 2025-11-25
    }
