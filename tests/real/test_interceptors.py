"""Interceptors that a server on an official SDK hosts, in front of another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpmux.errors import RpcError
from mcpmux.library import open_mux
from tests.real.parts import pip_env

HERE = Path(__file__).parent


async def test_a_server_on_the_sdk_changes_and_refuses_calls() -> None:
    python = str(pip_env("sdk2"))
    config = {
        "upstreams": {
            "x": {"command": python, "args": [str(HERE / "sdk2_server.py"), "stdio"]},
            "guards": {"command": python, "args": [str(HERE / "interceptor_server.py")]},
        },
        "intercept": [{"server": "guards", "methods": ["tools/call"], "timeout": "20s"}],
    }
    async with open_mux(config) as mux, mux.client() as client:
        result = await client.request("tools/call", {"name": "x__echo", "arguments": {"text": "hello"}})
        assert result["content"][0]["text"] == "hello, please"
        with pytest.raises(RpcError, match="it has a secret"):
            await client.request("tools/call", {"name": "x__echo", "arguments": {"text": "a secret"}})
