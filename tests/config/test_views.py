"""`[views]`: what is read, and what is told of mistakes."""

from __future__ import annotations

import pytest

from mcpmux.config.views import Selector, View
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
    ("[views.coding]", ["views.coding: expected `include` or `exclude`"]),
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


@pytest.mark.parametrize(("text", "expected"), MISTAKES)
def test_mistakes_are_told_with_their_place(text, expected):
    told = problems_of(DOCS + text)
    assert len(told) == len(expected)
    for problem, beginning in zip(told, expected, strict=True):
        assert beginning in problem
