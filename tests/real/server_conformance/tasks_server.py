"""A server of 2026-07-28 with the Tasks extension, and all that the scenarios for it ask for, over HTTP.

It needs nothing but Python, and says `listening on http://127.0.0.1:PORT/mcp` on standard output.

Source: the Tasks extension (SEP-2663); "Standard Headers" (SEP-2243) and `basic/patterns/mrtr`, 2026-07-28.
"""

from __future__ import annotations

import json
import time
import uuid
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODERN = "2026-07-28"
EXTENSION = "io.modelcontextprotocol/tasks"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
HEADER_MISMATCH, MISSING_CAPABILITY, INVALID_PARAMS, NOT_FOUND = -32020, -32021, -32602, -32601
JOB_SECONDS = 1.0
TTL_MS = 60_000
POLL_MS = 200
CACHED = {"ttlMs": 0, "cacheScope": "public"}
NAMED_BY = {"tools/call": "name", **dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")}


class Failure(Exception):
    def __init__(self, code, message, data=None, status=200):
        super().__init__(message)
        self.body = {"code": code, "message": message, **({} if data is None else {"data": data})}
        self.status = status


def question(message, name):
    """Return an elicitation of one text."""
    schema = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}


def said(text, **more):
    return {"resultType": "complete", "content": [{"type": "text", "text": text}], **more}


class Task:
    """`outcome`: members of the task when it is over. It is so many seconds after its last question."""

    def __init__(self, seconds, outcome, questions=None):
        self.id = uuid.uuid4().hex
        self.seconds, self.outcome, self.questions = seconds, outcome, dict(questions or {})
        self.created = self.changed = datetime.now(UTC).isoformat()
        self.over_at = time.monotonic() + seconds
        self.cancelled = False

    def state(self):
        if self.cancelled:
            return {"status": "cancelled"}
        if self.questions:
            return {"status": "input_required", "inputRequests": self.questions}
        return {"status": "working"} if time.monotonic() < self.over_at else self.outcome

    def update(self, responses):
        for key in responses:
            self.questions.pop(key, None)
        self.changed = datetime.now(UTC).isoformat()
        self.over_at = time.monotonic() + self.seconds

    def cancel(self):
        self.cancelled = self.state()["status"] in ("working", "input_required")

    def shown(self, state):
        times = {"createdAt": self.created, "lastUpdatedAt": self.changed}
        return {"taskId": self.id, **times, "ttlMs": TTL_MS, "pollIntervalMs": POLL_MS, **state}


TASKS: dict[str, Task] = {}


def completed(result):
    return {"status": "completed", "result": result}


def slow_compute(arguments):
    seconds = float(arguments.get("seconds", 0))
    return Task(seconds, completed(said(f"computed for {seconds:g} s")))


def confirm_delete(arguments):
    what = arguments.get("filename", "it")
    return Task(0, completed(said("deleted")), {"confirm": question(f"Delete {what}?", "confirm")})


def multi_input(_arguments):
    questions = {name: question(f"Your {name}?", name) for name in ("name", "colour")}
    return Task(0, completed(said("both answered")), questions)


def failing_job(_arguments):
    return Task(JOB_SECONDS, completed(said("the job has failed", isError=True)))


def protocol_error_job(_arguments):
    return Task(JOB_SECONDS, {"status": "failed", "error": {"code": -32603, "message": "it has crashed"}})


JOBS = {job.__name__: job for job in (slow_compute, confirm_delete, multi_input, failing_job)}
JOBS["protocol_error_job"] = protocol_error_job
LACKING: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
NEED_TASKS = {"failing_job", "test_tool_with_task"}
TOOLS = [
    {"name": name, "inputSchema": {"type": "object"}} for name in ("greet", *JOBS, "test_tool_with_task")
]


def call_tool(params, has_tasks):
    name, arguments = params["name"], params.get("arguments", {})
    if name == "greet":
        return said(f"Hello, {arguments.get('name')}!")
    if name in NEED_TASKS and not has_tasks:
        raise Failure(MISSING_CAPABILITY, "this tool makes tasks", LACKING, 400)
    if name == "test_tool_with_task":
        return ask_and_work(params)
    if name not in JOBS:
        raise Failure(INVALID_PARAMS, f"Unknown tool: {name}")
    task = JOBS[name](arguments)
    return begun(task) if has_tasks else waited_for(task)


def ask_and_work(params):
    """Ask first, then make a task of it."""
    answer = params.get("inputResponses", {}).get("user_name")
    if answer is None:
        questions = {"user_name": question("What is your name?", "name")}
        return {"resultType": "input_required", "inputRequests": questions, "requestState": "asked"}
    return begun(Task(JOB_SECONDS, completed(said(f"done for {answer['content']['name']}"))))


def begun(task):
    TASKS[task.id] = task
    return {"resultType": "task", **task.shown({"status": "working"})}


def waited_for(task):
    """Wait for the result, as a client without tasks does; questions are not asked."""
    time.sleep(task.seconds)
    return task.outcome["result"]


def answer(method, params):
    extensions = params.get("_meta", {}).get(CAPABILITIES, {}).get("extensions", {})
    has_tasks = EXTENSION in extensions
    if method == "server/discover":
        offered: dict[str, Any] = {"tools": {}, "extensions": {EXTENSION: {}}}
        return {"resultType": "complete", "supportedVersions": [MODERN], "capabilities": offered, **CACHED}
    if method == "tools/list":
        return {"resultType": "complete", "tools": TOOLS, **CACHED}
    if method == "tools/call":
        return call_tool(params, has_tasks)
    if method not in NAMED_BY:
        raise Failure(NOT_FOUND, "Method not found", status=404)
    if not has_tasks:
        raise Failure(MISSING_CAPABILITY, "tasks are for clients that declare them", LACKING, 400)
    task = TASKS.get(params.get("taskId"))
    if task is None:
        raise Failure(INVALID_PARAMS, "Task not found")
    if method == "tasks/get":
        return {"resultType": "complete", **task.shown(task.state())}
    if method == "tasks/update":
        task.update(params.get("inputResponses", {}))
    else:
        task.cancel()
    return {"resultType": "complete"}


def check_headers(headers, method, params):
    expected = {"Mcp-Method": method}
    if method in NAMED_BY:
        expected["Mcp-Name"] = params.get(NAMED_BY[method])
    for name, value in expected.items():
        if headers.get(name) != value:
            raise Failure(HEADER_MISMATCH, f"{name} is not what the body says", status=400)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in message:
            self.reply(202, b"")
            return
        status, method, params = 200, message["method"], message.get("params", {})
        try:
            check_headers(self.headers, method, params)
            outcome = {"result": answer(method, params)}
        except Failure as failure:
            status, outcome = failure.status, {"error": failure.body}
        self.reply(status, json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}).encode())

    def reply(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args):
        """Log no requests: standard error is not read, and would fill up."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"listening on http://127.0.0.1:{server.server_port}/mcp", flush=True)
    server.serve_forever()
