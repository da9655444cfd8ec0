from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.config.scalars import is_name
from mcpmux.mux.rewrite import NAME_LIMIT, Namespace
from tests.mux.prefixes import prefix_tables, texts

tables_and_texts = prefix_tables().flatmap(
    lambda table: st.tuples(st.just(table), st.lists(texts(table), min_size=1, max_size=6, unique=True))
)


def own_name(namespace: Namespace, exposed: str, candidates: list[str]) -> tuple[str, str | None] | None:
    """Return the owner of an exposed name and its own name, as a router does."""
    owner = namespace.resolve_name(exposed)
    if owner is not None and namespace.is_shortened(exposed):
        return owner[0], namespace.match_name(exposed, owner[0], candidates)
    return owner


# Laws


@given(tables_and_texts)
def test_resolving_an_exposed_uri_gives_its_owner_and_the_owners_uri(case: tuple[dict[str, str], list[str]]):
    table, uris = case
    namespace = Namespace(table)
    for upstream, space in namespace.spaces.items():
        for uri in uris:
            assert namespace.resolve_uri(space.expose_uri(uri)) == (upstream, uri)


@given(tables_and_texts)
def test_resolving_an_exposed_name_gives_its_owner_and_the_owners_name(
    case: tuple[dict[str, str], list[str]],
):
    table, names = case
    namespace = Namespace(table)
    for upstream, space in namespace.spaces.items():
        for name in names:
            assert own_name(namespace, space.expose_name(name), names) == (upstream, name)


@given(tables_and_texts)
def test_no_two_things_look_the_same_from_outside(case: tuple[dict[str, str], list[str]]):
    table, texts = case
    spaces = Namespace(table).spaces.values()
    for expose in ("expose_uri", "expose_name"):
        exposed = [getattr(space, expose)(text) for space in spaces for text in texts]
        assert len(set(exposed)) == len(exposed)


@given(tables_and_texts)
def test_a_prefixed_name_is_never_too_long(case: tuple[dict[str, str], list[str]]):
    table, names = case
    for space in Namespace(table).spaces.values():
        for name in names:
            exposed = space.expose_name(name)
            assert exposed == name or len(exposed) <= NAME_LIMIT


@given(tables_and_texts)
def test_the_look_of_a_name_tells_whether_it_was_shortened(case: tuple[dict[str, str], list[str]]):
    table, names = case
    namespace = Namespace(table)
    for space in namespace.spaces.values():
        for name in names:
            exposed = space.expose_name(name)
            assert namespace.is_shortened(exposed) is not exposed.endswith(name)


@given(prefix_tables(), st.text(), st.text())
def test_any_text_resolves_to_somebody_or_nobody(table: dict[str, str], text: str, name: str):
    namespace = Namespace(table)
    bare = next((upstream for upstream, prefix in table.items() if not prefix), None)
    for owner in (namespace.resolve_uri(text), namespace.resolve_name(name)):
        assert owner is None or owner[0] in table
        assert owner is not None or bare is None


# Cases

TWO = {"docs": "docs", "git": "git"}
URIS = [
    ("file:///a.md", "docs+file:///a.md"),
    ("memo:x", "docs+memo:x"),
    ("urn:isbn:1", "docs+urn:isbn:1"),
    ("git+ssh://host/x", "docs+git+ssh://host/x"),
    ("file:///{+path}{?q}", "docs+file:///{+path}{?q}"),
    ("", "docs+"),
    ("ui://view", "ui://docs/view"),
    ("ui://view/a/b", "ui://docs/view/a/b"),
    ("ui://", "ui://docs/"),
    ("ui:view", "docs+ui:view"),
    ("UI://view", "docs+UI://view"),
]


@pytest.mark.parametrize(("own", "exposed"), URIS)
def test_a_uri_gets_its_prefix_in_front_or_behind_ui(own: str, exposed: str):
    namespace = Namespace(TWO)
    assert namespace.spaces["docs"].expose_uri(own) == exposed
    assert namespace.resolve_uri(exposed) == ("docs", own)


@pytest.mark.parametrize(
    "uri", ["file:///a", "other+file:///a", "docs", "ui://view", "ui://docs", "Docs+file:///a"]
)
def test_a_uri_without_a_known_prefix_belongs_to_nobody_yet(uri: str):
    assert Namespace(TWO).resolve_uri(uri) is None


