"""One entry put into a text and taken out again: laws for JSON with comments, TOML and YAML."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mcpmux.hosts
from mcpmux.config.reading import SourceDocument
from mcpmux.errors import ConfigError, KeyPath, Problem
from mcpmux.hosts.document import parse, put, remove, with_lines
from mcpmux.protocol.envelope import value_at

PLACES = {"json": ("mcpServers",), "toml": ("mcp_servers",), "yaml": ("extensions",)}
ENTRY = {"command": "/opt/mcpmux", "args": ["serve", "a b", 'q"\\'], "env": {}}
NEW = "mcpmux"


def is_part_of(part: Iterable[str], whole: Iterable[str]) -> bool:
    """Return whether `whole` is `part` with something put in between."""
    rest = iter(whole)
    return all(member in rest for member in part)


# Documents as people write them.

names = st.sampled_from(["a", "b-c", "ü x", "k\\n", "mcp"])
scalars = st.one_of(st.integers(0, 9), st.booleans(), st.sampled_from(["", "x // y", "# z", "{", '"']))
entries = st.dictionaries(st.sampled_from(["command", "args", "k"]), scalars | st.lists(scalars, max_size=2))
servers = st.dictionaries(names, entries, max_size=3)
line_ends = st.sampled_from(["\n", "\r\n"])


@st.composite
def jsonc_texts(draw: st.DrawFn) -> str:
    data: dict[str, Any] = draw(st.dictionaries(names, scalars, max_size=2))
    if draw(st.booleans()):
        data["mcpServers"] = draw(servers)
    if draw(st.booleans()):
        data["last"] = draw(scalars)
    indent = draw(st.sampled_from([None, 2, 4, "\t"]))
    lines = json.dumps(data, indent=indent, ensure_ascii=False).split("\n")
    decorated: list[str] = []
    for line in lines:
        is_closing = line.strip()[:1] in "}]"
        if is_closing and decorated and decorated[-1][-1:] not in "{[,/" and draw(st.booleans()):
            decorated[-1] += ","
        if indent is not None and draw(st.booleans()):
            line += " " + draw(st.sampled_from(["// one, {", "/* two */"]))
        decorated.append(line)
    head = draw(st.sampled_from(["", "// head\n", "\ufeff", "\n"]))
    text = head + "\n".join(decorated) + draw(st.sampled_from(["", "\n", "\n// end\n"]))
    return text.replace("\n", draw(line_ends))


@st.composite
def toml_texts(draw: st.DrawFn) -> str:
    blocks = draw(
        st.lists(
            st.sampled_from(
                [
                    '# about all\nmodel = "x" # y\n',
                    '[mcp_servers.a]\ncommand = "a"\nargs = [\n  "[b]", # c\n]\n',
                    '[mcp_servers.a.env]\nX = """\n[mcp_servers.mcpmux]\n"""\n',
                    "# about b\n[mcp_servers.b] # b\n\n# inside\nurl = 'u'\n",
                    "[other]\nk = { a = 1 }\n# trailing\n",
                    "[[list]]\nn = 1\n",
                ]
            ),
            unique=True,
            max_size=6,
        )
    )
    blocks.sort(key=lambda block: block.startswith("["))
    blocks.sort(key=lambda block: "model" not in block)
    return draw(st.sampled_from(["\n", ""])).join(blocks).replace("\n", draw(line_ends))


@st.composite
def yaml_texts(draw: st.DrawFn) -> str:
    parts = ["# head\nGOOSE_MODE: auto # mode\n"] if draw(st.booleans()) else []
    if draw(st.booleans()):
        inside = draw(
            st.lists(
                st.sampled_from(
                    [
                        "a:\n{0}  type: builtin # kept\n{0}  list:\n{0}  - x\n{0}  - y\n",
                        "b: {{ type: stdio, args: [1, 2] }}\n",
                        "# about c\n{0}c:\n{0}  text: |\n{0}    one\n\n{0}    two\n",
                        "d:\n{0}  long: one\n{0}    two\n",
                    ]
                ),
                unique=True,
                max_size=4,
            )
        )
        indent = draw(st.sampled_from(["  ", "    "]))
        body = "".join(indent + line.format(indent) for line in inside)
        parts.append(
            f"extensions:\n{body}" if body else draw(st.sampled_from(["extensions: {}\n", "extensions:\n"]))
        )
    parts += ["# tail\nlast: 'q'\n"] if draw(st.booleans()) else []
    return "".join(parts).replace("\n", draw(line_ends))


texts = st.one_of(
    *(
        st.tuples(st.just(format_), made)
        for format_, made in (("json", jsonc_texts()), ("toml", toml_texts()), ("yaml", yaml_texts()))
    )
)


MANY_KINDS = """\
# [no] header
title = "[no]"
[upstreams.notes]
args = [
  ["a"],
  "[no]", # [
]
 [ upstreams . "My Server" ]
