from __future__ import annotations

import tomllib

import pytest

from mcpmux.config.reading import parse_toml
from mcpmux.errors import ConfigError
from mcpmux.hosts.configuration import read_config

TOML = '[upstreams.docs]\ncommand = "npx"\n'
JSON = '{"mcpServers": {"docs": {"command": "npx"}}}'


def no_stdin() -> bytes:
    raise AssertionError("standard input is not asked for")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("mux.toml", TOML),
        ("mux", TOML),
        ("mux.json", JSON),
        ("mux", JSON),
        ("mux.toml", "\n  " + JSON),
        ("mux.txt", "// servers\n" + JSON),
        ("mux.toml", "\ufeff" + TOML),
        ("mux.toml", TOML.replace("\n", "\r\n")),
    ],
)
def test_content_decides_the_format(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content.encode())
    assert read_config(str(path), {}, no_stdin).upstreams[0].name == "docs"


@pytest.mark.parametrize("text", [TOML, JSON, "\ufeff" + JSON])
def test_dash_is_standard_input(text):
    assert read_config("-", {}, text.encode).upstreams[0].name == "docs"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("mux.toml", "[upstreams.docs]\ncommand = \n", ":2:11: invalid TOML: Invalid value"),
        ("mux.toml", "a = 1\na = 2\n", ":2:6: invalid TOML: Cannot overwrite a value"),
        ("mux.toml", '[upstreams.docs]\ncommand = "npx', ":2:15: invalid TOML: "),
        ("mux.toml", "a = " + "9" * 5000, ": invalid TOML: a number is too long"),
        ("mux.json", '{\n  "mcpServers": {,}\n}', ":2:18: invalid JSON: "),
        ("mux.json", "", ":1:1: invalid JSON: Expecting value"),
        ("mux.json", "[]", ": expected an object"),
        ("mux.json", '{"a": ' + "9" * 5000 + "}", ": invalid JSON: a number is too long"),
        (
            "mux.json",
            '{"a": ' + "[" * 100_000,
            ": invalid JSON: a number is too long, the",
        ),
    ],
)
def test_syntax_error_is_told_with_its_position(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        read_config(str(path), {}, no_stdin)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{path}{said}")


def test_file_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / "latin.toml").write_bytes(b"a = '\xe9'")
    cases = {
        str(tmp_path / "none.toml"): "cannot read the file: No such file or directory",
        str(tmp_path): "cannot read the file: Is a directory",
        str(tmp_path / "latin.toml"): "not UTF-8 at byte 6",
        "a\0b": "expected the name of a file",
    }
    for name, reason in cases.items():
        with pytest.raises(ConfigError, match=reason):
            read_config(name, {}, no_stdin)


MANY = ".".join(["a"] * 65)


@pytest.mark.parametrize(
    "text",
    [
        f"{MANY} = 1",
        f"[{MANY}]",
        f"[[ {MANY.replace('.', ' . ')} ]]",
        f'x = {{ y = """a"""", {MANY} = 1 }}',
        f"x = {{ y = '''a''''', {MANY} = 1 }}",
        f"x = 'a\\\\'\n{MANY} = 1",
        f'x = "\\\\"\n\'a\'."b\\"".{MANY} = 1',
        "a.b = 1\n" * 100_001,
    ],
)
def test_keys_that_take_too_much_memory_are_refused(text):
    with pytest.raises(ValueError, match="too many keys"):
        parse_toml(text)
    with pytest.raises(ConfigError, match=r"invalid TOML: .*too many keys"):
        read_config("-", {}, text.encode)


@pytest.mark.parametrize(
    "text", [f"a = '{MANY}'", f'a = """\n{MANY}\n"""', f"a = 1 # {MANY}", f"{MANY[2:]} = 1"]
)
def test_dots_in_texts_and_comments_are_no_keys(text):
    assert parse_toml(text) == tomllib.loads(text)


@pytest.mark.parametrize("deep", ["[" * 64 + "]" * 64, '{"a":' * 900 + "1" + "}" * 900])
def test_a_document_that_is_too_deep_to_be_walked_through_is_refused(deep):
    with pytest.raises(ConfigError, match="nested deeper than 64 levels"):
        read_config("-", {}, f'{{"mcpServers": {{"a": {{"command": "x", "env": {deep}}}}}}}'.encode)
