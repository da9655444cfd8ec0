"""The laws of names in rules: an `allow` fits what its text names and nothing else, a `deny` all of it."""

from __future__ import annotations

import itertools
from functools import lru_cache
from itertools import product

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from mcpmux.config import AccessRule
from mcpmux.config.report import CANDIDATE_CHARACTERS, CANDIDATES_LIMIT, closest
from mcpmux.config.views import PROMPTS, RESOURCES, TOOLS, Override, Selector, View, ViewOverride
from mcpmux.mux.naming import Naming, naming_of
from mcpmux.mux.pattern import Target, matches, parse_glob, rests_of
from mcpmux.mux.policy import SOME, Policy, policy_of
from mcpmux.mux.rewrite import Namespace
from mcpmux.mux.view import Selection, hints_of
from mcpmux.protocol import method as m
from mcpmux.protocol.principal import ANYONE
from tests.examples import examples
from tests.runtime.world import upstream

few = settings(max_examples=examples(100))  # each tries every upstream and name

LONG = "a" * 60
UPSTREAMS = [
    upstream("notes", overrides=(Override(name="add", rename="put"),)),
    upstream("web", prefix="w"),
    upstream("bare", prefix="", overrides=(Override(name="look", rename="find"),)),
]
VIEWS = {"swap": View(overrides=(ViewOverride(upstream="notes", name="del", rename="add"),))}
NAMING = naming_of(UPSTREAMS, VIEWS, 51)
NAMES = [
    *("add", "put", "del", "look", "find", "x", "ad", f"{LONG}1", f"{LONG}2"),
    *("notes__add", "notes__x", "w__x", "web__x", "bare__look", "w__notes__x", "__x"),
]
URIS = ["note:///x", "note:///x/y", "notes+note:///x", "w+note:///x", "x:y", "ui://x/y", "ui://notes/x"]
EXPOSED = sorted({space.expose_name(name) for space in NAMING.namespace.spaces.values() for name in NAMES})
EXPOSED_LONG = NAMING.namespace.spaces["notes"].expose_name(f"{LONG}1")
EXPOSED_URIS = sorted({space.expose_uri(uri) for space in NAMING.namespace.spaces.values() for uri in URIS})


def with_stars(texts: list[str]) -> st.SearchStrategy[str]:
    """Return texts in which any part may be a star."""

    def starred(text: str, start: int, length: int, is_glob: bool) -> str:
        at = start % (len(text) + 1)
        return text[:at] + "*" + text[at + length :] if is_glob else text

    return st.builds(
        starred, st.sampled_from(texts), st.integers(0, 80), st.integers(0, 9), st.booleans()
    ).filter(bool)


names = with_stars([*NAMES, *EXPOSED])
uris = with_stars([*URIS, *EXPOSED_URIS])
views = st.sampled_from(["", "swap", "swap?tools=x"])
among = st.sampled_from([(), ("notes",), ("*",), ("web", "bare"), ("n*",)])


def shown(upstream_name: str, own: str, view: str) -> str | None:
    """Return the whole name under which clients of a view see something; None when they do not see it."""
    overrides, space = NAMING.overrides.get(view.partition("?")[0]), NAMING.namespace.spaces[upstream_name]
    if overrides is None:
        return space.expose_name(own)
    if not overrides.is_shown(upstream_name, TOOLS, own):
        return None
    return space.expose_name(overrides.shown_name(upstream_name, TOOLS, own))


def reached(name: str, view: str) -> tuple[str, str] | None:
    """Return the upstream and own name that a call of `name` reaches."""
    owner = NAMING.namespace.resolve_name(name)
    for own in NAMES:
        if owner is not None and shown(owner[0], own, view) == name:
            return owner[0], own
    return None


@lru_cache(256)
def rule(effect: str, text: str, of: tuple[str, ...] = ()) -> Policy:
    """Return a policy of one rule; for a `deny`, with another one that allows everything."""
    everything = [AccessRule(effect="allow")] if effect == "deny" else []
    policy = policy_of([*everything, AccessRule(effect=effect, targets=(text,), upstreams=of)], NAMING)
    assert policy is not None
    return policy


