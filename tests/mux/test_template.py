from __future__ import annotations

import re
import string
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.mux.pattern import MATCH_LIMIT, URI_LIMIT
from mcpmux.mux.pattern import matches_template as matches

Value = str | list[str] | dict[str, str]

RESERVED = ":/?#[]@!$&'()*+,;="
OPERATORS = {  # RFC 6570 appendix A: first, separator, named, what follows a name without a value, reserved
    "": ("", ",", False, "", False),
    "+": ("", ",", False, "", True),
    ".": (".", ".", False, "", False),
    "/": ("/", "/", False, "", False),
    ";": (";", ";", True, "", False),
    "?": ("?", "&", True, "=", False),
    "&": ("&", "&", True, "=", False),
    "#": ("#", ",", False, "", True),
}


def expand(template: str, values: dict[str, Value]) -> str:
    """Expand a template by RFC 6570, level 4, without error handling."""
    return re.sub(r"\{([+./;?&#]?)([^{}]*)\}", lambda found: expand_one(found[1], found[2], values), template)


def expand_one(operator: str, expression: str, values: dict[str, Value]) -> str:
    first, separator, named, nothing, reserved = OPERATORS[operator]
    safe = RESERVED if reserved else ""

    def escape(text: str) -> str:
        return quote(text, safe=safe + "~")

    def pair(name: str, text: str) -> str:
        return text if not named else f"{name}={text}" if text else name + nothing

    parts: list[str] = []
    for spec in expression.split(","):
        name, star, _ = spec.partition("*")
        name, colon, length = name.partition(":")
        value = values.get(name)
        if value is None or value in ([], {}):
            continue
        if isinstance(value, str):
            parts.append(pair(name, escape(value[: int(length)] if colon else value)))
        elif not star:
            flat = value if isinstance(value, list) else [text for item in value.items() for text in item]
            parts.append(pair(name, ",".join(map(escape, flat))))
        elif isinstance(value, list):
            parts += [pair(name, escape(text)) for text in value]
        else:
            parts += [f"{escape(key)}={escape(text)}" for key, text in value.items()]
    return first + separator.join(parts) if parts else ""


names = st.sampled_from(["a", "b", "c"])
words = st.text(min_size=1, max_size=6)
values = st.dictionaries(
    names,
    words | st.lists(words, min_size=1, max_size=3) | st.dictionaries(words, words, min_size=1, max_size=2),
    min_size=3,
)
specs = st.builds(lambda name, modifier: name + modifier, names, st.sampled_from(["", "", "*", ":2"]))
expressions = st.builds(
    lambda operator, inner: "{" + operator + ",".join(inner) + "}",
    st.sampled_from(list(OPERATORS)),
    st.lists(specs, min_size=1, max_size=3),
)
literals = st.text(string.ascii_lowercase + "/:.?&=#-", max_size=6)
templates = st.lists(literals | expressions, max_size=6).map("".join)


@given(templates, values)
def test_every_expansion_of_a_template_matches_it(template: str, values: dict[str, Value]):
    assert matches(template, expand(template, values))


@given(st.text("ab{}/?*+", max_size=12), st.text("ab/?#", max_size=12))
def test_matching_answers_for_any_text(template: str, uri: str):
    assert matches(template, uri) in (True, False)


@given(literals, literals)
def test_a_template_without_expressions_matches_itself_alone(template: str, uri: str):
    assert matches(template, template)
    assert matches(template, uri) is (template == uri)


MATCHING = [
    ("file:///{path}", "file:///a.md"),
    ("file:///{path}", "file:///a%2Fb"),
    ("file:///{+path}", "file:///a/b?c#d"),
    ("file:///{path*}", "file:///a/b"),
    ("test://template/{id}/data", "test://template/123/data"),
    ("db://{table}/{id}", "db://users/1"),
    ("x:{a}{b}", "x:12"),
    ("x:{a}-{b}", "x:1-2-3"),
    ("x:{a}a", "x:aaa"),
    ("x://h{/path*}", "x://h/a/b"),
    ("x://h/f{.ext}", "x://h/f.tar.gz"),
    ("x://h/a{?q,page}", "x://h/a?q=1&page=2"),
    ("x://h/a{?q,page}", "x://h/a"),
    ("x://h/a?fixed=1{&q}", "x://h/a?fixed=1&q=2"),
    ("x://h/a{;p}", "x://h/a;p=1"),
    ("x://h/a{#section}", "x://h/a#b/c?d"),
    ("x://h/a{#section}", "x://h/a"),
    ("{+any}", "memo:x"),
    ("{scheme}:rest", "memo:rest"),
    ("x:{", "x:{"),
    ("x:{a", "x:{a"),
    ("", ""),
]
FOREIGN = [
    ("file:///{path}", "file:///"),
    ("file:///{path}", "file:///a/b"),
    ("file:///{path}", "file:///a?b"),
    ("file:///{path}", "file:///a#b"),
    ("file:///{path}", "FILE:///a"),
    ("file:///{+path}", "file:///"),
    ("test://template/{id}/data", "test://template/123/data/x"),
    ("test://template/{id}/data", "test://template//data"),
    ("x:{a}{b}", "x:1"),
    ("x:{a}-{b}", "x:1-"),
    ("x://h{/path*}", "x://h"),
    ("x://h/f{.ext}", "x://h/f"),
    ("x://h/a{?q}", "x://h/a&q=1"),
    ("x://h/a{?q}", "x://h/a?q=1#b"),
    ("x://h/a{;p}", "x://h/a;p=1/b"),
    ("", "x"),
    ("x", ""),
]


@pytest.mark.parametrize(("template", "uri"), MATCHING)
def test_a_uri_that_can_come_from_a_template_is_claimed(template: str, uri: str):
    assert matches(template, uri)


@pytest.mark.parametrize(("template", "uri"), FOREIGN)
def test_a_uri_that_cannot_come_from_a_template_is_left_alone(template: str, uri: str):
    assert not matches(template, uri)


def test_what_is_too_long_claims_nothing():
    longest = "x:" + "a" * (URI_LIMIT - 2)
    assert matches("x:{a}", longest)
    assert not matches("x:{a}", longest + "a")
    assert matches(longest, longest)
    assert not matches("x:{a}" + "{?b}" * URI_LIMIT, "x:a")


@pytest.mark.parametrize("pieces", [8, 128])
def test_a_match_that_takes_long_is_not_looked_for(pieces: int):
    longest = "x" * (MATCH_LIMIT // pieces)
    assert matches("{+a}" * pieces, longest)
    assert not matches("{+a}" * pieces, f"{longest}x")
