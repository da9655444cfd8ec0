"""Many servers and long lists, seen whole by real clients. The servers are processes, but light ones."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.real.mux import HttpMux, Json, stdio, write_config
from tests.real.sdk import CLIENTS, see

PLAIN_SERVER = Path(__file__).parent / "plain_server.py"


def plain(name: str, count: int, page_size: int) -> Json:
    """Return an upstream with `count` resources `name:0`, `name:1` and so on."""
    python = [sys.executable, "-I", "-S"]  # without its site: it starts in half the time
    return stdio([*python, str(PLAIN_SERVER), name, str(count), str(page_size)])


@pytest.mark.parametrize("name", ["sdk1", "sdk2"])
def test_long_lists_of_five_servers_are_seen_whole(
    request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    names = [f"server{number}" for number in range(5)]
    config = write_config(tmp_path, {name: plain(name, 1000, page_size=100) for name in names})
    with HttpMux(config) as mux:
        seen = see(CLIENTS[name].found(request), {"mcpmux": {"url": mux.url, "read": False}})["mcpmux"]
    uris = [item["uri"] for item in seen["resources"]]
    assert seen["pages"]["resources"] == 5
    for name in names:
        own = [uri for uri in uris if uri.startswith(f"{name}+")]
        assert own == [f"{name}+{name}:{number}" for number in range(1000)]
    assert len(uris) == 5000


def test_a_hundred_servers_are_seen_whole(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    names = [f"server{number}" for number in range(100)]
    config = write_config(tmp_path, {name: plain(name, 3, page_size=2) for name in names})
    with HttpMux(config) as mux:
        seen = see(CLIENTS["sdk2"].found(request), {"mcpmux": {"url": mux.url}})["mcpmux"]
    expected = {f"{name}+{name}:{number}" for name in names for number in range(3)}
    assert Counter(item["uri"] for item in seen["resources"]) == Counter(expected)
    assert {uri: result["contents"][0]["text"] for uri, result in seen["contents"].items()} == {
        uri: uri.partition("+")[2] for uri in expected
    }
