"""Real host apps: what `mcpmux install` writes into their files is what they start, and their models use it.

A model is a script here: it calls the tool when it is offered, and waits for it until then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.process.running import COMMAND
from tests.real.mux import Json
from tests.real.parts import ROOT, npm_env

pytestmark = pytest.mark.slow

CLOCK = f'command = "{sys.executable}"\nargs = ["-m", "mcpmux.demo.clock"]'
LATE_SECONDS = 12  # longer than mcpmux has a client wait for its servers
TURNS = 60
TOOL = "mcp__mcpmux__clock__now"
HOSTS: dict[str, tuple[str, dict[str, str]]] = {
    "claude-code": ("claude", {}),
    "gemini": ("gemini", {"GEMINI_CLI_TRUST_WORKSPACE": "true"}),
}
"""The name for `mcpmux install` -> the program and its environment."""
QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "ENABLE_TOOL_SEARCH": "false",
}


class Home:
    """A user's home folder, with a project in it. `run` runs a program there."""

    def __init__(self, folder: Path, upstream: str, **env: str) -> None:
        self.project = folder / "project"
        self.project.mkdir(parents=True)
        (self.project / "mcpmux.toml").write_text(f"[upstreams.clock]\n{upstream}\n")
        path = f"{Path(sys.executable).parent}:{npm_env('hosts') / '.bin'}:{os.environ['PATH']}"
        self._env = {"HOME": str(folder), "PATH": path, "PYTHONPATH": str(ROOT), "TERM": "dumb"} | QUIET | env

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command,
            cwd=self.project,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def mcpmux(self, *arguments: str) -> str:
        return self.run(*COMMAND, *arguments)

    def shared(self) -> list[int]:
        """Return the processes that host apps of this home share: one for its file, or none."""
        running = [json.loads(line) for line in self.mcpmux("ps", "--json").splitlines()]
        return [mux["pid"] for mux in running if Path(mux["file"]).is_relative_to(self.project.resolve())]


@contextmanager
def open_home(folder: Path, upstream: str, **env: str) -> Iterator[Home]:
    """Yield a home folder. The mcpmux that its host apps share is stopped at the end."""
    home = Home(folder, upstream, **env)
    try:
        yield home
    finally:
        if home.shared():
            home.mcpmux("stop", "mcpmux.toml")


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_app_connects_to_the_mcpmux_that_is_installed_in_it(host: str, tmp_path: Path) -> None:
    program, env = HOSTS[host]
    with open_home(tmp_path, CLOCK, **env) as home:
        assert "mcpmux:" not in home.run(program, "mcp", "list")  # which makes its folders, too
        home.mcpmux("install", host, "--yes")
        (line,) = [line for line in home.run(program, "mcp", "list").splitlines() if "mcpmux:" in line]
        assert line.endswith("Connected")
        home.mcpmux("uninstall", host, "--yes")
        assert "mcpmux:" not in home.run(program, "mcp", "list")


def test_two_host_apps_share_one_mcpmux(tmp_path: Path) -> None:
    env = {name: value for _, variables in HOSTS.values() for name, value in variables.items()}
    with open_home(tmp_path, CLOCK, **env) as home:
        seen = []
        for name, (program, _) in HOSTS.items():
            home.run(program, "mcp", "list")  # which makes its folders
            home.mcpmux("install", name, "--yes")
            assert "Connected" in home.run(program, "mcp", "list")
            seen.append(home.shared())
        assert len(seen[0]) == 1
        assert seen[0] == seen[1]


class Model(BaseHTTPRequestHandler):
    """Answers requests for messages. `results`: what the tool said."""

    results: list[str]

    def log_message(self, *_: object) -> None:
        """Log no requests, as no test reads this log."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self.path.startswith("/v1/messages?"):
            self.send_error(404)
            return
        block, reason = self._next(request)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        if block["type"] == "tool_use":
            empty: Json = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        else:
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        message = {"id": "m", "type": "message", "role": "assistant", "model": "script", "content": []}
        self._tell("message_start", message={**message, "usage": {"input_tokens": 1, "output_tokens": 1}})
        self._tell("content_block_start", index=0, content_block=empty)
        self._tell("content_block_delta", index=0, delta=delta)
        self._tell("content_block_stop", index=0)
        self._tell("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 1})
        self._tell("message_stop")

    def _tell(self, kind: str, **members: Any) -> None:
        self.wfile.write(f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode())

    def _next(self, request: Json) -> tuple[Json, str]:
        """Return the model's next block, and the reason for which it stops."""
        contents = [
            message["content"] for message in request["messages"] if isinstance(message["content"], list)
        ]
        parts = [part for content in contents for part in content]
        results = [part for part in parts if part["type"] == "tool_result" and part["tool_use_id"] == "now"]
        self.results += [str(result["content"]) for result in results]
        if results or len(request["messages"]) > 2 * TURNS:
            return {"type": "text", "text": "done"}, "end_turn"
        if any(tool["name"] == TOOL for tool in request.get("tools", ())):
            return {"type": "tool_use", "id": "now", "name": TOOL, "input": {}}, "tool_use"
        wait = {"type": "tool_use", "id": f"wait{len(request['messages'])}", "name": "Bash"}
        return {**wait, "input": {"command": "sleep 1"}}, "tool_use"


@contextmanager
def running_model() -> Iterator[tuple[str, list[str]]]:
    """Run the model, and yield its URL and the results of its tool."""
    results: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Said", (Model,), {"results": results}))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", results
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_model_calls_a_tool_of_a_server_that_came_late(tmp_path: Path) -> None:
    late = f"sleep {LATE_SECONDS}; exec {sys.executable} -m mcpmux.demo.clock"
    with running_model() as (url, results):
        env = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "of-nobody"}
        with open_home(tmp_path, f'command = "sh"\nargs = ["-c", "{late}"]', **env) as home:
            home.mcpmux("install", "claude-code", "--yes")
            asking = ["claude", "--print", "What time is it?", "--allowedTools", f"{TOOL},Bash"]
            assert home.run(*asking).strip() == "done"
        assert results
        assert set(json.loads(results[0])) == {"time", "zone", "weekday"}
