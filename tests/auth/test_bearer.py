from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.auth.bearer import (
    MOST_CHARACTERS,
    BadToken,
    Challenge,
    read_bearer,
    read_challenge,
    write_challenge,
)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_is_in_any_case(scheme: str):
    assert read_bearer({"authorization": f"{scheme} abc.DEF-_~+/9=="}) == "abc.DEF-_~+/9=="


def test_without_the_header_nothing_is_shown():
    assert read_bearer({"x-authorization": "Bearer abc"}) is None


@pytest.mark.parametrize(
    "value",
    [
        *("", "Bearer", "Bearer ", "abc", "Basic YTpi", "Bearer a b", "Bearer a,b", "Bearer é", "Bearer =a"),
        *("Bearer\tabc", "Bearer a, Bearer b", "Bearer " + "x" * (MOST_CHARACTERS + 1)),
    ],
)
def test_anything_else_is_refused(value: str):
    with pytest.raises(BadToken):
        read_bearer({"authorization": value})


@given(st.text(max_size=200))
def test_any_header_is_a_token_or_refused(text: str):
    try:
        token = read_bearer({"authorization": text})
    except BadToken:
        return
    assert token
    assert token.isascii()
    assert token in text


def test_a_challenge_says_what_is_missing():
    """RFC 6750 section 3, RFC 9728 section 5.1."""
    url = "https://mux.example.com/.well-known/oauth-protected-resource/mcp"
    assert write_challenge(url, ["b", "a"], "insufficient_scope", "more") == (
        f'Bearer error="insufficient_scope", error_description="more", scope="a b", resource_metadata="{url}"'
    )
    assert write_challenge(None) == 'Bearer realm="mcpmux"'


def test_a_challenge_cannot_be_broken_by_what_stands_in_it():
    assert write_challenge(None, (), "x", 'a"b\\c\r\nd\u2028é') == (
        'Bearer realm="mcpmux", error="x", error_description="a?b?c??d??"'
    )


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
    text = write_challenge("https://x/y", ["b", "a"], "insufficient_scope", "no")
    assert read_challenge(text) == Challenge("insufficient_scope", ("a", "b"), "https://x/y", "no")


@given(st.text())
def test_nothing_is_too_strange(value: str) -> None:
    challenge = read_challenge(f"Bearer {value}")
    assert len(challenge.scopes) <= 64
