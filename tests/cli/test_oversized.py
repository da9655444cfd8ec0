"""A message over the limit on standard input: refused in words, everything around it unharmed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CONFIG = """
[upstreams.clock]
command = {python}
args = ["-m", "mcpmux.demo.clock"]
[limits]
max_message_bytes = 2048
"""
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


def line(request_id: int, method: str, params: object) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}) + "\n"


def test_an_oversized_line_is_refused_and_the_others_are_answered(tmp_path: Path):
    config = tmp_path / "mux.toml"
    config.write_text(CONFIG.format(python=json.dumps(sys.executable)))
    lines = (
        line(1, "initialize", INITIALIZE) + line(2, "tools/call", {"name": "x" * 5000}) + line(3, "ping", {})
    )
    done = subprocess.run(
        [sys.executable, "-m", "mcpmux", "serve", str(config), "--stdio"],
        input=lines,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    answers = [json.loads(text) for text in done.stdout.splitlines()]
    assert sorted(answer["id"] for answer in answers if "id" in answer) == [1, 3]
    (refusal,) = [answer for answer in answers if "id" not in answer]
    assert refusal["error"]["code"] == -32600
    assert "over the limit of 2048 bytes" in refusal["error"]["message"]
    assert "Traceback" not in done.stderr
