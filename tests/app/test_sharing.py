from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from mcpmux.app.sharing import ClientCount, SharedPlace, fingerprints, make_private
from mcpmux.errors import TransportError


async def test_it_is_unused_when_the_last_client_is_away_for_long_enough(autojump_clock: MockClock) -> None:
    count = ClientCount()

    async def visit(after: float, seconds: float) -> None:
        await trio.sleep(after)
        with count.counting():
            await trio.sleep(seconds)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(visit, 50, 500)
        nursery.start_soon(visit, 300, 310)
        await count.unused(60)
        assert trio.current_time() == 300 + 310 + 60


def test_variables_have_fingerprints_and_no_values() -> None:
    text = 'a = "${GH_TOKEN}"\nb = "${env:OTHER}-${GH_TOKEN}"\nc = "${ABSENT:-x}"'
    prints = fingerprints(text, {"GH_TOKEN": "secret", "OTHER": "secret", "UNUSED": "x"})
    assert prints.keys() == {"ABSENT", "GH_TOKEN", "OTHER"}
    assert prints["ABSENT"] == ""
    assert prints["GH_TOKEN"] != prints["OTHER"]
    assert "secret" not in str(prints)


def test_a_file_has_one_place_whatever_leads_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file, link = tmp_path / "mux.toml", tmp_path / "link.toml"
    file.touch()
    link.symlink_to(file)
    assert SharedPlace.of(link) == SharedPlace.of(file)
    assert SharedPlace.of(link) != SharedPlace.of(tmp_path / "other.toml")


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    for folder in (open_to_all, link):
        with pytest.raises(TransportError, match="only you can enter"):
            make_private(folder)
    make_private(tmp_path / "ours")
    make_private(tmp_path / "ours")