def allows(policy: Policy, of: str, method: str, own: str, view: str = "") -> bool:
    who = ANYONE.within(view)
    allowed = policy.decide(who, of, method, own).allowed
    listed = m.TOOLS_LIST if method == m.TOOLS_CALL else m.RESOURCES_LIST
    if method in (m.TOOLS_CALL, m.RESOURCES_READ):
        assert policy.decide(who, of, listed, own).allowed is allowed  # lists show what may be used
    assert policy.decide(who, of, method, SOME).allowed or not allowed
    return allowed


def is_in(text: str, *spellings: str | None) -> bool:
    return any(matches(parse_glob(text), spelling) for spelling in spellings if spelling is not None)


@few
@given(names, views)
def test_a_denied_name_cannot_be_called_in_either_spelling(text, view):
    for of, own in product(NAMING.namespace.spaces, NAMES):
        if is_in(text, own, shown(of, own, view)):
            assert not allows(rule("deny", text), of, m.TOOLS_CALL, own, view), (of, own)


@few
@given(st.sampled_from([*NAMES, *EXPOSED]))
def test_a_denied_name_without_a_star_denies_nothing_else(text):
    for of, own in product(NAMING.namespace.spaces, NAMES):
        renames = {overrides.shown_name(of, TOOLS, own) for overrides in NAMING.overrides.values()} | {own}
        joint = f"{NAMING.namespace.marks[of]}__"
        spellings = {*renames, *(joint + rename for rename in renames)}
        spellings |= {NAMING.namespace.spaces[of].expose_name(rename) for rename in renames}
        assert allows(rule("deny", text), of, m.TOOLS_CALL, own) is (text not in spellings)


@few
@given(uris, st.sampled_from([m.RESOURCES_READ, m.RESOURCES_SUBSCRIBE]))
def test_a_denied_uri_cannot_be_read_in_either_spelling(text, method):
    for of, own in product(NAMING.namespace.spaces, URIS):
        if is_in(text, own, NAMING.namespace.spaces[of].expose_uri(own)):
            assert not allows(rule("deny", text), of, method, own), (of, own)
            for dodge in (own.replace(":///", ":///./"), own.replace("x", "%78")):
                if ":///" in own and "*" not in text:
                    assert not allows(rule("deny", text), of, method, dodge), dodge


@few
@given(st.sampled_from(EXPOSED), views)
def test_an_allowed_prefixed_name_allows_what_its_call_reaches(text, view):
    assume(NAMING.owner_of(text, TOOLS) is not None)
    allowed = {
        (of, own)
        for of, own in product(NAMING.namespace.spaces, NAMES)
        if allows(rule("allow", text), of, m.TOOLS_CALL, own, view)
    }
    expected = reached(text, view)
    assert allowed == ({expected} if expected is not None else set())


@pytest.mark.parametrize("text", [f"notes__{LONG}1", "notes__*1", EXPOSED_LONG])
def test_a_shortened_name_is_allowed_in_both_spellings(text):
    assert allows(rule("allow", text), "notes", m.TOOLS_CALL, f"{LONG}1")


@few
@given(st.sampled_from(EXPOSED_URIS))
def test_an_allowed_uri_with_a_prefix_allows_what_reading_it_reaches(text):
    expected = NAMING.namespace.resolve_uri(text)
    assume(expected is not None and expected[1] != text)
    for of, own in product(NAMING.namespace.spaces, URIS):
        assert allows(rule("allow", text), of, m.RESOURCES_READ, own) is ((of, own) == expected)


@few
@given(names, views, among)
def test_an_allow_fits_nothing_beyond_its_one_reading(text, view, of_these):
    owner = NAMING.owner_of(text, TOOLS, [parse_glob(glob) for glob in of_these])
    for of, own in product(NAMING.namespace.spaces, NAMES):
        if allows(rule("allow", text, of_these), of, m.TOOLS_CALL, own, view):
            assert not of_these or is_in(of, *of_these) or any(is_in(pattern, of) for pattern in of_these)
            if owner is not None:
                assert of == owner
                overrides = NAMING.overrides[view.partition("?")[0]]
                whole = f"{NAMING.namespace.marks[of]}__{overrides.shown_name(of, TOOLS, own)}"
                assert is_in(text, whole, shown(of, own, view))
            else:
                assert NAMING.owner_of(text, RESOURCES, [parse_glob(glob) for glob in of_these]) is None
                assert is_in(text, own, shown(of, own, view) if of == "bare" else None)


