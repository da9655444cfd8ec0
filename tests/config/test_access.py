"""`[[access]]`: what is read, and what is told of mistakes."""

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
    told = "access[1]: `upstreams`: there is no upstream of one of these names; did you mean `docs`?"
    assert problems_of(text) == [told]
    assert problems_of(text.replace("dcos", "dc*")) == []
    assert problems_of(text + '[upstreams.dcos]\ncommand = "x"\nenabled = false\n') == []
