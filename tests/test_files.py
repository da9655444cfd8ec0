"""Files are replaced as a whole or not at all."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from mcpmux.errors import ConfigError
from mcpmux.files import read_text, remove_file, replace_private, replace_text


def test_a_new_file_is_private_and_its_folders_are_made(tmp_path: Path) -> None:
    file = tmp_path / "a/b"
    replace_text(file, "ü\r\n", None)
    assert file.read_bytes() == "ü\r\n".encode()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_text(file) == "ü\r\n"


@pytest.mark.parametrize("expected", [None, "b"])
def test_what_is_not_as_expected_stays_and_nothing_is_left_behind(
    tmp_path: Path, expected: str | None
) -> None:
    file = tmp_path / "a"
    file.write_text("a")
    with pytest.raises(ConfigError, match="changed in the meantime"):
        replace_text(file, "c", expected)
    with pytest.raises(ConfigError, match="changed in the meantime"):
        remove_file(file, expected)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["a"]


def test_a_private_file_is_made_anew(tmp_path: Path) -> None:
    file = tmp_path / "a/b"
    replace_private(file, "one")
    file.chmod(0o644)
    replace_private(file, "two")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("two", 0o600)
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    with pytest.raises(ConfigError, match="cannot make the folder"):
        replace_private(file / "c", "")


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write the file"):
        replace_text(tmp_path / "file/a", "", None)
    with pytest.raises(ConfigError, match="cannot read the file"):
        read_text(tmp_path)
    with pytest.raises(ConfigError, match="no name of a file"):
        read_text(Path("a\0b"))


def test_text_that_is_no_utf_8_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"ab\xff")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 3"):
        read_text(tmp_path / "a")


def test_no_file_is_none(tmp_path: Path) -> None:
    assert read_text(tmp_path / "a") is None
    remove_file(tmp_path / "a", None)
