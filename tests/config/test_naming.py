from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.config import Stdio, Upstream
from mcpmux.config.scalars import derive_name, derive_names, is_name

NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,31}", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("docs", "docs"),
        ("My Server", "my-server"),
        ("GitHub", "github"),
        ("snake_case", "snake-case"),
        ("@scope/package", "scope-package"),
        ("api.example.com", "api.example.com"),
        ("127.0.0.1", "server-127.0.0.1"),
        ("日本", "server"),
        ("", "server"),
        ("a" * 40, "a" * 32),
        ("A" * 31 + " b", "a" * 31),
    ],
)
def test_name_resembles_the_text(text, name):
    assert derive_name(text) == name


@given(st.text())
def test_derived_name_is_a_name(text):
    assert is_name(derive_name(text))


@given(st.lists(st.text(alphabet="aAbB -.2", max_size=4) | NAMES | st.text()))
def test_derived_names_are_names_and_all_different(texts):
    names = derive_names(texts)
    assert len(names) == len(texts) == len(set(names))
    assert all(map(is_name, names))


@given(st.lists(NAMES | st.text(), unique=True))
def test_what_is_a_name_already_is_kept(texts):
    for text, name in zip(texts, derive_names(texts), strict=True):
        assert name == text or not is_name(text) or "." in text


@given(st.lists(st.text(alphabet="aA-. ", max_size=4) | NAMES))
def test_default_prefixes_are_all_different_and_have_no_dots(texts):
    prefixes = [Upstream(name=name, target=Stdio("x")).prefix for name in derive_names(texts)]
    assert len(prefixes) == len(set(prefixes))
    assert not any("." in prefix for prefix in prefixes)


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["My Server", "my server", "my_server"], ["my-server", "my-server-2", "my-server-3"]),
        (["Docs", "docs"], ["docs-2", "docs"]),
        (["docs", "docs"], ["docs", "docs-2"]),
        (["a.b", "a-b"], ["a.b-2", "a-b"]),
        (["A" * 40, "A" * 41], ["a" * 32, "a" * 30 + "-2"]),
    ],
)
def test_collisions_are_numbered(texts, names):
    assert derive_names(texts) == names
