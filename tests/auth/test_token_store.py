"""Where logins are kept."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from mcpmux.auth.token_store import Login, LoginFile, OAuthClient, StoreTrouble, Tokens, default_folder
from mcpmux.errors import TransportError

URL = "https://x.example/mcp"


def make_login(access: str = "SECRET-1", url: str = URL) -> Login:
    client = OAuthClient("me", "SECRET-2")
    return Login("x", url, "https://as.example", url, client, Tokens(access, "SECRET-3", 7.0))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_kept_comes_back_and_is_for_the_user_alone(tmp_path: Path) -> None:
    file = LoginFile(tmp_path / "state" / "logins", "x", URL)
    mask = os.umask(0)
    try:
        file.save(make_login("old"))
        file.save(make_login())
    finally:
        os.umask(mask)
    assert file.load() == make_login()
    assert mode(file.path) == 0o600
    assert mode(tmp_path / "state" / "logins") == 0o700
    assert [path.name for path in (tmp_path / "state" / "logins").iterdir()] == [file.path.name]


def test_a_folder_that_others_may_enter_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    LoginFile(tmp_path, "x", URL).save(make_login())
    assert mode(tmp_path) == 0o700


def test_the_same_name_for_another_server_is_another_login(tmp_path: Path) -> None:
    file = LoginFile(tmp_path, "x", URL)
    file.save(make_login())
    other = LoginFile(tmp_path, "x", "https://evil.example/mcp")
    assert other.load() is None
    file.path.rename(other.path)
    assert other.load() is None


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o666])
def test_a_file_that_others_can_read_is_not_used(tmp_path: Path, bits: int) -> None:
    file = LoginFile(tmp_path, "x", URL)
    file.save(make_login())
    file.path.chmod(bits)
    with pytest.raises(StoreTrouble, match="chmod 600"):
        file.load()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"upstream": "x"}', b"\xff"])
def test_a_damaged_file_is_told(tmp_path: Path, data: bytes) -> None:
    file = LoginFile(tmp_path, "x", URL)
    file.save(make_login())
    file.path.write_bytes(data)
    with pytest.raises(StoreTrouble, match="log in anew"):
        file.load()


def test_a_failed_write_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = LoginFile(tmp_path, "x", URL)
    file.save(make_login())

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreTrouble, match="no space left"):
        file.save(make_login("new"))
    assert file.load() == make_login()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_login_is_forgotten_once(tmp_path: Path) -> None:
    file = LoginFile(tmp_path / "none", "x", URL)
    assert not file.remove()
    file.save(make_login())
    assert file.remove()
    assert file.load() is None


def test_nothing_secret_is_in_a_repr() -> None:
    login = make_login()
    assert "SECRET" not in f"{login!r} {login.client!r} {login.tokens!r}"


@pytest.mark.parametrize(
    ("said", "folder"), [("/s", "/s"), ("", "/h/.local/state"), ("rel", "/h/.local/state")]
)
def test_state_is_where_the_environment_says(said: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setenv("XDG_STATE_HOME", said)
    assert default_folder() == Path(folder) / "mcpmux" / "logins"


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)  # that no database of users has
    with pytest.raises(TransportError, match="set HOME or XDG_STATE_HOME"):
        default_folder()
