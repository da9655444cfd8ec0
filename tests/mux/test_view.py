"""The laws of views: they select targets, and grant no permissions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpmux.config import AccessRule
from mcpmux.config.views import HINTS, KINDS, Selector, View
from mcpmux.lru import Lru
from mcpmux.mux.access import InForce, Judge
from mcpmux.mux.pattern import Target, matches, parse_glob
from mcpmux.mux.policy import SOME, Rules, policy_of
from mcpmux.mux.view import Selection, hints_of
from mcpmux.protocol import method as m
from mcpmux.protocol.principal import ANYONE, Principal
from tests.examples import examples

UPSTREAMS = ["docs", "web"]
NAMES = ["search", "search-all", "read"]
URIS = ["file:///a/1", "file:///b/1", "memo:x"]
TEMPLATES = ["file:///a/{name}", "file:///{path}", "memo:{x}"]
ITEMS = {
    "tools": (m.TOOLS_LIST, m.TOOLS_CALL, NAMES),
    "prompts": (m.PROMPTS_LIST, m.PROMPTS_GET, NAMES),
    "resources": (m.RESOURCES_LIST, m.RESOURCES_READ, URIS),
    "templates": (m.TEMPLATES_LIST, m.COMPLETE, TEMPLATES),
}
few = settings(max_examples=examples(100))  # each tries every upstream and item

selectors = st.builds(
    Selector,
    upstream=st.sampled_from(["*", "docs", "w*"]),
    kind=st.sampled_from([None, *KINDS]),
    name=st.sampled_from([None, "*", "search*", "read", "file:///a/*", "file:///a/{name}", "memo:*"]),
)
views = st.builds(
    View,
    include=st.lists(selectors, max_size=3).map(tuple),
    exclude=st.lists(selectors, min_size=1, max_size=2).map(tuple),
) | st.builds(View, include=st.lists(selectors, min_size=1, max_size=3).map(tuple))


def selection(*include: Selector, exclude: tuple[Selector, ...] = ()) -> Selection:
    return Selection("views.coding", View(include=include, exclude=exclude))


def judge(*rules: Rules) -> Judge:
    """Return the judge of an unknown client where all these rules are in force."""
    return Judge(ANYONE, InForce(rules), Lru(100, 100_000))


def fits_simply(selector: Selector, upstream: str, kind: str, item: str) -> bool:
    """Decide by the words of the settings."""
    return (
        matches(parse_glob(selector.upstream or "*"), upstream)
        and selector.kind in (None, kind)
        and matches(parse_glob(selector.name or "*"), item)
    )


def has(selection: Selection, upstream: str, kind: str, item: str) -> bool:
    """Return whether the target may be used."""
    _, use, _ = ITEMS[kind]
    target = Target(item, is_template=True) if kind == "templates" else item
    return selection.decide(ANYONE, upstream, use, target).allowed


@few
@given(views)
def test_a_list_shows_what_an_include_fits_and_no_exclude(view):
    chosen = Selection("views.coding", view)
    for upstream in UPSTREAMS:
        for kind, (listed, _, items) in ITEMS.items():
            for item in items:
                is_shown = not view.include or any(
                    fits_simply(selector, upstream, kind, item) for selector in view.include
                )
                is_shown = is_shown and not any(
                    fits_simply(selector, upstream, kind, item) for selector in view.exclude
                )
                assert chosen.decide(ANYONE, upstream, listed, item).allowed is is_shown


@few
@given(views)
def test_the_first_fitting_include_selects_an_item(view):
    chosen = Selection("views.coding", view)
    for upstream in UPSTREAMS:
        for kind, (_, _, items) in ITEMS.items():
            for item in items:
                fit = [
                    n
                    for n, selector in enumerate(view.include)
                    if fits_simply(selector, upstream, kind, item)
                ]
                rule = f"views.coding.include[{fit[0]}]" if fit else ""
                assert chosen.rule_for(upstream, kind, item) == rule


@few
@given(views)
def test_what_is_listed_can_be_used_and_what_is_not_cannot(view):
    chosen = Selection("views.coding", view)
    for upstream in UPSTREAMS:
        for kind, (listed, _, items) in ITEMS.items():
            for item in items:
                is_shown = chosen.decide(ANYONE, upstream, listed, item).allowed
                if kind != "resources":
                    assert has(chosen, upstream, kind, item) is is_shown
                elif is_shown:
                    assert has(chosen, upstream, kind, item)


@few
@given(views)
def test_whoever_may_use_something_is_told_that_there_is_something(view):
    chosen = Selection("views.coding", view)
    for upstream in UPSTREAMS:
        for kind, (_, use, items) in ITEMS.items():
            if chosen.decide(ANYONE, upstream, use, None).allowed:
                assert all(chosen.decide(ANYONE, upstream, use, item).allowed for item in items)
            if any(has(chosen, upstream, kind, item) for item in items):
                assert chosen.decide(ANYONE, upstream, use, SOME).allowed
                assert judge(chosen).sees(upstream)


def test_the_uris_of_an_included_template_are_readable_and_unlisted():
    chosen = selection(Selector(kind="templates", name="file:///a/{name}"))
    assert has(chosen, "docs", "resources", "file:///a/1")
    assert not has(chosen, "docs", "resources", "file:///b/1")
    assert not chosen.decide(ANYONE, "docs", m.RESOURCES_LIST, "file:///a/1").allowed


@pytest.mark.parametrize("uri", ["file:///a/../b/1", "file:///%62/1", "file:///a/%2e%2e/b/1", "FILE:///b/1"])
def test_no_spelling_leads_to_what_is_excluded(uri):
    everything_else = selection(exclude=(Selector(name="file:///b/*"),))
    only_a = selection(Selector(name="file:///a/*"))
    assert not has(everything_else, "docs", "resources", uri)
    assert not has(only_a, "docs", "resources", uri)
    assert only_a.rule_for("docs", "resources", uri) == ""


def test_an_excluded_template_is_not_completed():
    chosen = selection(exclude=(Selector(kind="templates", name="memo:{x}"),))
    assert not has(chosen, "docs", "templates", "memo:{x}")
    assert has(chosen, "docs", "templates", "file:///{path}")
    assert has(chosen, "docs", "prompts", "search")


@pytest.mark.parametrize("kind", KINDS)
def test_a_view_of_one_kind_has_no_capability_of_another(kind):
    chosen = selection(Selector(kind=kind))
    offered = {name for name in ("tools", "prompts", "resources") if judge(chosen).offers("docs", name)}
    assert offered == {kind.replace("templates", "resources")}
    assert judge(chosen).offers("docs", "completions") is (kind in ("prompts", "templates"))


def test_unknown_methods_belong_to_views_of_whole_upstreams():
    whole = selection(Selector(upstream="docs"))
    assert whole.decide(ANYONE, "docs", "vendor/x", None).allowed
    assert not whole.decide(ANYONE, "web", "vendor/x", None).allowed
    part = selection(exclude=(Selector(upstream="docs", name="read"),))
    assert not part.decide(ANYONE, "docs", "vendor/x", None).allowed
    assert part.decide(ANYONE, "web", "vendor/x", None).allowed


def test_a_task_of_an_unknown_tool_needs_all_tools():
    assert selection(Selector(kind="tools")).decide(ANYONE, "docs", m.TOOLS_CALL, None).allowed
    named = selection(Selector(kind="tools", name="search*"))
    assert not named.decide(ANYONE, "docs", m.TOOLS_CALL, None).allowed


TOOL_HINTS = {
    "search": hints_of({"readOnlyHint": True}),
    "read": hints_of(None),
    "a*": hints_of({"readOnlyHint": True, "destructiveHint": True}),
}


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (None, (False, True, False, True)),
        ("nonsense", (False, True, False, True)),
        ({"readOnlyHint": "yes", "openWorldHint": None}, (False, True, False, True)),
        ({"readOnlyHint": True}, (True, False, True, True)),
        ({"readOnlyHint": True, "destructiveHint": True, "idempotentHint": False}, (True, False, True, True)),
        ({"destructiveHint": False, "idempotentHint": True}, (False, False, True, True)),
        ({"openWorldHint": False}, (False, True, False, False)),
    ],
)
def test_missing_hints_have_the_defaults_of_the_specification(annotations, expected):
    assert tuple(hints_of(annotations)[name] for name in HINTS) == expected


def test_tools_that_only_read_are_selected_once_they_are_known():
    chosen = selection(Selector(readOnlyHint=True))
    assert chosen.asks_hints("docs")
    assert not has(chosen, "docs", "tools", "search")
    assert chosen.decide(ANYONE, "docs", m.TOOLS_CALL, SOME).allowed  # there may be some
    chosen.learn("docs", TOOL_HINTS)
    assert {name for name in (*NAMES, "a*", "abc") if has(chosen, "docs", "tools", name)} == {"search", "a*"}
    assert not has(chosen, "docs", "prompts", "search")
    assert not has(chosen, "web", "tools", "search")
    chosen.learn("docs", {})
    assert not has(chosen, "docs", "tools", "search")
    assert not chosen.decide(ANYONE, "docs", m.TOOLS_CALL, SOME).allowed


def test_tools_chosen_by_annotations_cost_no_glob_each():
    chosen = selection(Selector(readOnlyHint=True))
    chosen.learn("docs", {f"t{number}": hints_of({"readOnlyHint": True}) for number in range(1000)})
    assert has(chosen, "docs", "tools", "t999") and not has(chosen, "docs", "tools", "t1000")
    assert len(chosen._selected("docs", "tools").included) == 1


def test_tools_that_may_destroy_are_excluded_also_while_nothing_is_known():
    chosen = selection(exclude=(Selector(destructiveHint=True),))
    assert not has(chosen, "docs", "tools", "search")
    assert has(chosen, "docs", "prompts", "search")
    chosen.learn("docs", TOOL_HINTS)
    assert has(chosen, "docs", "tools", "search") and has(chosen, "docs", "tools", "a*")
    assert not has(chosen, "docs", "tools", "read")


def test_a_selector_of_annotations_may_name_tools_and_upstreams():
    chosen = selection(Selector(upstream="w*", name="s*", readOnlyHint=True))
    assert not chosen.asks_hints("docs") and chosen.asks_hints("web")
    chosen.learn("web", TOOL_HINTS)
    assert [name for name in (*NAMES, "a*") if has(chosen, "web", "tools", name)] == ["search"]


def test_a_view_is_for_whom_it_names():
    chosen = Selection("views.coding", View(include=(Selector(upstream="docs"),), principals=("a*",)))
    assert chosen.admits(Principal("alice"))
    assert not chosen.admits(Principal("bob")) and not chosen.admits(ANYONE)
    assert selection(Selector(upstream="docs")).admits(ANYONE)


@few
@given(views, st.sampled_from(["allow", "deny"]), st.sampled_from(["search*", "file:///a/*"]))
def test_a_view_permits_nothing(view, effect, target):
    everybody = AccessRule(effect="allow")
    rules = (everybody,) if effect == "deny" else ()
    policy = policy_of((*rules, AccessRule(effect=effect, targets=(target,))))
    assert policy is not None
    chosen = Selection("views.coding", view)
    both = judge(policy, chosen)
    for upstream in UPSTREAMS:
        for kind, (listed, use, items) in ITEMS.items():
            for item in items:
                named = Target(item, is_template=True) if kind == "templates" else item
                allowed = [rules.decide(ANYONE, upstream, use, named).allowed for rules in (policy, chosen)]
                assert both.may(upstream, use, named) is all(allowed)
                shown = [rules.decide(ANYONE, upstream, listed, item).allowed for rules in (policy, chosen)]
                assert both.may(upstream, listed, item) is all(shown)


def test_the_rule_that_refuses_is_named():
    policy = policy_of([AccessRule(effect="allow", name="all"), AccessRule(effect="deny", targets=("read",))])
    assert policy is not None
    both = judge(policy, selection(Selector(name="search*")))
    refused_by = {name: both.refused_by("docs", m.TOOLS_CALL, name) for name in ("search", "read", "x")}
    assert refused_by == {"search": None, "read": "access[1]", "x": "views.coding"}
