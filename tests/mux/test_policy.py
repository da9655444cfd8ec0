"""The laws of access rules, and the ways to dodge a rule by spelling."""

from __future__ import annotations

import itertools
import posixpath
from itertools import product
from urllib.parse import unquote, urlsplit

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcpmux.config import AccessRule
from mcpmux.lru import Lru
from mcpmux.mux.access import Decisions, InForce, Judge
from mcpmux.mux.pattern import (
    BOTH,
    CUTS,
    Target,
    UriReader,
    is_plain,
    matches,
    matches_template,
    may_meet,
    parse_glob,
    read,
    readings_of,
)
from mcpmux.mux.policy import NO_RULE, SOME, Policy, policy_of
from mcpmux.protocol import method as m
from mcpmux.protocol.principal import ANYONE, Principal
from tests.examples import examples

ALICE = Principal("alice", frozenset({"docs:read"}))
BOB = Principal("bob")
PRINCIPALS = [ANYONE, ALICE, BOB]
UPSTREAMS = ["docs", "web"]
USES = [m.RESOURCES_READ, m.RESOURCES_SUBSCRIBE, m.TOOLS_CALL, m.PROMPTS_GET, m.COMPLETE, "vendor/x"]
WORDS = {
    "read": m.RESOURCES_READ,
    "subscribe": m.RESOURCES_SUBSCRIBE,
    "call": m.TOOLS_CALL,
    "get": m.PROMPTS_GET,
    "complete": m.COMPLETE,
}
few = settings(max_examples=examples(50))  # each tries every principal, upstream and method

PARTS = ["*", "a", "b", "/", "m:", "file:///"]
globs = st.sampled_from(["".join(parts) for size in (1, 2, 3) for parts in product(PARTS, repeat=size)])
texts = st.sampled_from(
    ["".join(parts) for size in (0, 1, 2, 3) for parts in product(PARTS[1:], repeat=size)]
)


def some(*values: str) -> st.SearchStrategy[tuple[str, ...]]:
    return st.sampled_from([(), *((value,) for value in values), values])


rules = st.builds(
    AccessRule,
    effect=st.just("allow"),
    principals=some("*", "alice", "b*"),
    scopes=some("docs:read", "other"),
    upstreams=some("docs", "w*"),
    methods=some("read", "call", "get", "complete", "vendor/*", "*"),
    targets=st.one_of(st.just(()), st.tuples(globs), st.tuples(globs, globs)),
) | st.builds(
    AccessRule,
    effect=st.just("deny"),
    principals=some("alice", "b*").filter(bool) | st.just(("*",)),
    methods=some("read", "call"),
    targets=st.one_of(st.just(()), st.tuples(globs)),
)


def policy(*given_rules: AccessRule) -> Policy:
    made = policy_of(given_rules)
    assert made is not None
    return made


def fits_simply(rule: AccessRule, principal: Principal, upstream: str, method: str) -> bool:
    """Decide by the words of the module, written a second time."""
    named = [WORDS.get(name, name) for name in rule.methods]
    return (
        (not rule.principals or (principal is not ANYONE and is_in(rule.principals, principal.name)))
        and set(rule.scopes) <= principal.scopes
        and (not rule.upstreams or is_in(rule.upstreams, upstream))
        and (not named or is_in(named, method))
    )


def judge(principal: Principal, *rules: Policy) -> Judge:
    return Judge(principal, InForce(rules), Lru(100, 100_000))


def is_in(patterns: tuple[str, ...] | list[str], text: str) -> bool:
    return any(matches(parse_glob(pattern), text) for pattern in patterns)


def test_without_rules_there_is_no_policy():
    assert policy_of([]) is None


@few
@given(st.lists(rules, min_size=1, max_size=5), texts)
def test_a_plain_target_needs_one_allow_and_no_deny(given_rules, target):
    made = policy(*given_rules)
    for principal, upstream, method in product(PRINCIPALS, UPSTREAMS, USES):
        if method in (m.RESOURCES_READ, m.RESOURCES_SUBSCRIBE) and not is_plain(target):
            continue
        fitting = [r for r in given_rules if fits_simply(r, principal, upstream, method)]
        fitting = [r for r in fitting if not r.targets or is_in(r.targets, target)]
        effects = {rule.effect for rule in fitting}
        assert made.decide(principal, upstream, method, target).allowed == (effects == {"allow"})


