from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.config.expansion import expand
from mcpmux.config.report import InvalidValue

ENVIRON = {"HOME": "/home/me", "EMPTY": "", "ODD": "${HOME}"}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("${HOME}/docs", "/home/me/docs"),
        ("${env:HOME}/docs", "/home/me/docs"),
        ("${HOME}${HOME}", "/home/me/home/me"),
        ("${EMPTY}", ""),
        ("${EMPTY:-x}", "x"),
        ("${UNSET:-x y}", "x y"),
        ("${UNSET:-}", ""),
        ("${env:UNSET:-x}", "x"),
        ("${UNSET:-https://a.example/?b=c}", "https://a.example/?b=c"),
        ("$${HOME}", "${HOME}"),
        ("$${", "${"),
        ("$HOME and pa$$word", "$HOME and pa$$word"),
        ("${ODD}", "${HOME}"),
    ],
)
def test_references_are_replaced(text, expanded):
    assert expand(text, ENVIRON) == expanded


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${UNSET}", "`UNSET` is not set"),
        ("${env:UNSET}", "`UNSET` is not set"),
        ("${HOME", "no closing"),
        ("${}", "expected `${VARIABLE}`"),
        ("${a b}", "expected `${VARIABLE}`"),
        ("${UNSET-x}", "expected `${VARIABLE}`"),
        ("${input:token}", "asked for by the host app"),
        ("${UNSET:-${HOME}}", "the default of `UNSET` cannot hold another"),
    ],
)
def test_reference_without_a_value_is_a_mistake(text, said):
    with pytest.raises(InvalidValue) as caught:
        expand(text, ENVIRON)
    assert said in str(caught.value)


def test_every_unset_variable_of_a_text_is_named():
    with pytest.raises(InvalidValue) as caught:
        expand("${ONE} ${TWO}", {})
    assert "`ONE`" in str(caught.value)
    assert "`TWO`" in str(caught.value)


@given(st.text())
def test_text_without_reference_is_unchanged(text):
    if "${" not in text:
        assert expand(text, {}) == text


@given(st.text(), st.text(), st.text())
def test_value_is_put_in_as_it_is(before, value, after):
    if "$" not in before + after:
        assert expand(f"{before}${{VAR}}{after}", {"VAR": value}) == before + value + after


def test_a_file_is_read_without_the_line_end_behind_it(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(b"\xef\xbb\xbfline 1\n${HOME}\r\n\n")
    assert expand(f"Bearer ${{file:{path}}}!", ENVIRON) == "Bearer line 1\n${HOME}!"


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "no such file"), (b"SECRET\xff", "no UTF-8"), (b"SECRET" * 20_000, "more than 65536 bytes")],
)
def test_a_file_that_cannot_be_used_is_told_without_its_content(tmp_path, content, said):
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidValue, match=said) as caught:
        expand(f"${{file:{path}}}", ENVIRON)
    assert str(path) in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_a_path_holds_no_reference():
    with pytest.raises(InvalidValue, match="cannot hold another"):
        expand("${file:${HOME}/x}", ENVIRON)
