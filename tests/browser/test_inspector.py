"""The command line of the MCP Inspector shows the same of a server with and without mcpmux."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.real.differences import ASKING_TOOLS, unmarked
from tests.real.mux import HttpMux, Json, stdio, write_config
from tests.real.parts import npm_env
from tests.whole import WHOLE

SECONDS = 120
PROGRAM = Path("@modelcontextprotocol/inspector/clients/launcher/build/index.js")
READ = "demo://resource/static/document/features.md"
REQUESTS = {
    "tools": ["--method", "tools/list"],
    "resources": ["--method", "resources/list"],
    "prompts": ["--method", "prompts/list"],
    "call": ["--method", "tools/call", "--tool-name", "get-sum", "--tool-arg", "a=2", "b=3"],
    "read": ["--method", "resources/read", "--uri", READ],
}

ERAS = {"tools": "legacy", "resources": "modern", "prompts": "legacy", "call": "modern", "read": "modern"}

Ask = Callable[[str], Json]
"""Ask one of REQUESTS: what the Inspector printed."""


def inspect(target: list[str], request: list[str]) -> Json:
    modules = npm_env("inspector")
    command = [str(modules / ".bin" / "node"), str(modules / PROGRAM), "--cli", *target, *request]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    printed: Json = json.loads(done.stdout)
    return printed


@pytest.fixture(scope="module")
def directly(everything_command: list[str]) -> Ask:
    @cache
    def ask(request: str) -> Json:
        return inspect(everything_command, REQUESTS[request])

    return ask


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, everything_command: list[str]) -> Path:
    upstreams = {"everything": stdio(everything_command, prefix="")}
    return write_config(tmp_path_factory.mktemp("inspector"), upstreams)


@pytest.fixture(scope="module")
def url(config: Path) -> Iterator[str]:
    with HttpMux(config) as mux:
        yield mux.url


def same(printed: Json) -> Json:
    """Keep the parts of the output that may not differ, by the rules of `differences.py`."""
    kept: Json = unmarked(printed)
    if "tools" in kept:
        tools = [tool for tool in kept["tools"] if tool["name"] not in ASKING_TOOLS]
        return {**kept, "tools": [{key: tool[key] for key in tool if key != "execution"} for tool in tools]}
    return kept


@pytest.mark.parametrize(
    ("request_name", "era"),
    [(name, era) for name in REQUESTS for era in ("legacy", "modern") if WHOLE or era == ERAS[name]],
)
def test_it_shows_the_same_over_http(url: str, directly: Ask, request_name: str, era: str) -> None:
    target = [url, "--transport", "http", "--protocol-era", era]
    printed = inspect(target, REQUESTS[request_name])
    assert same(printed) == same(directly(request_name))


@pytest.mark.parametrize("request_name", REQUESTS if WHOLE else ["call"])
def test_it_shows_the_same_over_stdio(config: Path, directly: Ask, request_name: str) -> None:
    mux = [sys.executable, "-m", "mcpmux", "serve", str(config), "--stdio"]
    printed = inspect(mux, REQUESTS[request_name])
    assert same(printed) == same(directly(request_name))