@few
@given(st.lists(rules, min_size=1, max_size=4), rules, texts | st.none())
def test_one_more_rule_moves_access_one_way_only(given_rules, more, target):
    policy_before, after = policy(*given_rules), policy(*given_rules, more)
    for principal, upstream, method in product(PRINCIPALS, UPSTREAMS, USES):
        was = policy_before.decide(principal, upstream, method, target).allowed
        now = after.decide(principal, upstream, method, target).allowed
        assert (now >= was) if more.effect == "allow" else (now <= was)


@few
@given(st.lists(rules, min_size=1, max_size=4), texts)
def test_what_no_rule_allows_is_denied(given_rules, target):
    made = policy(
        *(attrs.evolve(rule, effect="deny", principals=rule.principals or ("*",)) for rule in given_rules)
    )
    for principal, upstream, method in product(PRINCIPALS, UPSTREAMS, USES):
        assert made.decide(principal, upstream, method, target) == (False, NO_RULE)
        assert not made.decide(principal, upstream, method, SOME).allowed
        assert not judge(principal, made).sees(upstream)


@few
@given(st.lists(rules, min_size=1, max_size=5), texts)
def test_lists_show_exactly_what_may_be_used(given_rules, target):
    made = policy(*given_rules)
    used_by = {m.RESOURCES_LIST: m.RESOURCES_READ, m.TOOLS_LIST: m.TOOLS_CALL, m.PROMPTS_LIST: m.PROMPTS_GET}
    for principal, upstream in product(PRINCIPALS, UPSTREAMS):
        for list_method, use in used_by.items():
            shown = made.decide(principal, upstream, list_method, target).allowed
            assert shown == made.decide(principal, upstream, use, target).allowed
            assert made.decide(principal, upstream, use, SOME).allowed or not shown
            assert shown or not made.decide(principal, upstream, use, None).allowed
            assert judge(principal, made).sees(upstream) or not shown


TEMPLATES = ["file:///{x}", "file:///a/{x}", "m:{x}b", "{+x}", "m:a{?q}", "file:///{a}/{b}", "file:///a"]
expansions = st.lists(st.sampled_from(["file:///", "m:", "a", "b", "/", "..", "%2e"]), max_size=5).map(
    "".join
)


@few
@given(st.lists(rules, min_size=1, max_size=5), st.sampled_from(TEMPLATES), expansions)
def test_whoever_may_read_a_uri_sees_every_template_that_it_comes_from(given_rules, template, uri):
    if not matches_template(template, uri):
        return
    made = policy(*given_rules)
    for principal, upstream in product(PRINCIPALS, UPSTREAMS):
        if made.decide(principal, upstream, m.RESOURCES_READ, uri).allowed:
            assert made.decide(principal, upstream, m.TEMPLATES_LIST, template).allowed


@few
@given(st.lists(rules, min_size=1, max_size=5), st.sampled_from(TEMPLATES), texts)
def test_a_template_is_completed_when_all_its_uris_are_allowed(given_rules, template, uri):
    if not matches_template(template, uri) or not is_plain(uri):
        return
    made = policy(*given_rules)
    for principal, upstream in product(PRINCIPALS, UPSTREAMS):
        if made.decide(principal, upstream, m.COMPLETE, Target(template, is_template=True)).allowed:
            assert made.decide(principal, upstream, m.COMPLETE, uri).allowed


@given(globs, globs, texts)
def test_globs_that_never_meet_have_no_text_in_common(one, other, text):
    one_glob, other_glob = parse_glob(one), parse_glob(other)
    if matches(one_glob, text) and matches(other_glob, text):
        assert may_meet(one_glob, other_glob)
    assert may_meet(one_glob, other_glob) == may_meet(other_glob, one_glob)


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("a*", "b*", False),
        ("*a", "*b", False),
        ("a*", "ab*", True),
        ("ax*", "ab*c", False),
        ("*", "b*", True),
    ],
)
def test_globs_whose_ends_are_at_odds_never_meet(one: str, other: str, meet: bool):
    assert may_meet(parse_glob(one), parse_glob(other)) == meet
    assert may_meet(parse_glob(other), parse_glob(one)) == meet


# Spelling

PIECES = [
    *("public", "secret", "/", "/", "..", ".", "%2e", "%2E%2e", "%252e", "%2f", "%252F", "\\", "%5c", "//"),
    *("a", "?", "#", "%3f", "%23", "\t", "%70ublic", "s%65cret", ";x"),
]
STARTS = [
    *("file:///public/", "file:///secret/", "FILE:///public/", "file://localhost/public/", "file:/public/"),
    *("file:///", "file:////secret/", "file://LOCALHOST/secret/", " file:///secret/", "fi\tle:///secret/"),
]
paths = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


