"""The laws of overrides: what is shown leads back, and what is renamed is not reached by its old name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.config.views import Override, View, ViewOverride
from mcpmux.mux.override import Overrides, overrides_of
from mcpmux.protocol.envelope import decode_fields, raw
from tests.runtime.world import upstream

NAMES = ["a", "b", "c", "d"]

overrides = st.lists(
    st.builds(Override, name=st.sampled_from(NAMES), rename=st.sampled_from([None, *NAMES, "x"])),
    unique_by=(lambda each: each.name, lambda each: each.rename or each.name),
)


@given(overrides, overrides)
def test_rename_and_resolve_are_inverse(of_upstream, of_view):
    chosen = Overrides(("docs", override) for override in (*of_upstream, *of_view))
    there = [own for own in NAMES if chosen.is_shown("docs", "tools", own)]
    shown = [chosen.shown_name("docs", "tools", own) for own in there]
    assert len(set(shown)) == len(shown)
    for own in NAMES:
        name = chosen.shown_name("docs", "tools", own)
        if own in there:
            assert chosen.own_name("docs", "tools", name) == own
    for name in (*NAMES, "x", "other"):
        owned = chosen.own_name("docs", "tools", name)
        assert owned is None or chosen.shown_name("docs", "tools", owned) == name


@given(overrides)
def test_other_upstreams_and_kinds_stay_as_they_are(made):
    chosen = Overrides(("docs", override) for override in made)
    for place in (("web", "tools"), ("docs", "prompts")):
        for name in NAMES:
            assert chosen.own_name(*place, name) == chosen.shown_name(*place, name) == name
            assert chosen.is_shown(*place, name)


def dressed(chosen: Overrides, item: dict[str, object], own: str = "a") -> dict[str, object]:
    fields = decode_fields(json.dumps(item).encode())
    assert chosen.apply("docs", "tools", [own], [fields], lambda name: f"docs__{name}") == [True]
    dressed_item: dict[str, object] = json.loads(bytes(raw(fields)))
    return dressed_item


ITEM: dict[str, object] = {
    "name": "docs__a",
    "title": "A",
    "annotations": {"readOnlyHint": True, "x": 1},
    "_meta": {"kept": 1},
}


def test_an_override_replaces_only_what_it_names():
    override = Override(
        name="a",
        rename="find",
        title="Find",
        description="Finds",
        annotations={"readOnlyHint": False},
        icons=({"src": "https://example.com/x.png", "sizes": ["48x48"]},),
    )
    assert dressed(Overrides([("docs", override)]), ITEM) == {
        "name": "docs__find",
        "title": "Find",
        "description": "Finds",
        "annotations": {"readOnlyHint": False, "x": 1},
        "icons": [{"src": "https://example.com/x.png", "sizes": ["48x48"]}],
        "_meta": {"kept": 1},
    }
    assert dressed(Overrides([("docs", override)]), ITEM, own="b") == ITEM


def test_an_override_of_a_view_adds_to_that_of_the_upstream():
    docs = upstream("docs", overrides=(Override(name="a", title="of all", description="of all"),))
    view = View(overrides=(ViewOverride(upstream="docs", name="a", title="of the view"),))
    by_view = overrides_of({"coding": view}, [docs])
    assert dressed(by_view[""], ITEM)["title"] == "of all"
    shown = dressed(by_view["coding"], ITEM)
    assert (shown["title"], shown["description"]) == ("of the view", "of all")
    assert overrides_of({}, [upstream("docs")]) == {}


@pytest.mark.parametrize(
    ("listed", "renamed", "told"),
    [
        ("ab", {"a": "z"}, []),
        (["aa", "b"], {"a": "z"}, ["none is called a; did you mean `aa`?"]),
        ("az", {"a": "z"}, ["a gets the name z, which hides what is called so"]),
        ("ab", {"a": "z", "b": "z"}, ["a is hidden, as another one gets the name z"]),
        ("az", {"a": "z", "z": None}, ["z is hidden, as another one gets the name z"]),
    ],
)
def test_what_is_overridden_has_to_be_there(listed, renamed, told):
    made = [("docs", Override(name=name, rename=rename)) for name, rename in renamed.items()]
    chosen = Overrides([*made, ("web", Override(name="q"))])
    problems = list(chosen.find_misplaced({"docs": {"tools": listed}}))
    assert problems == [f"an override of tools of docs: {problem}" for problem in told]
