"""List changes of the suite's TypeScript server through mcpmux: unchanged lists cause no notifications."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers.blocking_client import HttpClient
from tests.peers.revision import MODERN, make_meta
from tests.real.mux import HttpMux, Json, write_config
from tests.real.parts import npm_env
from tests.real.server_conformance.test_scenarios import everything_command
from tests.real.web_server import run_web_server

HEAR_SECONDS = 60.0


@pytest.fixture
def server_url() -> Iterator[str]:
    env = {"NODE_PATH": str(npm_env("everything"))}
    with run_web_server(everything_command("modern"), "listening on", env) as line:
        yield line.split()[-1]


class Listening(threading.Thread):
    """A listen with its own id, open until mcpmux ends it, and the methods of its notifications."""

    def __init__(self, url: str, request_id: int | str, wish: Json) -> None:
        super().__init__(daemon=True)
        params = {"notifications": wish, "_meta": make_meta()}
        request = {"jsonrpc": "2.0", "id": request_id, "method": "subscriptions/listen", "params": params}
        self._messages = HttpClient(url, MODERN).exchange(request)
        next(self._messages)  # the acknowledgement
        self.heard: list[str] = []
        self.changed = threading.Event()

    def run(self) -> None:
        for message in self._messages:
            self.heard.append(message.get("method", "the answer"))
            self.changed.set()


@pytest.mark.parametrize("prefix", ["", "docs"])
def test_a_change_of_tools_is_no_change_of_prompts(tmp_path: Path, server_url: str, prefix: str) -> None:
    upstream = {"url": server_url, "prefix": prefix}
    with HttpMux(write_config(tmp_path, {"docs": upstream})) as mux:
        tools = Listening(mux.url, 1, {"toolsListChanged": True})
        prompts = Listening(mux.url, "1", {"promptsListChanged": True})
        for listening in (tools, prompts):
            listening.start()
        name = f"{prefix}__test_trigger_tool_change".removeprefix("__")
        answer = HttpClient(mux.url, MODERN).ask("tools/call", {"name": name, "arguments": {}})[-1]
        assert "result" in answer, answer
        assert tools.changed.wait(HEAR_SECONDS)
        mux.stop()
    for listening in (tools, prompts):
        listening.join(HEAR_SECONDS)
    assert tools.heard == ["notifications/tools/list_changed", "the answer"]
    assert prompts.heard == ["the answer"]