def files_meant(uri: str) -> set[str]:
    """Return the files that servers of many habits would open for a URI."""
    files = set()
    for text in {uri, unquote(uri), unquote(unquote(uri))}:
        try:
            path = urlsplit(text.strip(" \t\r\n")).path
        except ValueError:
            continue
        for opened in (path, unquote(path), unquote(unquote(path)), path.replace("\\", "/")):
            for form in (opened, opened.replace("\\", "/")):
                files.add(posixpath.normpath("/" + form.lstrip("/")))
    if uri.startswith("file://"):
        files.add(posixpath.normpath("/" + uri.removeprefix("file://").lstrip("/")))
    return files


def is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


@settings(max_examples=examples(400))
@given(st.sampled_from(STARTS), paths)
@example("file:///public/", "%2e%2e/secret/a")
@example("file:///public/", "x%3F/%2e%2e/%2e%2e/secret")
@example("file:///public/", ".\t./secret/a")
@example("file:///public/", "a/..%5c..%5csecret")
def test_an_allowed_folder_cannot_be_left(start, path):
    made = policy(AccessRule(effect="allow", targets=("file:///public/*",)))
    uri = start + path
    if made.decide(ANYONE, "docs", m.RESOURCES_READ, uri).allowed:
        assert all(is_below(opened, "/public") for opened in files_meant(uri)), files_meant(uri)


@settings(max_examples=examples(400))
@given(st.sampled_from(STARTS), paths)
@example("file:///public/", "../secret/a")
@example("file:////secret/", "a")
@example("file:///", "%73ecret/a")
@example("file:///", "a//../secret/x")
def test_a_denied_folder_cannot_be_entered(start, path):
    made = policy(
        AccessRule(effect="allow", upstreams=("docs",)),
        AccessRule(effect="deny", targets=("file:///secret/*", "file:///secret")),
    )
    uri = start + path
    if any(is_below(opened, "/secret") for opened in files_meant(uri)):
        assert not made.decide(ANYONE, "docs", m.RESOURCES_READ, uri).allowed


@given(st.sampled_from(STARTS), paths)
def test_a_plain_uri_has_one_reading(start, path):
    uri = start + path
    assert uri in {text for _, text in readings_of(uri)}
    if is_plain(uri):
        ways = itertools.starmap(UriReader, itertools.product(range(3), CUTS, BOTH, BOTH, BOTH))
        assert {read(uri, way) for way in ways} == {uri}


@pytest.mark.parametrize("uri", ["memo:./s", "memo:../s", "memo:..", "memo:s/..", "./s", "memo:///./s"])
def test_a_uri_with_dot_segments_has_several_readings(uri):
    assert not is_plain(uri)


ODD = [
    ("http://h/a", "http://h:80/a"),
    ("http://h/a", "HTTP://H./a"),
    ("http://h/a", "http://user:pw@h/a"),
    ("http://h/a", "http://h/a?x"),
    ("http://h/a", "http://h/%61#y"),
    ("http://h/*", "http://h"),
    ("file:///s", "file:/s"),
    ("memo:s", "MEMO:s"),
    ("memo:s", "memo:x/../s"),
    ("memo:s", "memo:%2573"),
    ("*://h/*", "http://x@h/%2e/a"),
    ("*secret*", "m:%73ecret"),
]


@pytest.mark.parametrize(("glob", "uri"), ODD)
def test_a_denied_uri_is_denied_in_another_spelling(glob, uri):
    made = policy(
        AccessRule(effect="allow", upstreams=("*",)), AccessRule(effect="deny", targets=(glob,), name="no")
    )
    assert made.decide(ANYONE, "docs", m.RESOURCES_READ, uri) == (False, "no")


@given(st.lists(st.tuples(st.sampled_from(["ann", "ben"]), st.sampled_from(STARTS), paths), max_size=8))
def test_a_remembered_decision_is_the_one_of_a_first_look(asked):
    rules = (
        AccessRule(effect="allow", principals=("ann",), targets=("file:///public/*",)),
        AccessRule(effect="allow", principals=("ben",)),
        AccessRule(effect="deny", targets=("file:///secret/*",), name="no"),
    )
    made, decisions = policy(*rules), Decisions(100, 100_000)
    for name, start, path in [*asked, *asked]:
        principal, use = Principal(name), ("docs", m.RESOURCES_READ, start + path)
        remembered = Judge(principal, InForce((made,)), decisions).refused_by(*use)
        assert remembered == judge(principal, policy(*rules)).refused_by(*use)


