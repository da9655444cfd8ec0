"""Real host apps: what `mcpmux install` writes into their files is what they start, and their models use it.

A model is a script here: it calls the tool when it is offered, and waits for it until then.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.process.running import COMMAND, WAIT_SECONDS, is_gone, wait_until
from tests.real.mux import Json
from tests.real.parts import ROOT, npm_env

pytestmark = pytest.mark.slow

CLOCK = f'command = "{sys.executable}"\nargs = ["-m", "mcpmux.demo.clock"]'
LATE_SECONDS = 12  # longer than mcpmux has a client wait for its servers
TURNS = 60
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
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a program that ends with this home, and return its process."""
        process = subprocess.Popen(
            command,
            cwd=self.project,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

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

    def shared(self) -> list[tuple[int, int]]:
        """Return the process that host apps of this home share, if it runs, and the number of its clients."""
        running = [json.loads(line) for line in self.mcpmux("ps", "--json").splitlines()]
        project = self.project.resolve()
        return [(mux["pid"], mux["clients"]) for mux in running if Path(mux["file"]).is_relative_to(project)]


@contextmanager
def open_home(folder: Path, upstream: str, **env: str) -> Iterator[Home]:
    """Yield a home folder. The mcpmux that its host apps share is stopped at the end."""
    home = Home(folder, upstream, **env)
    try:
        yield home
    finally:
        for process in home.started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=WAIT_SECONDS)
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
            seen.append([pid for pid, _ in home.shared()])
        assert len(seen[0]) == 1
        assert seen[0] == seen[1]


class Model(BaseHTTPRequestHandler):
    """A script that calls `tool` with `arguments` when it is offered, and adds the answer to `results`."""

    tool: str
    arguments: Json
    results: list[str]

    def log_message(self, *_: object) -> None:
        """Log no requests, as no test reads this log."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        events = self._answer(request)
        if events is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for event in events:
            name = f"event: {event['type']}\n" if "type" in event else ""
            self.wfile.write(f"{name}data: {json.dumps(event)}\n\n".encode())

    def _answer(self, request: Json) -> list[Json] | None:
        """Return the events of the model's next answer; None for a request that is not for one."""
        raise NotImplementedError


class Claude(Model):
    """A model that answers as Anthropic's do."""

    def _answer(self, request: Json) -> list[Json] | None:
        if not self.path.startswith("/v1/messages?"):
            return None
        block, reason = self._next(request)
        if block["type"] == "tool_use":
            empty: Json = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        else:
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        message = {"id": "m", "type": "message", "role": "assistant", "model": "script", "content": []}
        usage = {"input_tokens": 1, "output_tokens": 1}
        return [
            {"type": "message_start", "message": {**message, "usage": usage}},
            {"type": "content_block_start", "index": 0, "content_block": empty},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ]

    def _next(self, request: Json) -> tuple[Json, str]:
        """Return the model's next block, and the reason for which it stops."""
        contents = [
            message["content"] for message in request["messages"] if isinstance(message["content"], list)
        ]
        parts = [part for content in contents for part in content]
        results = [part for part in parts if part["type"] == "tool_result" and part["tool_use_id"] == "it"]
        self.results += [str(result["content"]) for result in results]
        if results or len(request["messages"]) > 2 * TURNS:
            return {"type": "text", "text": "done"}, "end_turn"
        if any(tool["name"] == self.tool for tool in request.get("tools", ())):
            return {"type": "tool_use", "id": "it", "name": self.tool, "input": self.arguments}, "tool_use"
        wait = {"type": "tool_use", "id": f"wait{len(request['messages'])}", "name": "Bash"}
        return {**wait, "input": {"command": "sleep 1"}}, "tool_use"


class Gemini(Model):
    """A model that answers as Google's do."""

    def _answer(self, request: Json) -> list[Json] | None:
        if not self.path.endswith(":streamGenerateContent?alt=sse"):
            return None
        parts = [part for content in request["contents"] for part in content["parts"]]
        results = [part["functionResponse"]["response"] for part in parts if "functionResponse" in part]
        self.results += map(str, results)
        call = {"functionCall": {"name": self.tool, "args": self.arguments}}
        content = {"role": "model", "parts": [{"text": "done"} if results else call]}
        return [{"candidates": [{"content": content, "finishReason": "STOP", "index": 0}]}]