@few
@given(names, uris, views, among)
def test_what_a_text_allows_the_same_text_denies(name, uri, view, of_these):
    for method, text, things in ((m.TOOLS_CALL, name, NAMES), (m.RESOURCES_READ, uri, URIS)):
        for of, own in product(NAMING.namespace.spaces, things):
            if allows(rule("allow", text, of_these), of, method, own, view):
                assert not allows(rule("deny", text, of_these), of, method, own, view)


@few
@given(names, st.sampled_from(["", "swap"]), st.sampled_from([None, "notes", "*"]))
def test_views_and_rules_read_a_name_alike(text, view, of_this):
    selector = Selector(upstream=of_this, kind=TOOLS, name=text)
    of_these = () if of_this is None else (of_this,)
    included = Selection("v", View(include=(selector,)), naming=NAMING, name=view)
    excluded = Selection("v", View(exclude=(selector,)), naming=NAMING, name=view)
    for of, own in product(NAMING.namespace.spaces, NAMES):
        may_be_called = allows(rule("allow", text, of_these), of, m.TOOLS_CALL, own, view)
        assert included.decide(ANYONE, of, m.TOOLS_CALL, own).allowed is may_be_called
        assert included.decide(ANYONE, of, m.TOOLS_LIST, own).allowed is may_be_called
        if not allows(rule("allow", text, of_these), of, m.TOOLS_CALL, own, view):
            continue
        assert not excluded.decide(ANYONE, of, m.TOOLS_CALL, own).allowed


@given(st.text("ab*", max_size=8), st.text("ab", max_size=4), st.text("ab", max_size=5))
@example("a*b", "ab", "bb")  # the beginning ends inside of what the star stands for
def test_the_rest_of_a_glob_fits_the_rest_of_a_text(glob, beginning, rest):
    is_left = any(matches(parse_glob(part), rest) for part in rests_of(glob, beginning))
    assert is_left is matches(parse_glob(glob), beginning + rest)


@pytest.mark.parametrize("text", ["add", "notes__put", "put", "notes__add"])
def test_a_renamed_tool_is_denied_by_both_names(text):
    assert not allows(rule("deny", text), "notes", m.TOOLS_CALL, "add")


def test_an_allowed_uri_allows_no_tool_of_that_name():
    for text in ("notes+note:///x", "notes+*"):
        for of in NAMING.namespace.spaces:
            assert not allows(rule("allow", text), of, m.TOOLS_CALL, "notes+note:///x")
            assert not allows(rule("deny", text), of, m.TOOLS_CALL, "notes+note:///x")


def test_a_shortened_name_names_one_tool():
    long, short = f"{LONG}1", NAMING.namespace.spaces["web"].expose_name(f"{LONG}1")
    assert len(short) == 51
    for effect in ("allow", "deny"):
        is_allowed = effect == "allow"
        assert allows(rule(effect, short), "web", m.TOOLS_CALL, long) is is_allowed
        assert allows(rule(effect, short), "web", m.TOOLS_CALL, f"{LONG}2") is not is_allowed
        assert allows(rule(effect, short), "notes", m.TOOLS_CALL, long) is not is_allowed


@pytest.mark.parametrize(
    ("text", "is_denied"), [("w*", True), ("*__x", True), ("w__*", True), ("web*", False), ("*b__x", False)]
)
def test_a_star_stands_for_a_prefix_in_what_denies_only(text, is_denied):
    assert allows(rule("deny", text), "web", m.TOOLS_CALL, "x") is not is_denied
    # In a rule that names its upstream, a star never stands for a prefix.
    assert allows(rule("deny", text, ("web",)), "web", m.TOOLS_CALL, "x") is not (text == "w__*")
    assert allows(rule("allow", text), "web", m.TOOLS_CALL, "x") is (text == "w__*")


def test_a_foreign_prefix_is_part_of_the_name():
    assert allows(rule("allow", "notes__x", ("web",)), "web", m.TOOLS_CALL, "notes__x")
    assert not allows(rule("allow", "notes__x", ("notes", "web")), "web", m.TOOLS_CALL, "notes__x")


def test_a_prefixed_allow_shows_no_other_upstream():
    policy = rule("allow", "notes__x")
    assert policy.decide(ANYONE, "notes", m.TOOLS_CALL, SOME).allowed
    assert not any(
        policy.decide(ANYONE, "web", method, SOME).allowed for method in (m.TOOLS_CALL, m.PROMPTS_GET)
    )


