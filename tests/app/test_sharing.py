from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from mcpmux.app.listeners import Serving
from mcpmux.app.sharing import (
    LINGER_SECONDS,
    Hello,
    SharedMux,
    SharedPlace,
    fingerprints,
    make_private,
)
from mcpmux.config import Limits
from mcpmux.errors import TransportError
from tests.peers.server import ScriptedServer
from tests.runtime.world import open_world


async def test_it_ends_when_the_last_client_is_away_for_long_enough(autojump_clock: MockClock) -> None:
    stopping = trio.Event()
    async with open_world({"docs": ScriptedServer()}) as world:
        serving = Serving(Limits(), world.mux.service, stopping, print)
        mux = SharedMux(SharedPlace(Path("/mux.toml"), Path("/mux.sock"), Path("/mux.log")), {})

        async def visit(after: float, seconds: float) -> None:
            await trio.sleep(after)
            ours, theirs = memory_stream_pair()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(mux.serve_client, serving, theirs, "")
                for message in (Hello(), {"jsonrpc": "2.0", "id": 1, "method": "ping"}):
                    await ours.send_all(msgspec.json.encode(message) + b"\n")
                    assert await ours.receive_some()
                await trio.sleep(seconds)
                await ours.aclose()

        async with trio.open_nursery() as nursery:
            began = trio.current_time()
            nursery.start_soon(visit, 50, 50)
            nursery.start_soon(visit, 80, 200)
            await mux.end_unused(stopping)
            assert 0 <= trio.current_time() - began - (80 + 200 + LINGER_SECONDS) < 1
    assert stopping.is_set()


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
    assert SharedPlace.of(link).socket == SharedPlace.of(file).socket
    assert SharedPlace.of(link).socket != SharedPlace.of(tmp_path / "other.toml").socket
    assert SharedPlace.of(link).file == link


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
