from __future__ import annotations

import pytest

from benchmarks.peers import install
from tests.real import parts


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return the calls of a stand-in installer, whose environments live in a directory of the test."""
    monkeypatch.setattr(install, "HOME", tmp_path / "real")
    calls: list[tuple[str, ...]] = []
    monkeypatch.setitem(install.INSTALLERS, "pip", lambda _directory, wanted: calls.append(wanted))
    return calls


def fail(_directory, _wanted) -> None:
    raise install.CannotRun("no network")


def test_an_environment_is_installed_once(installed):
    assert parts.pip_env("sdk1") == parts.pip_env("sdk1")
    assert installed == [parts.requirements("pip", "sdk1")]


def test_changed_requirements_install_it_anew(installed, monkeypatch):
    directory = parts.pip_env("sdk1").parents[1]
    (directory / "old").touch()
    monkeypatch.setattr(parts, "requirements", lambda *_: ("changed",))
    parts.pip_env("sdk1")
    assert installed[-1] == ("changed",)
    assert not (directory / "old").exists()


def test_an_interrupted_installation_is_done_again(installed):
    (parts.pip_env("sdk1").parents[1] / "stamp").unlink()
    parts.pip_env("sdk1")
    assert len(installed) == 2


@pytest.mark.parametrize(("ci", "outcome"), [("1", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_failed_installation_fails_in_ci_and_skips_elsewhere(installed, monkeypatch, ci, outcome):
    monkeypatch.setenv("CI", ci)
    with monkeypatch.context() as patch:
        patch.setitem(install.INSTALLERS, "pip", fail)
        with pytest.raises(outcome, match="no network"):
            parts.pip_env("sdk1")
    parts.pip_env("sdk1")
    assert len(installed) == 1