@pytest.mark.parametrize("name", ["w+note:///{x}", "note:///{x}"])
def test_a_template_is_selected_in_either_spelling_with_what_it_stands_for(name):
    view = View(include=(Selector(kind="templates", name=name),))
    chosen = Selection("v", view, naming=NAMING, name="")
    assert chosen.decide(ANYONE, "web", m.TEMPLATES_LIST, "note:///{x}").allowed
    assert chosen.decide(ANYONE, "web", m.RESOURCES_READ, "note:///1").allowed
    template = Target("note:///{x}", is_template=True)
    assert chosen.decide(ANYONE, "web", m.COMPLETE, template).allowed
    assert chosen.decide(ANYONE, "notes", m.TEMPLATES_LIST, "note:///{x}").allowed is (name == "note:///{x}")


@pytest.mark.parametrize("text", ["w+note:///x", "note:///x", "*+note:///x"])
def test_a_template_that_may_lead_to_denied_uris_is_not_completed(text):
    policy = rule("deny", text)

    def is_completed(template: str) -> bool:
        return policy.decide(ANYONE, "web", m.COMPLETE, Target(template, is_template=True)).allowed

    assert not is_completed("note:///{x}")
    assert is_completed("memo:x?{x}") is (text[0] != "*")


def test_a_prefixed_selector_with_hints_selects_tools_with_these_hints():
    chosen = Selection("v", View(include=(Selector(name="w__*", readOnlyHint=True),)), naming=NAMING, name="")
    for of in ("web", "notes"):
        chosen.learn(of, {"x": hints_of({"readOnlyHint": True}), "look": hints_of({})})
    assert chosen.decide(ANYONE, "web", m.TOOLS_LIST, "x").allowed
    assert not chosen.decide(ANYONE, "web", m.TOOLS_LIST, "look").allowed
    assert not chosen.decide(ANYONE, "notes", m.TOOLS_LIST, "x").allowed


def test_the_only_upstream_without_a_prefix_has_its_own_names():
    only = upstream("only", prefix="", overrides=(Override(name="look", rename="find"),))
    naming = naming_of([only], {}, 51)
    for text in ("look", "find"):
        policy = policy_of([AccessRule(effect="allow"), AccessRule(effect="deny", targets=(text,))], naming)
        assert policy is not None and not policy.decide(ANYONE, "only", m.TOOLS_CALL, "look").allowed
    assert naming.owner_of("only__look", TOOLS) is None


def test_an_override_can_name_its_tool_as_clients_see_it():
    docs = upstream("docs", overrides=(Override(name="docs__search", rename="find"),))
    overrides = naming_of([docs, upstream("web")], {}, 51).overrides[""]
    assert overrides.shown_name("docs", TOOLS, "search") == "find"


@pytest.mark.parametrize(
    ("text", "kind", "nearest"),
    [
        ("notes__pot", TOOLS, "notes__put"),
        ("notes*", TOOLS, "notes__*"),
        ("w_*", TOOLS, "w__*"),
        ("note:///z", RESOURCES, "note:///x"),
        ("notes*", RESOURCES, "notes+*"),
        ("qqqqqq", PROMPTS, None),
    ],
)
def test_the_nearest_name_is_in_the_spelling_that_was_meant(text, kind, nearest):
    names = {"notes": {TOOLS: ["add", "del"], RESOURCES: ["note:///x"]}, "web": {TOOLS: ["y"]}}
    assert NAMING.nearest(text, [kind], names) == nearest


def test_a_nearest_name_is_looked_for_among_the_first_names():
    first = [f"other-{number}" for number in range(CANDIDATES_LIMIT - 1)]
    listed = [*first, "search", "searching"]
    assert NAMING.nearest("web__serch", [TOOLS], {"web": {TOOLS: listed}}, with_own=False) == "w__search"
    assert NAMING.nearest("searchin", [TOOLS], {"web": {TOOLS: ["x", *listed]}}, with_own=False) is None
    endless = itertools.count()
    near = closest("search", map(str, endless))
    assert (near, next(endless)) == (None, CANDIDATES_LIMIT)
    assert closest("a" * 1000, ["a" * (CANDIDATE_CHARACTERS + 1)]) is None


def test_namings_are_equal_when_nothing_is_named_otherwise():
    assert naming_of(UPSTREAMS, VIEWS, 51) == NAMING
    assert naming_of(UPSTREAMS, VIEWS, 64) != NAMING
    assert Naming(Namespace({"notes": "notes"})) != NAMING
