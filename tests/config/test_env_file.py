from __future__ import annotations

import pytest

from mcpmux.config.expansion import read_env_file
from mcpmux.config.report import InvalidValue


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
