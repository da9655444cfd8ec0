"""Lists of a real server that promises to announce changes and announces none: never older than a call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers.blocking_client import HttpClient
from tests.peers.revision import MODERN
from tests.real.mux import HttpMux, stdio, write_config


@pytest.fixture
def mux(tmp_path: Path, sdk2_command: list[str]) -> Iterator[HttpMux]:
    with HttpMux(write_config(tmp_path, {"notes": stdio(sdk2_command), "more": stdio(sdk2_command)})) as mux:
        yield mux


@pytest.mark.parametrize("revision", [MODERN, "2025-11-25"])
def test_a_resource_that_a_tool_has_added_is_listed(mux: HttpMux, revision: str) -> None:
    client = HttpClient(mux.url, revision)
    hello = client.hello()[-1]["result"]
    assert hello["capabilities"]["resources"]["listChanged"] is True

    def count() -> int:
        return len(client.ask("resources/list")[-1]["result"]["resources"])

    start = count()
    for added in range(1, 4):
        client.ask("tools/call", {"name": "notes__grow", "arguments": {}})
        assert count() == count() == start + added
