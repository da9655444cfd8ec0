from __future__ import annotations

import pytest

from tests.real import parts
from tests.real.parts import InstallFailed


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return the calls of a stand-in installer, whose environments live in a directory of the test."""
    monkeypatch.setattr(parts, "HOME", tmp_path / "real")
    calls: list[list[str]] = []
    return calls


def ensure(calls: list[list[str]]):
    return parts._ensure("pip", "sdk1", lambda _directory, wanted: calls.append(wanted))


def fail(_directory, _wanted) -> None:
    raise InstallFailed("no network")


def test_an_environment_is_installed_once(installed):
    assert ensure(installed) == ensure(installed)
    assert installed == [list(parts.requirements("pip", "sdk1"))]


def test_changed_requirements_install_it_anew(installed, monkeypatch):
    directory = ensure(installed)
    (directory / "old").touch()
    monkeypatch.setattr(parts, "requirements", lambda *_: ("changed",))
    ensure(installed)
    assert installed[-1] == ["changed"]
    assert not (directory / "old").exists()


def test_an_interrupted_installation_is_done_again(installed):
    (ensure(installed) / "stamp").unlink()
    ensure(installed)
    assert len(installed) == 2


@pytest.mark.parametrize(("ci", "outcome"), [("1", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_failed_installation_fails_in_ci_and_skips_elsewhere(installed, monkeypatch, ci, outcome):
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="no network"):
        parts._ensure("pip", "sdk1", fail)
    ensure(installed)
    assert len(installed) == 1