@pytest.mark.parametrize(
    ("own", "exposed"),
    [("search", "docs__search"), ("_x", "docs___x"), ("a__b", "docs__a__b"), ("", "docs__")],
)
def test_a_name_gets_its_prefix_in_front(own: str, exposed: str):
    namespace = Namespace(TWO)
    assert namespace.spaces["docs"].expose_name(own) == exposed
    assert namespace.resolve_name(exposed) == ("docs", own)


@pytest.mark.parametrize("name", ["search", "docs_search", "other__search", "docs"])
def test_a_name_without_a_known_prefix_belongs_to_nobody(name: str):
    assert Namespace(TWO).resolve_name(name) is None


def test_a_long_name_is_shortened_the_same_way_every_time():
    namespace = Namespace(TWO, 64)
    long = "x" * 59  # docs__ + 58 is the longest that fits
    exposed = namespace.spaces["docs"].expose_name(long)
    assert namespace.spaces["docs"].expose_name("x" * 58) == "docs__" + "x" * 58
    assert exposed == "docs__" + "x" * 49 + "_6e20a119"
    assert len(exposed) == 64
    assert namespace.match_name(exposed, "docs", ["y", "x" * 60, long]) == long
    assert namespace.match_name(exposed, "docs", ["y", "x" * 60]) is None


def test_a_name_has_room_for_what_claude_code_puts_before_it():
    exposed = Namespace(TWO).spaces["docs"].expose_name("x" * 59)
    assert len(f"mcp__mcpmux__{exposed}") == 64


def test_a_name_that_only_looks_shortened_is_shortened_too():
    namespace = Namespace(TWO)
    looks = "x" * (NAME_LIMIT - len("docs__") - 9) + "_0123abcd"
    exposed = namespace.spaces["docs"].expose_name(looks)
    assert namespace.is_shortened(exposed)
    assert exposed != f"docs__{looks}"
    assert not namespace.is_shortened(looks.ljust(NAME_LIMIT, "0"))


def test_an_unprefixed_upstream_is_prefixed_only_against_misreading():
    namespace = Namespace({"main": "", "git": "g"})
    main = namespace.spaces["main"]
    assert [main.expose_uri(uri) for uri in ("file:///a", "git+file:///a", "ui://view/a", "ui://main")] == [
        "file:///a",
        "git+file:///a",
        "ui://view/a",
        "ui://main/main",
    ]
    assert main.expose_uri("g+file:///a") == "main+g+file:///a"
    assert main.expose_uri("main+file:///a") == "main+main+file:///a"
    assert main.expose_uri("ui://g/a") == "ui://main/g/a"
    assert main.expose_name("g__a") == "main__g__a"
    assert main.expose_name("g_a") == "g_a"
    assert namespace.transparent is None
    assert not main.transparent


@given(texts({"only": ""}))
def test_a_single_unprefixed_upstream_is_transparent(text: str):
    namespace = Namespace({"only": ""})
    space = namespace.spaces["only"]
    assert (namespace.transparent, space.transparent) == ("only", True)
    assert (space.expose_uri(text), space.expose_name(text)) == (text, text)
    assert namespace.resolve_uri(text) == namespace.resolve_name(text) == ("only", text)
    assert not namespace.is_shortened(text)


def test_a_single_prefixed_upstream_is_not_transparent():
    namespace = Namespace({"only": "p"})
    assert namespace.transparent is None
    assert namespace.resolve_uri("p+a:b") == ("only", "a:b")
    assert namespace.resolve_uri("only+a:b") is None


@pytest.mark.parametrize(
    "table",
    [{"a": "", "b": ""}, {"a": "x", "b": "x"}, {"a": "b", "b": ""}],
    ids=["two bare", "same", "bare's name"],
)
def test_prefixes_that_could_be_confused_are_refused(table: dict[str, str]):
    with pytest.raises(ValueError, match="prefixes must differ"):
        Namespace(table)


def test_the_longest_prefix_that_configuration_allows_leaves_room_to_shorten():
    prefix = "p" * 32
    assert is_name(prefix)
    assert not is_name(prefix + "p")
    exposed = Namespace({"up": prefix}).spaces["up"].expose_name("n" * 100)
    assert exposed.startswith(f"{prefix}__n")