@contextmanager
def running_model(model: type[Model], tool: str, **arguments: str) -> Iterator[tuple[str, list[str]]]:
    """Run a model that calls a tool, and yield its URL and the results of the tool."""
    results: list[str] = []
    script = {"tool": tool, "arguments": arguments, "results": results}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Script", (model,), script))
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
    tool = "mcp__mcpmux__clock__now"
    with running_model(Claude, tool) as (url, results):
        env = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "of-nobody"}
        with open_home(tmp_path, f'command = "sh"\nargs = ["-c", "{late}"]', **env) as home:
            home.mcpmux("install", "claude-code", "--yes")
            asking = ["claude", "--print", "What time is it?", "--allowedTools", f"{tool},Bash"]
            assert home.run(*asking).strip() == "done"
        assert results
        assert set(json.loads(results[0])) == {"time", "zone", "weekday"}


GATE = """
import json, sys, threading, time
from pathlib import Path
folder, lock = Path(sys.argv[1]), threading.Lock()
tool = {"name": "pass", "inputSchema": {"type": "object", "properties": {"who": {"type": "string"}}}}
facts = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
         "serverInfo": {"name": "gate", "version": "1"}}
def say(number, result):
    with lock:
        print(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}), flush=True)
def hold(number, who):
    (folder / f"waiting-{who}").touch()
    while not (folder / "open").exists():
        time.sleep(0.02)
    say(number, {"content": [{"type": "text", "text": f"passed by {who}"}]})
(folder / f"started-{time.monotonic_ns()}").touch()
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "tools/call":
        who = message["params"]["arguments"]["who"]
        threading.Thread(target=hold, args=(message["id"], who), daemon=True).start()
    elif "id" in message:
        say(message["id"], {"initialize": facts, "tools/list": {"tools": [tool]}}.get(message["method"], {}))
"""
"""A server whose tool answers once there is a file `open`."""


def test_three_host_apps_share_one_mcpmux_and_one_is_killed(tmp_path: Path) -> None:
    (tmp_path / "gate.py").write_text(GATE)
    gate = f'command = "{sys.executable}"\nargs = {json.dumps([str(tmp_path / "gate.py"), str(tmp_path)])}'
    with ExitStack() as stack:
        claude_url, lost = stack.enter_context(
            running_model(Claude, "mcp__mcpmux__clock__pass", who="claude")
        )
        gemini_url, passed = stack.enter_context(
            running_model(Gemini, "mcp_mcpmux_clock__pass", who="gemini")
        )
        models = {
            "ANTHROPIC_BASE_URL": claude_url,
            "ANTHROPIC_API_KEY": "of-nobody",
            "GOOGLE_GEMINI_BASE_URL": gemini_url,
            "GEMINI_API_KEY": "of-nobody",
        }
        gemini_env = HOSTS["gemini"][1]
        home = stack.enter_context(
            open_home(tmp_path / "home", f"{gate}\n[listeners]\nshare = true", **models, **gemini_env)
        )
        settings = tmp_path / "home" / ".gemini" / "settings.json"
        settings.parent.mkdir()
        settings.write_text('{"security": {"auth": {"selectedType": "gemini-api-key"}}}')
        for name in HOSTS:
            home.mcpmux("install", name, "--yes")

        claude = home.start("claude", "--print", "Pass.", "--allowedTools", "mcp__mcpmux__clock__pass")
        gemini = home.start("gemini", "--prompt", "Pass.", "--model", "gemini-2.5-pro", "--yolo")
        of_tool = ("--method", "tools/call", "--tool-name", "clock__pass", "--tool-arg", "who=inspector")
        inspector = home.start(
            str(npm_env("inspector") / ".bin" / "mcp-inspector"),
            *("--cli", "--config", str(settings), "--server", "mcpmux", *of_tool),
        )
        for who in ("claude", "gemini", "inspector"):
            wait_until((tmp_path / f"waiting-{who}").exists, f"{who} waits for its call")
        ((shared, clients),) = home.shared()
        assert clients == 3
        assert len(list(tmp_path.glob("started-*"))) == 1

        claude.kill()
        wait_until(lambda: home.shared() == [(shared, 2)], "the killed one has left")
        (tmp_path / "open").touch()
        assert "done" in gemini.communicate(timeout=WAIT_SECONDS)[0]
        assert "passed by gemini" in passed[0]
        assert "passed by inspector" in inspector.communicate(timeout=WAIT_SECONDS)[0]
        assert lost == []
        wait_until(lambda: is_gone(shared), "the shared one ends a while after its last client")
        assert home.shared() == []
