"""`[views]`: the values that are read, and the messages about mistakes."""

from __future__ import annotations

import pytest

from mcpmux.config.views import Override, Selector, View, ViewOverride
from tests.config.documents import problems_of, read

DOCS = '[upstreams.docs]\ncommand = "npx"\n'


def test_every_key_is_read():
    config = read(
        DOCS
        + """
        [views.coding]
        include = [{ upstream = "docs", kind = "tools", name = "search*" }, { kind = "prompts" }]
        exclude = [{ name = "file:///{path}" }]
        principals = ["alice", "login:*"]
        [listeners]
        stdio_view = "coding"
        tcp = [{ port = 1, view = "coding" }]
        unix = [{ path = "x", view = "coding" }]
        """
    )
    assert config.views == {
        "coding": View(
            include=(Selector(upstream="docs", kind="tools", name="search*"), Selector(kind="prompts")),
            exclude=(Selector(name="file:///{path}"),),
            principals=("alice", "login:*"),
        )
    }
    assert config.listeners.stdio_view == config.listeners.tcp[0].view == config.listeners.unix[0].view
    assert read(DOCS).views == {}


NAME = 'expected a name (a letter, then up to 31 of a-z, 0-9, "." and "-")'
MISTAKES = [
    ("[views.coding]", ["views.coding: expected `include`, `exclude`, `tools` or `overrides`"]),
    ('[views."a/b"]\ninclude = [{kind = "tools"}]', [f'views."a/b": {NAME}']),
    ('[views.a]\ninclude = [{kind = "tool"}]', ["views.a.include[0].kind: expected one of"]),
    ("[views.a]\ninclude = [{}]", ["views.a.include[0]: expected at least one of"]),
    (
        '[views.a]\ninclude = [{kind = "prompts", readOnlyHint = true}]',
        ["views.a.include[0]: `readOnlyHint` is about tools"],
    ),
    ("[views.a]\ninclude = [{readOnly = true}]", ["views.a.include[0].readOnly: unknown key; did you mean"]),
    (
        '[views.a]\ninclude = [{upstream = "dosc"}]\nexclude = [{upstream = "w*"}]',
        [
            "views.a.include[0].upstream: there is no upstream of this name; did you mean `docs`?",
            "views.a.exclude[0].upstream: there is no upstream of this name",
        ],
    ),
    (
        '[views.coding]\ninclude = [{kind = "tools"}]\n[listeners]\nstdio_view = "codign"\n'
        'tcp = [{port = 1, view = "x"}]',
        [
            "listeners.stdio_view: there is no view of this name; did you mean `coding`?",
            "listeners.tcp[0].view: there is no view of this name",
        ],
    ),
    ('[views.a]\ninclud = [{kind = "tools"}]', ["views.a.includ: unknown key; did you mean `include`?"]),
]


OVERRIDE = '[[views.a.overrides]]\nupstream = "docs"\nname = '
MISTAKES += [
    (f'{OVERRIDE}"x"\n{OVERRIDE}"x"', [f"views.a.overrides[{number}].name: another" for number in (0, 1)]),
    (
        f'{OVERRIDE}"x"\nrename = "z"\n{OVERRIDE}"y"\nrename = "z"',
        [f"views.a.overrides[{number}].rename: another one has this name" for number in (0, 1)],
    ),
    (f'{OVERRIDE}"x"\nrename = "y"\n{OVERRIDE}"y"\ntitle = "Y"', ["views.a.overrides[0].rename: another"]),
    (f'{OVERRIDE}"x"'.replace("docs", "dosc"), ["views.a.overrides[0].upstream: there is no upstream of"]),
    (
        f'{OVERRIDE}"x"\nparameters = {{p = {{value = 1, hidden = true}}}}',
        ["views.a.overrides[0].parameters.p: `value` is what the server always gets"],
    ),
    (f'{OVERRIDE}"x"\nkind = "resources"', ["views.a.overrides[0].kind: expected one of"]),
    (f'{OVERRIDE}"x"\nannotations = {{readonly = true}}', ["views.a.overrides[0].annotations.readonly: "]),
    (
        f'{OVERRIDE}"x"\nkind = "prompts"\nannotations = {{readOnlyHint = true}}',
        ["views.a.overrides[0]: `annotations` are about tools"],
    ),
]


def test_overrides_are_read_in_views_and_in_upstreams():
    config = read(
        DOCS
        + """
        [[upstreams.docs.overrides]]
        name = "x"
        title = "X"
        [[views.a.overrides]]
        upstream = "docs"
        kind = "prompts"
        name = "x"
        rename = "y"
        description = "Y"
        icons = [{ src = "https://example.com/i.png", sizes = ["48x48"] }]
        """
    )
    assert config.upstreams[0].overrides == (Override(name="x", title="X"),)
    icon = {"src": "https://example.com/i.png", "sizes": ["48x48"]}
    assert config.views["a"].overrides == (
        ViewOverride(upstream="docs", kind="prompts", name="x", rename="y", description="Y", icons=(icon,)),
    )


@pytest.mark.parametrize(("text", "expected"), MISTAKES)
def test_mistakes_are_told_with_their_place(text, expected):
    problems = problems_of(DOCS + text)
    assert len(problems) == len(expected)
    for problem, beginning in zip(problems, expected, strict=True):
        assert beginning in problem


def test_all_mistakes_are_told_at_once():
    problems = problems_of(
        """
        [upstreams.docs]
        command = "docs"
        overrides = [{ name = "x", title = "X" }, { name = "x", title = "Y" }]
        [upstreams.bad]
        command = 1
        [[access]]
        effect = "alow"
        [[access]]
        effect = "allow"
        upstreams = ["dosc"]
        [views."no path"]
        tools = "search"
        [views.empty]
        [views.a]
        include = [{ upstream = "dosc" }, { upstream = "bad" }]
        overrides = [{ upstream = "docs", name = "x", rename = "y" }, { upstream = "docs", name = "y" }]
        [[limits.rate]]
        requests = 1
        upstreams = ["dosc", "d*"]
        [listeners]
        stdio_view = "emty"
        tcp = [{ port = 1, view = "empty" }]
        """
    )
    assert [problem.partition(": ")[0] for problem in problems] == [
        "upstreams.docs.overrides[0].name",
        "upstreams.docs.overrides[1].name",
        "upstreams.bad.command",
        "access[0].effect",
        "access[1].upstreams",
        'views."no path"',
        "views.empty",
        "views.a.include[0].upstream",
        "views.a.overrides[0].rename",
        "limits.rate[0].upstreams",
        "listeners.stdio_view",
    ]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f"views = 3\n{DOCS}[listeners]\nstdio_view = 'v'", "views"),
        ("upstreams = 3\n[views.v]\ninclude = [{ upstream = 'docs' }]", "upstreams"),
        (
            f"{DOCS}[upstreams.'a b']\ncommand = 'x'\n[views.v]\ninclude = [{{ upstream = 'ab' }}]",
            "upstreams",
        ),
    ],
)
def test_what_cannot_be_read_is_not_told_as_missing_elsewhere(text, place):
    (problem,) = problems_of(text)
    assert problem.startswith(place)
