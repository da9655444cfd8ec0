"""`[[access]]`: the values that are read, and the messages about mistakes."""

from __future__ import annotations

import pytest

from mcpmux.config import AccessRule
from tests.config.documents import problems_of, read

DOCS = '[upstreams.docs]\ncommand = "npx"\n[[access]]\n'
USES = 'expected one of "read", "subscribe", "call", "get", "complete", or a method such as "tools/call"'
LISTS = 'lists show what may be used, so they need no rule: name "read", "call" or "get"'
TASKS = 'a task is allowed to whoever may call its tool: name "call"'
DOTS = "expected a path without `.` and `..` in it: write where it leads to"


def test_every_key_is_read():
    config = read(
        DOCS
        + """
        effect = "allow"
        name = "readers"
        principals = ["alice", "login:*"]
        scopes = ["docs:read"]
        upstreams = ["docs", "w*"]
        methods = ["read", "tools/call", "vendor/*"]
        targets = ["file:///public/*", "a.b"]
        [[access]]
        effect = "deny"
        targets = ["*secret*"]
        """
    )
    assert config.access == (
        AccessRule(
            effect="allow",
            name="readers",
            principals=("alice", "login:*"),
            scopes=("docs:read",),
            upstreams=("docs", "w*"),
            methods=("read", "tools/call", "vendor/*"),
            targets=("file:///public/*", "a.b"),
        ),
        AccessRule(effect="deny", targets=("*secret*",)),
    )
    assert read(DOCS.removesuffix("[[access]]\n")).access == ()


MISTAKES = [
    ('name = "x"', ["access[0].effect: expected a value, the key is missing"]),
    ('effect = "permit"', ['access[0].effect: expected one of "allow", "deny"']),
    ('effect = "allow"\nmethods = ["reed"]', [f'access[0].methods[0]: {USES}; did you mean "read"?']),
    ('effect = "allow"\nmethods = ["write"]', [f"access[0].methods[0]: {USES}"]),
    ('effect = "allow"\nmethods = ["list"]', [f"access[0].methods[0]: {LISTS}"]),
    ('effect = "allow"\nmethods = ["tools/list"]', [f"access[0].methods[0]: {LISTS}"]),
    ('effect = "allow"\nmethods = ["tasks/get"]', [f"access[0].methods[0]: {TASKS}"]),
    ('effect = "allow"\ntargets = ["file:///a/../b"]', [f"access[0].targets[0]: {DOTS}"]),
    ('effect = "allow"\ntargets = ["file:///a/%2e%2E/b"]', [f"access[0].targets[0]: {DOTS}"]),
    ('effect = "allow"\ntarget = "x"', ["access[0].target: unknown key; did you mean `targets`?"]),
    ('effect = "allow"\ntargets = "x"', ["access[0].targets: expected a list, got text"]),
    (
        'effect = "deny"',
        ["access[0]: expected at least one of `principals`, `scopes`, `upstreams`, `methods`, `targets`"],
    ),
]


@pytest.mark.parametrize(("rule", "problems"), MISTAKES)
def test_a_mistake_is_told_where_it_is(rule, problems):
    assert problems_of(DOCS + rule) == problems


def test_a_rule_about_an_upstream_that_is_not_there_is_a_mistake():
    text = DOCS + 'effect = "allow"\n[[access]]\neffect = "deny"\nupstreams = ["dcos"]\n'
    problem = "access[1].upstreams: no upstream has the name `dcos`; did you mean `docs`?"
    assert problems_of(text) == [problem]
    assert problems_of(text.replace("dcos", "dc*")) == []
    assert problems_of(text + '[upstreams.dcos]\ncommand = "x"\nenabled = false\n') == []


WITH_TWO = """
[upstreams.notes]
command = "x"
[upstreams.web]
command = "x"
prefix = "w"
[upstreams.off]
command = "x"
enabled = false
[[access]]
effect = "allow"
[[access]]
"""
NO_NAME = "this rule is about tools or prompts, which are written `w__…`"
DEAD = "access[1].targets: `{}` denies nothing: {}"


@pytest.mark.parametrize(
    ("rule", "target", "why"),
    [
        ('upstreams = ["notes"]', "w__x", "`w` is the prefix of web, whose name its `upstreams` leave out"),
        ("", "notes+add_note", "a tool or prompt is written `notes__add_note`"),
        ("", "notes__note:///x", "a resource is written `notes+note:///x`"),
        (
            'methods = ["read"]',
            "notes__x",
            "this rule is about resources, whose URIs have a scheme such as `file:`",
        ),
        (
            'methods = ["subscribe"]',
            "secret",
            "this rule is about resources, whose URIs have a scheme such as `file:`",
        ),
        (
            'methods = ["call"]',
            "w+note:///x",
            "this rule is about tools or prompts, which are written `w__…`",
        ),
        ('methods = ["call"]', "ui://w/x", NO_NAME),
    ],
)
def test_a_deny_that_can_never_fit_is_a_mistake(rule, target, why):
    text = WITH_TWO + f'effect = "deny"\n{rule}\ntargets = ["{target}"]\n'
    assert problems_of(text) == [DEAD.format(target, why)]
    assert problems_of(text.replace('"deny"', '"allow"')) == []  # no more is open than should be


@pytest.mark.parametrize(
    "rule",
    [
        'targets = ["notes__x", "w+note:///x", "ui://w/x", "off__x", "x__y", "notes+*", "notes__*"]',
        'methods = ["read"]\ntargets = ["*", "note:///x", "file%3A///x"]',
        'upstreams = ["n*"]\ntargets = ["notes__x", "x"]',
    ],
)
def test_a_deny_in_either_spelling_is_no_mistake(rule):
    assert problems_of(WITH_TWO + f'effect = "deny"\n{rule}\n') == []