def test_a_uri_that_is_encoded_without_end_is_not_allowed():
    made = policy(AccessRule(effect="allow", targets=("m:*",)))
    assert made.decide(ANYONE, "docs", m.RESOURCES_READ, "m:%252541").allowed
    assert not made.decide(ANYONE, "docs", m.RESOURCES_READ, "m:%2525252541").allowed


@pytest.mark.parametrize("uri", ["m:%2525252541", "m:" + "a%20" * 100_000])
def test_a_uri_that_is_not_looked_into_is_denied_where_something_is(uri):
    everything = AccessRule(effect="allow")
    assert policy(everything).decide(ANYONE, "docs", m.RESOURCES_READ, uri).allowed
    made = policy(everything, AccessRule(effect="deny", targets=("m:secret",), name="no"))
    assert made.decide(ANYONE, "docs", m.RESOURCES_READ, uri) == (False, "no")
    assert made.decide(ANYONE, "docs", m.RESOURCES_READ, "m:" + "a" * 100_000).allowed


FINE = [
    ("file:///a b/*", "file:///a b/c"),
    ("file:///a%20b/*", "file:///a%20b/c"),
    ("http://h/a*", "http://h/a?b=1#c"),
    ("http://h:8080/*", "http://h:8080/a"),
    ("note://Wel*", "note://Welcome/a/b"),
    ("note://welcome", "note://welcome"),
    ("*", "urn:isbn:1%2F2"),
    ("*.md", "file:///a%C3%A4/b.md"),
    ("HTTP://Example.com/*", "HTTP://Example.com/x"),
    ("search://q?term=*", "search://q?term=x"),
]


@pytest.mark.parametrize(("glob", "uri"), FINE)
def test_a_uri_that_is_written_like_its_rule_is_allowed(glob, uri):
    made = policy(AccessRule(effect="allow", targets=(glob,)))
    assert made.decide(ANYONE, "d", m.RESOURCES_READ, uri).allowed


def test_names_of_tools_are_no_uris():
    made = policy(AccessRule(effect="allow", targets=("a/../b", "50%25")))
    assert made.decide(ANYONE, "d", m.TOOLS_CALL, "a/../b").allowed
    assert made.decide(ANYONE, "d", m.TOOLS_CALL, "50%25").allowed
    assert not made.decide(ANYONE, "d", m.TOOLS_CALL, "b").allowed


def test_an_unknown_target_counts_against_the_use():
    some_only = policy(AccessRule(effect="allow", targets=("a",)))
    assert not some_only.decide(ALICE, "d", m.TOOLS_CALL, None).allowed
    all_but = policy(AccessRule(effect="allow"), AccessRule(effect="deny", targets=("a",)))
    assert not all_but.decide(ALICE, "d", m.TOOLS_CALL, None).allowed
    assert policy(AccessRule(effect="allow")).decide(ALICE, "d", m.TOOLS_CALL, None).allowed


def test_nobody_is_no_principal_by_any_name():
    made = policy(AccessRule(effect="allow", principals=("*",)))
    assert made.decide(BOB, "d", m.TOOLS_CALL, "x").allowed
    assert not made.decide(ANYONE, "d", m.TOOLS_CALL, "x").allowed


def test_the_memory_of_rules_is_bounded(monkeypatch):
    monkeypatch.setattr("mcpmux.mux.policy.MEMORY_LIMIT", 4)
    made = policy(AccessRule(effect="allow", principals=("*",)))
    for number in range(20):
        assert made.decide(Principal(f"p{number}"), "d", m.TOOLS_CALL, "x").allowed
        assert len(made._known) <= 4


def test_a_refused_completion_names_the_rule_that_denies_it():
    made = policy(
        AccessRule(effect="allow", targets=("memo:*",)),
        AccessRule(effect="deny", name="no-welcome", targets=("note:///welcome",)),
    )
    note, file = (Target(text, is_template=True) for text in ("note:///{x}", "file:///{x}"))
    assert made.decide(ALICE, "d", m.COMPLETE, note) == (False, "no-welcome")
    assert made.decide(ALICE, "d", m.COMPLETE, file) == (False, NO_RULE)
