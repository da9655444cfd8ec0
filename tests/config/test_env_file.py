from __future__ import annotations

import pytest

from mcpmux.config.expansion import parse_env_file, read_env_file
from mcpmux.config.report import InvalidValue


def test_assignments_are_read():
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
    revealed = {name: value.reveal() for name, value in parse_env_file(text).items()}
    assert revealed == {
        "PLAIN": "last",
        "EXPORTED": "three",
        "QUOTED": "four # five",
        "SINGLE": "six",
        "EMPTY": "",
        "DOLLAR": "${PLAIN}",
    }


def test_lines_that_are_no_assignment_are_numbered_and_not_shown():
    with pytest.raises(InvalidValue) as caught:
        parse_env_file("A=1\nhunter2\n1X=hunter2\n")
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
