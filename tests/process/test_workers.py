"""`mcpmux serve --workers 2` as real processes: sessions, notifications, restarts and shutdown."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import ssl
import stat
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchmarks.process import free_port
from tests.cli.invoking import Invoke
from tests.process.running import WAIT_SECONDS, Running, children_of, command_of, is_alive, wait_until
from tests.transports.certificates import Certificates

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
SESSION = "Mcp-Session-Id"
TOKEN = "0123456789abcdef"

# A legacy server that counts: who started it, who initialized it, what it was asked.
COUNTING = """
import json, os, sys
folder = sys.argv[1]
open(os.path.join(folder, f"started-{os.getpid()}"), "w").close()
counter = 0
def say(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")
    sys.stdout.flush()
for line in sys.stdin:
    message = json.loads(line)
    method, number = message.get("method"), message.get("id")
    if method == "initialize":
        open(os.path.join(folder, f"initialized-{os.getpid()}"), "a").write("x")
        capabilities = {"resources": {"subscribe": True, "listChanged": True}, "tools": {}}
        info = {"name": "counting", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
        say({"id": number, "result": result})
    elif method == "tools/list":
        say({"id": number, "result": {"tools": [
            {"name": name, "inputSchema": {"type": "object"}} for name in ("count", "ask", "die", "wait")]}})
    elif method == "resources/list":
        say({"id": number, "result": {"resources": [{"uri": "count:///it", "name": "it"}]}})
    elif method == "tools/call" and message["params"]["name"] == "ask":
        say({"id": "q", "method": "elicitation/create", "params": {
            "message": "Who?",
            "requestedSchema": {"type": "object", "properties": {"who": {"type": "string"}}}}})
        asking = number
    elif method is None and number == "q":
        text = json.dumps(message.get("result", message.get("error")))
        say({"id": asking, "result": {"content": [{"type": "text", "text": text}]}})
    elif method == "tools/call" and message["params"]["name"] == "wait":
        token = message["params"]["_meta"]["progressToken"]
        say({"method": "notifications/progress", "params": {"progressToken": token, "progress": 7}})
    elif method == "notifications/cancelled":
        open(os.path.join(folder, f"cancelled-{os.getpid()}"), "a").write("x")
    elif method == "tools/call" and message["params"]["name"] == "die":
        os._exit(1)
    elif method == "tools/call":
        counter += 1
        say({"id": number, "result": {"content": [{"type": "text", "text": str(counter)}]}})
        say({"method": "notifications/resources/updated", "params": {"uri": "count:///it"}})
    elif number is not None:
        say({"id": number, "result": {}})
"""


_open: list[HTTPConnection] = []


@pytest.fixture(autouse=True)
def _closed_at_last() -> Iterator[None]:
    """Close all connections after each test."""
    yield
    while _open:
        _open.pop().close()


class Served:
    """A running mux with two workers, and how to talk to it."""

    def __init__(self, mux: Running, url: str, folder: Path) -> None:
        self.mux = mux
        self.url = url
        self.folder = folder
        parts = urlsplit(url)
        self.address = (parts.hostname or "", parts.port or 0)

    def connect(self) -> HTTPConnection:
        _open.append(HTTPConnection(*self.address, timeout=WAIT_SECONDS))
        return _open[-1]

    def workers(self) -> list[int]:
        """Return the process ids of all workers."""
        return [pid for pid in children_of(self.mux.pid) if b"workers.worker import" in command_of(pid)]

    def count(self, what: str) -> int:
        return len(list(self.folder.glob(f"{what}-*")))


def counting_table(folder: Path, **settings: Any) -> str:
    server = folder / "counting.py"
    server.write_text(COUNTING)
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in settings.items()]
    args = json.dumps([str(server), str(folder)])
    return f"[upstreams.counting]\ncommand = {json.dumps(sys.executable)}\nargs = {args}\n{''.join(lines)}"


def write_config(folder: Path, rest: str = "", **settings: Any) -> Path:
    path = folder / "mcpmux.toml"
    path.write_text(counting_table(folder, **settings) + '[listeners]\nhttp = ["127.0.0.1:0"]\n' + rest)
    return path


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Running("serve", str(write_config(tmp_path)), "--workers", "2") as mux:
        yield Served(mux, mux.line().strip(), tmp_path)


def test_it_serves_where_the_folder_for_temporary_files_has_a_long_path(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    place = {"TMPDIR": str(deep)}
    with Running("serve", str(write_config(tmp_path)), "--workers", "2", env=place) as mux:
        assert mux.line().startswith("http://")
        assert mux.stop() == 0


def post(
    connection: HTTPConnection, message: dict[str, Any], path: str = "/mcp", **headers: str
) -> HTTPResponse:
    fields = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("POST", path, json.dumps({"jsonrpc": "2.0", **message}).encode(), fields)
    return connection.getresponse()


def answer_in(response: HTTPResponse) -> dict[str, Any]:
    """Return the last message of an answer, which may be a stream."""
    text = response.read().decode()
    if response.getheader("Content-Type", "").startswith("text/event-stream"):
        text = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")][-1]
    message = json.loads(text)
    assert isinstance(message, dict)
    return message


def begin_modern(
    connection: HTTPConnection, method: str, params: dict[str, Any], name: str = "", path: str = "/mcp"
) -> HTTPResponse:
    headers = {"MCP_Protocol_Version": "2026-07-28", "Mcp_Method": method}
    if name:
        headers["Mcp_Name"] = name
    params = {**params, "_meta": META | params.get("_meta", {})}
    return post(connection, {"id": 1, "method": method, "params": params}, path, **headers)


def modern(
    connection: HTTPConnection, method: str, params: dict[str, Any], name: str = "", path: str = "/mcp"
) -> dict[str, Any]:
    return answer_in(begin_modern(connection, method, params, name, path))


INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"elicitation": {}},
    "clientInfo": {"name": "t", "version": "1"},
}


def initialize(connection: HTTPConnection) -> str:
    """Open a legacy session: its id."""
    response = post(connection, {"id": 1, "method": "initialize", "params": INITIALIZE})
    assert "result" in answer_in(response)
    session = response.getheader(SESSION)
    assert session is not None
    post(connection, {"method": "notifications/initialized"}, **{SESSION: session}).read()
    return session


def worker_of(session: str) -> str:
    return session.partition("w")[0]


def call(connection: HTTPConnection, session: str, tool: str = "counting__count") -> HTTPResponse:
    message = {"id": 2, "method": "tools/call", "params": {"name": tool, "arguments": {}}}
    return post(connection, message, **{SESSION: session})


def open_stream(connection: HTTPConnection, session: str) -> HTTPResponse:
    connection.request("GET", "/mcp", headers={"Accept": "text/event-stream", SESSION: session})
    response = connection.getresponse()
    assert response.status == 200
    return response


def next_event(stream: HTTPResponse) -> str:
    while not (line := stream.readline().decode()).startswith("data: {"):
        assert line, "the stream has ended"
    return line


def text_of(answer: dict[str, Any]) -> str:
    text = answer["result"]["content"][0]["text"]
    assert isinstance(text, str)
    return text


def test_connections_are_spread_evenly(served: Served) -> None:
    connections = [served.connect() for _ in range(32)]
    counts = Counter(worker_of(initialize(connection)) for connection in connections)
    assert counts == {"1": 16, "2": 16}
    assert served.mux.stop() == 0, served.mux.stderr


def test_changes_reach_clients_of_both_workers(served: Served) -> None:
    connections = [served.connect() for _ in range(2)]
    sessions = [initialize(connection) for connection in connections]
    streams = []
    for connection, session in zip(connections, sessions, strict=True):
        message = {"id": 5, "method": "resources/subscribe", "params": {"uri": "counting+count:///it"}}
        assert "result" in answer_in(post(connection, message, **{SESSION: session}))
        streams.append(open_stream(served.connect(), session))
    wish = {"notifications": {"resourceSubscriptions": ["counting+count:///it"]}}
    streams.append(begin_modern(served.connect(), "subscriptions/listen", wish))
    assert "acknowledged" in next_event(streams[-1])
    assert "updated" in next_event(streams[-1])  # as its worker is new
    assert "result" in modern(
        served.connect(), "tools/call", {"name": "counting__count", "arguments": {}}, "counting__count"
    )
    for stream in streams:
        while b"resources/updated" not in stream.readline():
            pass
    assert served.mux.stop() == 0, served.mux.stderr


def test_a_worker_that_is_killed_is_replaced_and_its_clients_go_on(served: Served) -> None:
    connections = [served.connect() for _ in range(2)]
    sessions = {worker_of(session): session for session in map(initialize, connections)}
    uri = "counting+count:///it"
    for connection, session in zip(connections, sessions.values(), strict=True):
        message = {"id": 5, "method": "resources/subscribe", "params": {"uri": uri}}
        assert "result" in answer_in(post(connection, message, **{SESSION: session}))
    streams = {number: open_stream(served.connect(), session) for number, session in sessions.items()}
    waits = {"name": "counting__wait", "arguments": {}, "_meta": {"progressToken": "mine"}}
    for session in sessions.values():
        waiting = post(
            served.connect(), {"id": 6, "method": "tools/call", "params": waits}, **{SESSION: session}
        )
        assert '"mine"' in next_event(waiting)
    pids = served.workers()
    os.kill(pids[0], signal.SIGKILL)
    lost = served.mux.line("stderr", containing="worker lost")
    number = lost.partition("worker=")[2].split()[0]
    again = open_stream(served.connect(), sessions[number])  # at any worker that is there
    text = "".join(next_event(again) for _ in range(3))
    assert all(kind in text for kind in ("resources/updated", "resources/list_changed", "tools/list_changed"))
    wait_until(lambda: len(set(served.workers()) - set(pids)) == 1, "no new worker")
    for session in sessions.values():
        assert int(text_of(answer_in(call(served.connect(), session)))) > 0
        assert "resources/updated" in next_event(again)
    (kept,) = (stream for of, stream in streams.items() if of != number)
    assert "resources/updated" in next_event(kept)
    (kept_session,) = (session for of, session in sessions.items() if of != number)
    cancelled = {"method": "notifications/cancelled", "params": {"requestId": 6}}
    post(served.connect(), cancelled, **{SESSION: kept_session}).read()
    both = {"1", "2"}
    wait_until(lambda: {worker_of(initialize(served.connect())) for _ in range(4)} == both, "not served")
    assert served.count("started") == 1
    assert served.mux.stop() == 0, served.mux.stderr
    assert not any(map(is_alive, pids))


def test_a_server_that_dies_is_back_for_all_workers(served: Served) -> None:
    connections = [served.connect() for _ in range(2)]
    for connection in connections:
        assert "result" in modern(connection, "tools/list", {})
    died = modern(connections[0], "tools/call", {"name": "counting__die", "arguments": {}}, "counting__die")
    assert "error" in died
    count = {"name": "counting__count", "arguments": {}}

    def is_back(connection: HTTPConnection) -> Callable[[], bool]:
        return lambda: "result" in modern(connection, "tools/call", count, "counting__count")

    for connection in connections:
        wait_until(is_back(connection), "the server is not back")
    assert served.count("started") == 2
    assert served.mux.stop() == 0, served.mux.stderr


def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    private = tmp_path / "p"  # short, or the sockets would be in /tmp
    private.mkdir()
    place = {"TMPDIR": str(private)}
    with Running("serve", str(write_config(tmp_path)), "--workers", "2", env=place) as mux:
        served = Served(mux, mux.line().strip(), tmp_path)
        pids = children_of(mux.pid)
        assert len(pids) >= 4  # two workers, the server, a reaper
        assert list(private.iterdir())
        initialize(served.connect())
        mux.send_signal(signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, pids)), f"still there: {pids}")
    assert not list(private.iterdir())


def test_a_server_that_does_not_start_is_told_with_its_own_reason(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    broken = "import sys; sys.exit('no licence')"
    args = json.dumps(["-c", broken])
    path.write_text(
        path.read_text() + f"[upstreams.broken]\ncommand = {json.dumps(sys.executable)}\nargs = {args}\n"
    )
    with Running("serve", str(path), "--workers", "2") as mux:
        served = Served(mux, mux.line().strip(), tmp_path)

        def is_told() -> bool:
            result = modern(served.connect(), "tools/list", {})["result"]
            assert len(result["tools"]) == 4
            return "exited with status 1" in json.dumps(result["_meta"]["dev.mcpmux/upstreams"])

        for _ in range(4):
            wait_until(is_told, "the reason is not told")
        assert mux.stop() == 0, mux.stderr


def build_index(connection: HTTPConnection, seconds: int) -> HTTPResponse:
    """Begin a call that reports its progress for so long."""
    name = "library__build_index"
    params = {"name": name, "arguments": {"seconds": seconds}, "_meta": {"progressToken": 1}}
    return begin_modern(connection, "tools/call", params, name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_calls_are_finished_when_it_is_stopped(tmp_path: Path, number: int) -> None:
    library = f"library={sys.executable} -m mcpmux.demo.library"
    with Running("serve", "--upstream", library, "--http", "127.0.0.1:0", "--workers", "2") as mux:
        served = Served(mux, mux.line().strip(), tmp_path)
        calls = [build_index(served.connect(), 2) for _ in range(6)]
        pids = children_of(mux.pid)
        mux.send_signal(number)
        assert all("result" in answer_in(response) for response in calls)
        assert mux.wait() == 0, mux.stderr
        assert "Traceback" not in mux.stderr
    assert not any(map(is_alive, pids))


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    library = f"library={sys.executable} -m mcpmux.demo.library"
    with Running("serve", "--upstream", library, "--http", "127.0.0.1:0", "--workers", "2") as mux:
        served = Served(mux, mux.line().strip(), tmp_path)
        started = [build_index(served.connect(), 10) for _ in range(4)]
        pids = children_of(mux.pid)
        mux.send_signal(signal.SIGTERM)
        mux.line("stderr", containing="stopping")
        mux.send_signal(signal.SIGTERM)
        assert mux.wait() == 0, mux.stderr
        assert len(started) == 4
    assert not any(map(is_alive, pids))


def test_a_server_is_started_by_each_worker_when_it_is_wished(tmp_path: Path) -> None:
    with Running("serve", str(write_config(tmp_path, per_worker=True)), "--workers", "2") as mux:
        served = Served(mux, mux.line().strip(), tmp_path)
        for _ in range(2):
            assert "result" in modern(served.connect(), "tools/list", {})
        assert served.count("started") == 2
        assert mux.stop() == 0, mux.stderr


def test_one_admin_listener_sees_and_steers_all(invoke: Invoke, tmp_path: Path) -> None:
    port = free_port()
    more = f'[admin]\nport = {port}\ntoken = "{TOKEN}"\n[views.tools]\ninclude = [{{ kind = "tools" }}]\n'
    path = write_config(tmp_path, more)
    here = ("-c", str(path))

    def ask(what: str) -> str:
        connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)
        connection.request("GET", what, headers={"Authorization": f"Bearer {TOKEN}"})
        response = connection.getresponse()
        assert response.status == 200
        _open.append(connection)
        return response.read().decode()

    with Running("serve", str(path), "--no-watch", "--workers", "2") as mux:
        served = Served(mux, mux.line().strip(), tmp_path)
        mux.line()
        count = {"name": "counting__count", "arguments": {}}
        for _ in range(10):
            assert "result" in modern(served.connect(), "tools/call", count, "counting__count")
        exchanges = [
            line for line in ask("/metrics").splitlines() if line.startswith("mcpmux_exchanges_total")
        ]
        counts = [float(line.rpartition(" ")[2]) for line in exchanges if 'method="tools/call"' in line]
        assert counts == [10]

        def calls() -> list[Any]:
            rows = json.loads(ask("/api/exchanges?limit=100"))["rows"]
            return [row for row in rows if row.get("method") == "tools/call"]

        def are_over() -> bool:
            return Counter(row["status"] for row in calls()) == {"ok": 10}

        wait_until(are_over, "some are not shown, or not to their end")
        rows = calls()
        assert {row["peer"].partition("/")[0] for row in rows} == {"1", "2"}
        detail = json.loads(ask(f"/api/exchanges/{rows[0]['row']}"))
        assert len(detail["messages"]) == 4

        (_, view) = json.loads(ask("/api/views"))["views"]
        assert (view["name"], view["include"]) == ("tools", ["tools"])
        (_, seen) = json.loads(ask("/api/views/counts"))["counts"].values()
        assert (seen["tools"] > 0, seen["resources"], seen["missing"]) == (True, 0, {})
        assert json.loads(ask("/api/calls")) == {"problem": None}
        connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)
        _open.append(connection)
        sent = json.dumps({"method": "tools/call", "params": count}).encode()
        fields = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        connection.request("POST", "/api/calls", sent, fields)
        lines = connection.getresponse().read().decode().splitlines()
        assert [line for line in lines if line.startswith("event")] == ["event: begun", "event: answer"]
        begun, answer = (json.loads(line[len("data: ") :]) for line in lines if line.startswith("data"))
        assert text_of(answer) == "11"

        def has_its_row() -> bool:
            row = json.loads(ask(f"/api/exchanges/{begun['row']}"))["row"]
            assert row["method"] == "tools/call"
            return bool((row["status"], row.get("client")) == ("ok", "mcpmux-inspector"))

        wait_until(has_its_row, "the row is another one, or has no answer")
        connection.request("POST", "/api/calls", b'{"method": 1}', fields)
        assert connection.getresponse().status == 400
        inside = modern(served.connect(), "tools/call", count, "counting__count", path="/mcp/tools")
        assert "result" in inside

        def is_shown() -> bool:
            rows = json.loads(ask("/api/exchanges?filter=view%3Dtools"))["rows"]
            return [(row["method"], row["view"]) for row in rows] == [("tools/call", "tools")]

        wait_until(is_shown, "the exchange of the view is not shown")

        for _ in range(2):
            initialize(served.connect())
        lists = json.loads(ask("/api/subscriptions"))["subscriptions"]
        assert [row["list"] for row in lists] == ["tools", "prompts", "resources"]
        for row in lists:
            assert {client["peer"].partition("/")[0] for client in row["clients"]} == {"1", "2"}

        (state,) = json.loads(ask("/upstreams"))["upstreams"]
        assert (state["name"], state["state"], state["prefix"]) == ("counting", "ready", "counting")
        assert sys.executable in state["target"]

        assert invoke("ctl", "drain", "counting", *here).exit_code == 0

        for _ in range(4):  # every worker has heard it before `ctl` ends
            refusal = modern(served.connect(), "tools/call", count, "counting__count")
            assert "drained" in refusal["error"]["message"]
        assert json.loads(ask("/upstreams"))["upstreams"][0]["state"] == "drained"
        assert invoke("ctl", "restart", "counting", *here).exit_code == 0

        def works() -> bool:
            return "result" in modern(served.connect(), "tools/call", count, "counting__count")

        for _ in range(4):
            wait_until(works, "it is not back")
        wait_until(lambda: served.count("started") == 2, "it was not restarted")

        path.write_text(path.read_text() + "[upstreams.other]\ncommand = 'false'\nprefix = 'o'\n")
        assert "added: other" in invoke("ctl", "reload", *here).stdout
        assert len(json.loads(ask("/upstreams"))["upstreams"]) == 2
        assert mux.stop() == 0, mux.stderr
        assert "Traceback" not in mux.stderr


def test_calls_that_any_worker_holds_are_let_go_at_one_admin_listener(tmp_path: Path) -> None:
    port = free_port()
    path = write_config(tmp_path, f'[admin]\nport = {port}\ntoken = "{TOKEN}"\n')

    def ask(method: str, what: str, body: Any = None) -> Any:
        connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        connection.request(method, what, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        _open.append(connection)
        return json.loads(response.read())

    with Running("serve", str(path), "--no-watch", "--workers", "2") as mux, ThreadPoolExecutor(4) as threads:
        served = Served(mux, mux.line().strip(), tmp_path)
        mux.line()
        ask("POST", "/api/held", {"filter": "method=tools/call", "at_timeout": "refuse"})
        count = {"name": "counting__count", "arguments": {}}
        calls = [
            threads.submit(modern, served.connect(), "tools/call", count, "counting__count") for _ in range(4)
        ]
        wait_until(lambda: len(ask("GET", "/api/held")["held"]) == 4, "not all calls are held")
        held = ask("GET", "/api/held")["held"]
        assert {one_held["replica"] for one_held in held} == {"worker 1", "worker 2"}
        for one_held in held:
            assert ask("POST", f"/api/held/{one_held['key']}", {"verdict": "pass"}) == {
                "held": one_held["key"]
            }
        assert all("result" in call.result(WAIT_SECONDS) for call in calls)
        assert "error" in ask("POST", "/api/held/7-1", {"verdict": "pass"})


def test_a_change_of_the_file_reaches_all_workers(tmp_path: Path) -> None:
    """Also when a cleaner of temporary files has removed the folder of their sockets."""
    path = write_config(tmp_path)
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as temporary,
        Running("serve", str(path), "--workers", "2", env={"TMPDIR": temporary}) as mux,
    ):
        served = Served(mux, mux.line().strip(), tmp_path)
        for folder in Path(temporary).iterdir():
            shutil.rmtree(folder)
        path.write_text(path.read_text().replace("[upstreams.counting]", "[upstreams.counted]"))
        mux.line("stderr", containing="configuration reloaded")

        def names() -> set[str]:
            tools = modern(served.connect(), "tools/list", {})["result"]["tools"]
            return {tool["name"].partition("__")[0] for tool in tools}

        assert not any("counting" in names() for _ in range(4))
        for _ in range(4):
            wait_until(lambda: names() == {"counted"}, "not all workers have changed")
        assert mux.stop() == 0, mux.stderr


@pytest.mark.parametrize("change", ['env = { CHANGED = "1" }', "enabled = false"])
def test_calls_are_finished_when_their_server_is_replaced_or_removed(tmp_path: Path, change: str) -> None:
    """Calls that come while it is replaced wait for the next process."""
    path = tmp_path / "mcpmux.toml"
    table = '[listeners]\nhttp = ["127.0.0.1:0"]\n'
    for name in ("clock", "library"):
        args = json.dumps(["-m", f"mcpmux.demo.{name}"])
        table += f"[upstreams.{name}]\ncommand = {json.dumps(sys.executable)}\nargs = {args}\n"
    path.write_text(table)
    with Running("serve", str(path), "--workers", "2") as mux, ThreadPoolExecutor() as threads:
        served = Served(mux, mux.line().strip(), tmp_path)
        calls = [build_index(served.connect(), 2) for _ in range(4)]
        path.write_text(table + change)
        mux.line("stderr", containing="configuration reloaded")
        if change.startswith("env"):
            name = "library__find_chapters"
            params = {"name": name, "arguments": {"word": "the"}}
            later = [threads.submit(modern, served.connect(), "tools/call", params, name) for _ in range(4)]
            assert all("result" in call.result(WAIT_SECONDS) for call in later)
        assert all("result" in answer_in(response) for response in calls)
        assert mux.stop() == 0, mux.stderr
        assert "crash loop" not in mux.stderr and "cut off" not in mux.stderr


def test_what_workers_cannot_do_is_said(tmp_path: Path) -> None:
    with Running("serve", str(write_config(tmp_path)), "--workers", "2", "--stdio") as mux:
        assert mux.wait() == 2
        assert "leave --workers out" in mux.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with Running("serve", str(write_config(tmp_path)), "--workers", "2", "--http", address) as mux:
            assert mux.wait() == 1
            assert "address already in use" in mux.stderr
    folder = tmp_path / "file"
    folder.write_text("")
    path = write_config(tmp_path, f"[audit]\ndirectory = {json.dumps(str(folder))}\n")
    with Running("serve", str(path), "--workers", "2") as mux:
        assert mux.wait() == 1
        assert "audit log" in mux.stderr


def test_a_session_over_tls_is_served_by_its_worker(certificates: Certificates, tmp_path: Path) -> None:
    path = tmp_path / "mcpmux.toml"
    tls = f"certificate = {json.dumps(certificates.server)}, key = {json.dumps(certificates.server_key)}"
    listener = f"[[listeners.http]]\nport = 0\ntls = {{ {tls} }}\n"
    path.write_text(counting_table(tmp_path) + listener)
    context = ssl.create_default_context(cafile=certificates.ca)
    with Running("serve", str(path), "--workers", "2") as mux:
        url = urlsplit(mux.line().strip())

        def connect() -> HTTPConnection:
            _open.append(HTTPSConnection("localhost", url.port, timeout=WAIT_SECONDS, context=context))
            return _open[-1]

        first = [connect() for _ in range(2)]
        sessions = [initialize(connection) for connection in first]
        assert sorted(map(worker_of, sessions)) == ["1", "2"]
        count = 0
        for connection in (*first, connect(), connect()):
            for session in (*sessions, *reversed(sessions)):
                count += 1
                assert text_of(answer_in(call(connection, session))) == str(count)
        for session in sessions:
            count += 1
            padded = {"name": "counting__count", "arguments": {"padding": "x" * 300_000}}
            message = {"id": 3, "method": "tools/call", "params": padded}
            assert text_of(answer_in(post(first[0], message, **{SESSION: session}))) == str(count)
        assert mux.stop() == 0, mux.stderr
        assert "Traceback" not in mux.stderr


def test_streams_and_tokens_are_the_workers(tmp_path: Path) -> None:
    """Also those of a worker that is started after the file was changed."""
    secret = "a-token-that-nobody-guesses"
    digest = hashlib.sha256(secret.encode()).hexdigest()
    tokens = f'[auth]\nresource = "http://127.0.0.1/mcp"\n[auth.tokens.ci]\nsha256 = "{digest}"\n'
    path = write_config(tmp_path)
    name = tmp_path / "lines.sock"
    later = path.read_text()
    path.write_text(
        later.replace("[listeners]\n", f"[listeners]\nunix = [{json.dumps(str(name))}]\n") + tokens
    )

    def list_tools() -> None:
        with socket.socket(socket.AF_UNIX) as client, client.makefile("rwb") as lines:
            client.settimeout(WAIT_SECONDS)
            client.connect(str(name))
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}
            lines.write(json.dumps(message).encode() + b"\n")
            lines.flush()
            assert len(json.loads(lines.readline())["result"]["tools"]) == 4

    with Running("serve", str(path), "--workers", "2") as mux:
        served = Served(mux, mux.line().strip(), tmp_path)
        assert mux.line().strip() == f"unix:{name}"
        shown = {"Authorization": f"Bearer {secret}"}
        for _ in range(4):
            assert post(served.connect(), {"id": 1, "method": "ping"}).status == 401
            assert post(served.connect(), {"id": 1, "method": "ping"}, **shown).status == 400
            list_tools()
        path.write_text(later)
        line = mux.line("stderr", containing="started again")
        assert "listeners.unix" in line
        assert "auth.tokens" in line
        pids = served.workers()
        os.kill(pids[0], signal.SIGKILL)
        wait_until(lambda: len(set(served.workers()) - set(pids)) == 1, "no new worker")
        mux.line("stderr", containing="upstream ready")
        for _ in range(4):
            assert post(served.connect(), {"id": 1, "method": "ping"}).status == 401
            assert post(served.connect(), {"id": 1, "method": "ping"}, **shown).status == 401
            list_tools()
        assert mux.stop() == 0, mux.stderr
    assert not name.exists()


@pytest.mark.parametrize("scheme", ["ws", "tcp"])
def test_every_kind_of_stream_is_shared(invoke: Invoke, tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "mcpmux.toml"
    path.write_text(counting_table(tmp_path))
    listen = f"{scheme}://127.0.0.1:0"
    with Running("serve", str(path), "--workers", "2", "--listen", listen) as mux:
        url = mux.line(containing=f"{scheme}://").strip()
        for count in range(1, 5):  # by two workers in turn, of one server
            called = invoke("call", url, "counting__count")
            assert (called.exit_code, called.stdout.strip()) == (0, str(count)), called.stderr
        assert mux.stop() == 0, mux.stderr
        assert "Traceback" not in mux.stderr


def test_each_worker_keeps_a_chain_and_all_are_read(invoke: Invoke, tmp_path: Path) -> None:
    log, captures = tmp_path / "log", tmp_path / "captures"
    kept = f"[audit]\ndirectory = {json.dumps(str(log))}\n"
    kept += f'[capture]\nlevel = "full"\ndirectory = {json.dumps(str(captures))}\n'
    count = {"name": "counting__count", "arguments": {}}
    with Running("serve", str(write_config(tmp_path, kept)), "--workers", "2") as mux:
        served = Served(mux, mux.line().strip(), tmp_path)
        for _ in range(6):
            assert "result" in modern(served.connect(), "tools/call", count, "counting__count")
        assert mux.stop() == 0, mux.stderr
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (log, *log.iterdir(), captures)} == {0o700}
    verified = invoke("audit", "verify", str(log))
    assert verified.exit_code == 0, verified.stderr
    assert [line.partition(":")[0] for line in verified.stdout.splitlines()] == ["worker-1", "worker-2"]
    shown = invoke("audit", "show", str(log), "method=tools/call", "kind=exchange").stdout.splitlines()
    assert len(shown) == 6
    seen = invoke("traffic", "grep", "", str(captures), "method=tools/call", "--json")
    records_seen = [json.loads(line) for line in seen.stdout.splitlines()]
    requests = [record for record in records_seen if (record["kind"], record["leg"]) == ("request", "client")]
    assert len(requests) == 6, seen.stderr
    assert len({request["run"] for request in requests}) == 2


def test_a_question_that_several_calls_may_have_caused_reaches_no_client(served: Served) -> None:
    name = "counting__ask"
    able = {**META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
    params = {"name": name, "arguments": {}, "_meta": able}
    first, elsewhere, second = (
        served.connect() for _ in range(3)
    )  # the first and the last are at one worker
    question = modern(first, "tools/call", params, name)["result"]
    (key,) = question["inputRequests"]
    responses = {key: {"action": "accept", "content": {"who": "me"}}}
    again = {**params, "inputResponses": responses, "requestState": question["requestState"]}
    assert "me" in text_of(modern(elsewhere, "tools/call", again, name))  # the only call that there is
    assert modern(first, "tools/call", params, name)["result"]["resultType"] == "input_required"
    assert "clients share this session" in text_of(modern(second, "tools/call", params, name))
    assert served.mux.stop() == 0, served.mux.stderr


def test_a_worker_that_does_nothing_is_given_nothing(served: Served) -> None:
    stopped = served.workers()[0]
    os.kill(stopped, signal.SIGSTOP)
    try:
        served.mux.line("stderr", containing="worker does not answer")
        served_by = {worker_of(initialize(served.connect())) for _ in range(6)}
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert len(served_by) == 1
    served.mux.line("stderr", containing="worker answers again")
    assert {worker_of(initialize(served.connect())) for _ in range(6)} == {"1", "2"}
    assert served.mux.stop() == 0, served.mux.stderr


def test_a_waiting_connection_goes_on_when_its_worker_is_to_end(served: Served) -> None:
    pids = served.workers()
    used = [served.connect() for _ in range(4)]
    for connection in used:
        assert "result" in modern(connection, "tools/list", {})
    new = [socket.create_connection(served.address, WAIT_SECONDS) for _ in range(4)]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
            served.mux.line("stderr", containing="worker lost")
            wait_until(lambda: len(served.workers()) == 2, "no new worker")
        for sock in new:
            connection = served.connect()
            connection.sock = sock
            assert "result" in modern(connection, "tools/list", {})
        for connection in used:
            held = connection.sock
            assert "result" in modern(connection, "tools/list", {})
            assert connection.sock is held
    finally:
        for sock in new:
            sock.close()
    assert not any(map(is_alive, pids))
    assert served.mux.stop() == 0, served.mux.stderr


def test_a_worker_that_is_asked_to_end_loses_no_client(served: Served) -> None:
    pids = served.workers()
    over = threading.Event()
    outcomes: Counter[str] = Counter()
    count = {"name": "counting__count", "arguments": {}}

    def come_and_go() -> None:
        while not over.is_set():
            connection = HTTPConnection(*served.address, timeout=WAIT_SECONDS)
            try:
                outcomes[
                    "result"
                    if "result" in modern(connection, "tools/call", count, "counting__count")
                    else "error"
                ] += 1
            except (OSError, HTTPException) as error:
                outcomes[repr(error)] += 1
            finally:
                connection.close()

    def is_served_again() -> bool:
        return len(served.workers()) == 2 and outcomes["result"] > seen + 50

    seen = 0
    threads = [threading.Thread(target=come_and_go) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for pid in pids:
            seen = outcomes["result"]
            os.kill(pid, signal.SIGTERM)
            served.mux.line("stderr", containing="worker lost")
            wait_until(is_served_again, "no load")
    finally:
        over.set()
        for thread in threads:
            thread.join(WAIT_SECONDS)
    assert set(outcomes) == {"result"}, outcomes
    assert not any(map(is_alive, pids))
    assert served.mux.stop() == 0, served.mux.stderr
