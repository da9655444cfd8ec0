from __future__ import annotations

import pytest

from mcpmux.config import Secret, Stdio
from mcpmux.config.expansion import read_env_file
from mcpmux.config.report import InvalidValue
from mcpmux.errors import ConfigError
from mcpmux.hosts.configuration import read_config


def test_assignments_are_read(tmp_path):
    text = """
# a comment
PLAIN=one two
export EXPORTED = three
QUOTED="four # five"
SINGLE='six'
EMPTY=
DOLLAR=${PLAIN}
PLAIN=last
"""
    (tmp_path / ".env").write_text(text)
    revealed = {name: value.reveal() for name, value in read_env_file(str(tmp_path / ".env")).items()}
    assert revealed == {
        "PLAIN": "last",
        "EXPORTED": "three",
        "QUOTED": "four # five",
        "SINGLE": "six",
        "EMPTY": "",
        "DOLLAR": "${PLAIN}",
    }


def test_lines_that_are_no_assignment_are_numbered_and_not_shown(tmp_path):
    (tmp_path / ".env").write_text("A=1\nhunter2\n1X=hunter2\n")
    with pytest.raises(InvalidValue) as caught:
        read_env_file(str(tmp_path / ".env"))
    assert "line 2, 3" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_file_that_cannot_be_read_is_a_mistake(tmp_path):
    (tmp_path / "latin").write_bytes(b"A=\xe9")
    for path, reason in (
        (tmp_path / "none", "No such file"),
        (tmp_path, "directory"),
        (tmp_path / "latin", "UTF-8"),
    ):
        with pytest.raises(InvalidValue, match=reason):
            read_env_file(str(path))


def load(folder, text, environ):
    (folder / "mux.toml").write_text(text)
    return read_config(str(folder / "mux.toml"), environ, bytes)


def test_variables_of_a_file_fill_references_and_go_to_no_server(tmp_path):
    (tmp_path / ".env").write_text("TOKEN=file\nNAME=mine\n")
    text = """
    env_file = "${NAME}.env"
    [upstreams.docs]
    command = "npx"
    env = { KEY = "${TOKEN}" }
    [identity]
    name = "${NAME}"
    """
    config = load(tmp_path, text, {"NAME": "", "TOKEN": "shell"})
    assert config.upstreams[0].target == Stdio("npx", (), {"KEY": Secret("file")})
    assert config.identity.name == "mine"


def test_the_env_file_that_is_nearest_to_the_server_wins(tmp_path):
    (tmp_path / "all").write_text("A=all\nB=all\nC=all\n")
    (tmp_path / "docs").write_text("B=docs\nC=docs\n")
    text = """
    env_file = "all"
    [upstreams.docs]
    command = "npx"
    args = ["${A}", "${B}"]
    env_file = "docs"
    env = { C = "env" }
    [upstreams.web]
    url = "https://x.example/${B}"
    """
    docs, web = load(tmp_path, text, {"A": "shell"}).upstreams
    assert docs.target == Stdio("npx", ("all", "docs"), {"B": Secret("docs"), "C": Secret("env")})
    assert web.target.url == "https://x.example/all"


def test_env_file_that_cannot_be_read_stops_only_what_needs_it(tmp_path):
    (tmp_path / ".env").write_text("hunter2\n")
    problem = "env_file: expected `NAME=value` in the file's line 1"
    text = 'env_file = ".env"\n[upstreams.a]\ncommand = "npx"\n[upstreams.b]\ncommand = "${B}"\n'
    config = load(tmp_path, text, {})
    assert config.notes == (problem,)
    assert config.upstreams[0].target == Stdio("npx")
    assert config.upstreams[1].target.reason.endswith(f"; {problem}")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f'{text}[identity]\nname = "${{B}}"', {})
    assert [(mistake.line, str(mistake)[:14]) for mistake in caught.value.found] == [
        (1, problem[:14]),
        (7, "identity.name:"),
    ]
