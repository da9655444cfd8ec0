"""Many messages at once on standard input, some of them not as they should be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.peers.revision import make_greeting
from tests.process.running import demo_table

CONFIG = demo_table("clock") + "[limits]\nmax_message_bytes = 2048\n"


def line(request_id: int, method: str, params: object) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}) + "\n"


def test_all_lines_that_are_piped_at_once_are_answered(tmp_path: Path):
    config = tmp_path / "mux.toml"
    config.write_text(CONFIG)
    lines = (
        "\ufeff"
        + line(1, "initialize", make_greeting("2025-11-25"))
        + '{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
        + line(2, "tools/call", {"name": "x" * 5000})
        + line(3, "ping", {})
        + line(4, "tools/list", {})
        + line(5, "tools/call", {"name": "clock__tick", "arguments": {"zone": "\ud83d"}})
        + line(6, "tools/call", {})[:-4]
        + "\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mcpmux", "serve", str(config), "--stdio"],
        input=lines,
        capture_output=True,
        encoding="utf-8",
        timeout=30,
        check=True,
    )
    answers = [json.loads(text) for text in done.stdout.splitlines()]
    by_id = {answer["id"]: answer for answer in answers if "id" in answer}
    assert sorted(by_id) == [1, 2, 3, 4, 5, 6]
    assert by_id[2]["error"]["code"] == -32600
    assert "over the limit of 2048 bytes" in by_id[2]["error"]["message"]
    assert by_id[4]["result"]["tools"]
    assert by_id[5]["error"]["code"] != -32700 if "error" in by_id[5] else by_id[5]["result"]
    assert by_id[6]["error"]["code"] == -32700
    assert "Traceback" not in done.stderr