url = '''
[no]
key = 1 '''
headers.X-A = { a = "]" }
[[access]]
effect = "allow"
[[access]]
upstreams = ["x"]
[access.more]
key = 1
"""
LINES = {
    ("title",): 2,
    ("upstreams",): 3,
    ("upstreams", "notes", "args", 0): 4,
    ("upstreams", "My Server"): 8,
    ("upstreams", "My Server", "url"): 9,
    ("upstreams", "My Server", "headers", "X-A", "a"): 12,
    ("access", 0): 13,
    ("access", 1, "upstreams", 0): 16,
    ("access", 1, "more", "key"): 18,
    ("access", 1, "effect"): 15,
    ("none",): 0,
}
JSON = '{\r\n // c\r\n "a": {\r\n"b": [\r\n{"c": 1}]}, "d":\r\n1}'
JSON_LINES = {("a",): 3, ("a", "b"): 4, ("a", "b", 0, "c"): 4, ("d",): 5, ("e",): 0}


@pytest.mark.parametrize(
    ("text", "lines"), [(MANY_KINDS, LINES), (MANY_KINDS.replace("\n", "\r\n"), LINES), (JSON, JSON_LINES)]
)
def test_the_line_of_a_mistake_is_that_of_its_key(text: str, lines: dict[KeyPath, int]) -> None:
    is_json = lines is JSON_LINES
    source = SourceDocument("f", is_json, parse(text, "json" if is_json else "toml"), text)
    error = with_lines(ConfigError([Problem(path, "x") for path in lines], "f"), source)
    assert {problem.path: problem.line for problem in error.found} == lines


@given(texts)
def test_what_is_put_in_is_there_and_all_other_text_stays(made: tuple[str, str]) -> None:
    format_, text = made
    path = (*PLACES[format_], NEW)
    original = parse(text, format_)
    after = put(text, format_, path, ENTRY)
    document = parse(after, format_)
    assert value_at(document, path) == ENTRY
    others = {key: value for key, value in (value_at(original, path[:-1]) or {}).items() if key != NEW}
    assert {key: value for key, value in value_at(document, path[:-1]).items() if key != NEW} == others
    assert is_part_of(text.replace(": {}", ":"), after)
    assert after.count("\n") == after.count("\r\n") or "\r\n" not in text


@given(texts)
def test_what_is_taken_out_again_leaves_the_text_as_it_was(made: tuple[str, str]) -> None:
    format_, text = made
    path = (*PLACES[format_], NEW)
    after = remove(put(text, format_, path, ENTRY), format_, path)
    if value_at(parse(text, format_), path[:-1]):
        assert after == text
    else:  # an empty table stays, where the format has one
        assert is_part_of(text.replace(": {}", ":"), after)


@given(texts)
def test_what_is_put_in_twice_is_there_once(made: tuple[str, str]) -> None:
    format_, text = made
    path = (*PLACES[format_], NEW)
    once = put(text, format_, path, ENTRY)
    assert put(once, format_, path, ENTRY) == once
    other = put(once, format_, path, {"command": "b"})
    assert put(other, format_, path, ENTRY) == once


@given(texts, st.data())
def test_any_entry_can_be_taken_out(made: tuple[str, str], data: st.DataObject) -> None:
    format_, text = made
    place = PLACES[format_]
    keys = list(value_at(parse(text, format_), place) or ())
    for key in data.draw(st.permutations(keys)) if keys else ():
        text = remove(text, format_, (*place, key))
    assert not value_at(parse(text, format_), place)


def test_nothing_is_removed_where_nothing_is() -> None:
    assert remove("{}", "json", ("a", "b")) == "{}"


@pytest.mark.parametrize(
    ("format_", "text", "after"),
    [
        ("json", "", '{\n  "s": {\n    "x": {\n      "a": 1\n    }\n  }\n}\n'),
        ("json", "{}", '{\n  "s": {\n    "x": {\n      "a": 1\n    }\n  }\n}'),
        ("json", '{"s":{"y":{}}}', '{"s":{"y":{}, "x": {"a": 1}}}'),
        ("json", '{\n\t"s": {\n\t},\n}', '{\n\t"s": {\n\t\t"x": {\n\t\t\t"a": 1\n\t\t}\n\t},\n}'),
        (
            "json",
            '{\n  "s": {\n    "y": {} // why\n  }\n}\n',
            '{\n  "s": {\n    "y": {}, // why\n    "x": {\n      "a": 1\n    }\n  }\n}\n',
        ),
        ("json", '{\n  "s": null\n}', '{\n  "s": {\n    "x": {\n      "a": 1\n    }\n  }\n}'),
        ("toml", "", "[s.x]\na = 1\n"),
        ("toml", "k = 1", "k = 1\n\n[s.x]\na = 1\n"),
        ("yaml", "", "s:\n  x:\n    a: 1\n"),
        ("yaml", "s: {} # none\n", "s: # none\n  x:\n    a: 1\n"),
        ("yaml", "s:\n    y: 1\nz: 2", "s:\n    y: 1\n    x:\n      a: 1\nz: 2\n"),
    ],
)
def test_how_it_looks(format_: str, text: str, after: str) -> None:
    assert put(text, format_, ("s", "x"), {"a": 1}) == after


@pytest.mark.parametrize(
    ("format_", "text", "problem"),
    [
        ("json", '{"s": [1]}', "`s` is no table"),
        ("json", "[]", "expected a table"),
        ("json", "{", "not valid JSON"),
        ("toml", "s = { y = 1 }", "written in a way that mcpmux cannot change"),
        ("toml", "a = 'geheim\n", "not valid TOML: at "),
        ("yaml", "s: { y: 1 }\n", "written in a way that mcpmux cannot change"),
        ("yaml", "s: [geheim\n", "not valid YAML: at line 2"),
        ("yaml", "- s\n", "expected a table"),
        ("yaml", "s: 2026-99-99\n", "not valid YAML: somewhere"),
    ],
)
def test_what_cannot_be_changed_is_an_error_without_the_text(format_: str, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        put(text, format_, ("s", "x"), {"a": 1})
    assert problem in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_the_missing_extra_is_told_with_its_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.delitem(sys.modules, "mcpmux.hosts.yaml_text", raising=False)
    monkeypatch.delattr(mcpmux.hosts, "yaml_text", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'mcpmux\[goose\]'"):
        parse("extensions: {}", "yaml")
