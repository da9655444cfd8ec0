"""mcpmux corrects messages of one SDK's servers that another SDK's clients would not accept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.peers.blocking_client import HttpClient
from tests.peers.revision import MODERN
from tests.real.mux import HttpMux, stdio, write_config

NOTES = """
from mcp.server.fastmcp import FastMCP
server = FastMCP("notes")
@server.resource("memo://known")
def known() -> str:
    return "text"
server.run("stdio")
"""
"""A server on the Python SDK 1.x: it answers with code 0 when a resource is not known."""

TERSE = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    results = {
        "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}},
        "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "called"}]},
    }
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": results[asked["method"]]}), flush=True)
"""
"""A server of 2026-07-28 that leaves out `resultType` and the caching hints."""

CALL = """
import anyio, sys
from mcp import Client
async def call():
    async with Client(sys.argv[1], mode="auto", cache=None) as client:
        listed = await client.list_tools()
        called = await client.call_tool(listed.tools[0].name, {})
        print(client.protocol_version, called.content[0].text)
anyio.run(call)
"""


def test_an_error_of_the_python_sdk_names_the_resource_as_clients_do(
    tmp_path: Path, sdk1_python: str
) -> None:
    script = tmp_path / "notes.py"
    script.write_text(NOTES)
    with HttpMux(write_config(tmp_path, {"notes": stdio([sdk1_python, str(script)])})) as mux:
        for revision, code in ((MODERN, -32602), ("2025-11-25", -32002)):
            client = HttpClient(mux.url, revision)
            client.hello()
            answer = client.ask("resources/read", {"uri": "notes+memo://known"})[-1]
            assert answer["result"]["contents"][0]["text"] == "text"
            error = client.ask("resources/read", {"uri": "notes+memo://unknown"})[-1]["error"]
            assert (error["code"], error["data"]["uri"]) == (code, "notes+memo://unknown")
            assert error["data"]["error"]["code"] == 0
            assert "memo://unknown" in error["data"]["error"]["message"]


@pytest.mark.parametrize("prefix", ["", "docs"])
def test_the_python_sdks_client_takes_what_a_server_left_half_said(
    tmp_path: Path, sdk2_python: str, prefix: str
) -> None:
    script = tmp_path / "terse.py"
    script.write_text(TERSE)
    upstream = stdio([sys.executable, str(script)], prefix=prefix)
    with HttpMux(write_config(tmp_path, {"docs": upstream})) as mux:
        command = [sdk2_python, "-c", CALL, mux.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == [MODERN, "called"], done.stderr[-2000:]
