"""References to variables in texts of host apps, against how our configuration reads the result."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.config.expansion import expand
from mcpmux.hosts.host import DOLLAR, EDITOR, HOSTS, LITERAL, SHELL
from mcpmux.hosts.reference import (
    NotTakenOver,
    Surroundings,
    escape,
    has_reference,
    translate,
    unescape,
    variable_name,
    variables_in,
)

AROUND = Surroundings(HOSTS["cursor"], Path("/h"), "/", Path("/h/p"))
ENVIRON = {"A": "one", "B": ""}

texts = st.text(alphabet="${}:-AB_ a$", max_size=12)


@given(texts)
def test_escaped_text_is_read_as_it_was(text: str) -> None:
    assert expand(escape(text), {}) == text
    assert unescape(escape(text)) == text
    assert not has_reference(escape(text))
    assert list(variables_in(escape(text))) == []


@given(texts)
def test_text_without_variables_comes_through_every_set_of_rules(text: str) -> None:
    plain = text.replace("$", "")
    for rules in (LITERAL, SHELL, EDITOR, DOLLAR):
        assert expand(translate(plain, AROUND, rules), {}) == plain


@pytest.mark.parametrize(
    ("rules", "text", "read"),
    [
        (LITERAL, "${A} $A", "${A} $A"),
        (SHELL, "${A}${B:-two} $A ${a b} ${", "onetwo $A ${a b} ${"),
        (DOLLAR, "$A-${A}-${B:-two} 5$ ${", "one-one-two 5$ ${"),
        (EDITOR, "${env:A} ${A} $A ${workspaceFolder} ${workspaceFolderBasename} ${userHome}${/}x ${", ""),
    ],
)
def test_our_configuration_reads_what_the_host_app_would(rules: str, text: str, read: str) -> None:
    expected = read or "one one $A /h/p p /h/x ${"
    assert expand(translate(text, AROUND, rules), ENVIRON) == expected


@pytest.mark.parametrize(
    "text", ["${command:secret}", "${config:secret}", "${file:/secret}", "${s e c}", "${}"]
)
def test_what_only_the_host_app_knows_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(NotTakenOver) as caught:
        translate(text, AROUND)
    assert "secret" not in str(caught.value)


def test_the_default_of_a_password_is_no_default() -> None:
    inputs = {"a-b": {"type": "promptString", "password": True, "default": "x"}}
    surroundings = Surroundings(HOSTS["vscode"], Path("/h"), inputs=inputs)
    assert translate("${input:a-b}", surroundings) == "${A_B}"


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (("docs", "x-api-key"), "DOCS_X_API_KEY"),
        (("1st",), "MCP_1ST"),
        (("a.b", "C"), "A_B_C"),
        (("",), "MCP"),
    ],
)
def test_names_of_variables(parts: tuple[str, ...], name: str) -> None:
    assert variable_name(*parts) == name


def test_variables_with_a_default_need_not_be_set() -> None:
    assert list(variables_in({"a": ["${A} $${B} ${C:-d}"], "b": "${D}"})) == ["A", "D"]
