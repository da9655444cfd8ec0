from __future__ import annotations

import base64
import html
import json
import re
from urllib.parse import quote, quote_plus

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.config import Http, Secret, Stdio, display_url
from mcpmux.config.auth import OAuth
from mcpmux.config.expansion import HIDDEN_LENGTH, MASK, make_hide
from mcpmux.config.model import secrets_of


def test_secret_is_shown_only_by_reveal():
    secret = Secret("hunter2")
    assert secret.reveal() == "hunter2"
    for shown in (str(secret), repr(secret), f"{secret}", f"{secret!r}", repr({"a": [secret]})):
        assert "hunter2" not in shown
        assert "***" in shown


def test_secrets_compare_by_what_they_hold():
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a")}) == 1


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://example.com/mcp", "https://example.com/mcp"),
        ("http://127.0.0.1:8484", "http://127.0.0.1:8484"),
        ("https://user:hunter2@example.com:8443/mcp", "https://***@example.com:8443/mcp"),
        ("https://example.com/mcp?key=hunter2&other=hunter2", "https://example.com/mcp?***"),
        ("https://example.com/mcp?hunter2", "https://example.com/mcp?***"),
        ("http://[hunter2", "***"),
    ],
)
def test_url_is_shown_without_user_and_query(url, shown):
    assert display_url(url) == shown
    assert Http(url).display == shown
    assert repr(Http(url)).startswith(f"Http(url={shown}, ")


def test_targets_show_no_secret():
    stdio = Stdio("npx", ("--token", "hunter2"), {"TOKEN": Secret("hunter2")})
    http = Http("https://hunter2@example.com/", {"Authorization": Secret("hunter2")})
    for target in (stdio, http):
        assert "hunter2" not in repr(target) + target.display
        assert "hunter2" not in repr(attrs.asdict(target)["env" if target is stdio else "headers"])
    assert stdio.display == "npx …"
    assert Stdio("npx").display == "npx"


def test_target_keeps_its_own_copy_of_the_environment():
    env = {"A": Secret("1")}
    target = Stdio("npx", env=env)
    env["B"] = Secret("2")
    assert set(target.env) == {"A"}
    with pytest.raises(TypeError):
        target.env["C"] = Secret("3")  # type: ignore[index]  # what is tested is that it fails


SPELLINGS = [
    str,
    lambda text: json.dumps(text)[1:-1],
    html.escape,
    quote,
    quote_plus,
    lambda text: re.sub("%..", lambda escape: escape[0].lower(), quote(text, safe="")),
    lambda text: base64.b64encode(text.encode()).decode(),
]


@given(st.lists(st.text(min_size=HIDDEN_LENGTH), min_size=1), st.sampled_from(SPELLINGS), st.text())
def test_no_known_value_is_left_in_a_text(values, spell, around):
    hidden = make_hide(values)(f"{around} {spell(values[0])} {around}")
    assert MASK in hidden
    assert spell(values[0]) not in hidden.replace(MASK, "\0")


def test_short_values_are_words_of_any_text():
    assert make_hide(["warn", ""])("a warning") == "a warning"


def test_secrets_of_a_server_are_what_it_is_given():
    oauth = OAuth(client_id="me", client_secret=Secret("client-secret"), issuer="https://as.example")
    headers = {"Authorization": Secret("Bearer tok-123456"), "X-Key": Secret("key-123456")}
    proxy = Secret("http://me:proxy-pass@proxy:3128")
    target = Http("https://user:url-pass@h/mcp?key=query-key", headers, oauth=oauth, proxy=proxy)
    secrets = set(secrets_of(target))
    assert secrets >= {"tok-123456", "key-123456", "url-pass", "query-key", "proxy-pass", "client-secret"}
    basic = Secret("Basic " + base64.b64encode(b"ann:basic-pass").decode())
    cookies = Secret("a=first-cookie; b=second-cookie")
    target = Http("https://h/mcp", {"authorization": basic, "COOKIE": cookies})
    assert set(secrets_of(target)) >= {"basic-pass", "ann:basic-pass", "first-cookie", "second-cookie"}
    assert list(secrets_of(Stdio("x", env={"A": Secret("a-secret")}))) == ["a-secret"]
