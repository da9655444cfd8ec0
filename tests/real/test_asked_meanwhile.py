"""Servers that ask on their own: about a subscription, and for roots as soon as they run."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.peers.blocking_client import HttpClient
from tests.peers.revision import MODERN
from tests.real.mux import HttpMux, stdio, write_config
from tests.real.parts import npm_env

URI = "everything+test://static/resource/1"
SAMPLED = {"role": "assistant", "content": {"type": "text", "text": "ho"}, "model": "m"}
ANSWERS = {"sampling/createMessage": SAMPLED, "roots/list": {"roots": [{"uri": "file:///home"}]}}
ASK_SECONDS = 60.0


class Asked(threading.Thread):
    """A client that answers what it is asked on its own stream."""

    def __init__(self, url: str, revision: str) -> None:
        super().__init__(daemon=True)
        self.client = HttpClient(url, revision)
        offered = {"sampling": {}, "roots": {"listChanged": True}}
        named = {"name": "asked", "version": "1"}
        hello = {"protocolVersion": revision, "capabilities": offered, "clientInfo": named}
        assert "result" in self.client.ask("initialize", hello)[-1]
        self.client.tell({"jsonrpc": "2.0", "method": "notifications/initialized"})
        self._stream = self.client.heard()
        self.asked: list[str] = []
        self.was_asked = threading.Event()
        self.start()

    def run(self) -> None:
        for message in self._stream:
            if "id" in message:
                self.asked.append(message["method"])
                answer = {"jsonrpc": "2.0", "id": message["id"], "result": ANSWERS[message["method"]]}
                self.client.tell(answer)
                self.was_asked.set()


@pytest.mark.parametrize("release", ["2025-03-26", "2025-06-18"])
def test_what_a_server_asks_in_a_subscription_is_for_its_client(tmp_path: Path, release: str) -> None:
    program = str(npm_env(f"everything-{release}") / ".bin" / "mcp-server-everything")
    with HttpMux(write_config(tmp_path, {"everything": stdio([program, "stdio"])})) as mux:
        bystander, client = Asked(mux.url, release), Asked(mux.url, release)
        assert client.client.ask("resources/subscribe", {"uri": URI})[-1]["result"] == {}
        assert client.asked[-1] == "sampling/createMessage"
        assert "sampling/createMessage" not in bystander.asked


def test_a_server_started_before_any_client_gets_the_roots_of_the_first(tmp_path: Path) -> None:
    program = str(npm_env("everything-2025-06-18") / ".bin" / "mcp-server-everything")
    with HttpMux(write_config(tmp_path, {"everything": stdio([program, "stdio"])})) as mux:
        tools = HttpClient(mux.url, MODERN).ask("tools/list")[-1]["result"]["tools"]
        assert tools, "it is there, and has asked"
        client = Asked(mux.url, "2025-06-18")
        assert client.was_asked.wait(ASK_SECONDS)
        assert client.asked == ["roots/list"]
