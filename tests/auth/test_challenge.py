"""Reading WWW-Authenticate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.auth.bearer import Challenge, read_challenge, write_challenge

CASES = [
    ("", Challenge()),
    ("Basic realm=x", Challenge()),
    ('Bearer realm="mcp"', Challenge()),
    ('Bearer resource_metadata="https://x/y"', Challenge(metadata_url="https://x/y")),
    ("bearer scope=a", Challenge(scopes=("a",))),
    ('Bearer error="insufficient_scope", scope="a b a"', Challenge("insufficient_scope", ("a", "b"))),
    ('Basic realm="a, Bearer scope=x", Bearer scope="b"', Challenge(scopes=("b",))),
    ('Bearer scope="a", Basic scope="b"', Challenge(scopes=("a",))),
    ('Bearer scope="a", Bearer scope="b"', Challenge(scopes=("a",))),
    (r'Bearer error="a\"b\\c"', Challenge(error=r"a\"b\c".replace("\\", "", 1))),
    ('Bearer scope="unclosed', Challenge()),
    ('Bearer scope="a\x7f b"', Challenge(scopes=("b",))),
]


@pytest.mark.parametrize(("value", "read"), CASES)
def test_challenges_are_read(value: str, read: Challenge) -> None:
    assert read_challenge(value) == read


def test_what_mcpmux_says_it_reads() -> None:
    said = write_challenge("https://x/y", ["b", "a"], "insufficient_scope", "no")
    assert read_challenge(said) == Challenge("insufficient_scope", ("a", "b"), "https://x/y")


@given(st.text())
def test_nothing_is_too_strange(value: str) -> None:
    found = read_challenge(f"Bearer {value}")
    assert len(found.scopes) <= 64
