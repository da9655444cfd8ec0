"""A server over HTTP that remembers what was really done, for whoever wants to know the truth.

    truth_server.py NAME ERA

ERA is legacy or modern. It prints its port first. To MCP it has resources and tools:

    count:…   how often the resource was changed; a modern server lets everybody remember that for a minute
    own:…     who reads it, by what the client calls itself, for nobody else
    write     changes a `count:…`, and answers how often it was changed
    work      takes `ms` milliseconds, in `steps` of which it tells, and answers its arguments

Both tools remember the `id` of the call. Besides MCP, `POST /change` with a URI changes it now, and answers
when that was, by the machine's monotonic clock, which all its processes share. `GET /truth` tells how often
each id was called, and how often each resource was changed. Standard library only, to start fast.
"""

import json
import queue
import secrets
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VERSION = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
OFFERED = {"resources": {"subscribe": True}, "tools": {}}
OWN = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
EVERYBODYS = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "public"}
ALIVE_SECONDS = 1.0  # how often a stream is written to, to find out that nobody reads it

name, era = sys.argv[1:3]
text = {"type": "string"}
tools = [
    {"name": "write", "inputSchema": {"type": "object", "properties": {"id": text, "uri": text}}},
    {
        "name": "work",
        "inputSchema": {
            "type": "object",
            "properties": {"id": text, "as": text, "ms": {"type": "number"}, "steps": {"type": "number"}},
        },
    },
]
resources = [{"uri": f"count:shared/{number}", "name": str(number)} for number in range(3)]

changing = threading.Lock()
calls: Counter[str] = Counter()
versions: Counter[str] = Counter()
peers: set["Peer"] = set()


class Failure(Exception):
    """An answer that is an error: code, message."""


class Peer:
    """Whoever hears of changes: a session (no `listen`), or one listen. It reads `heard`."""

    def __init__(self, listen=None, uris=()):
        self.heard: queue.Queue[Any] = queue.Queue()
        self.listen, self.uris = listen, set(uris)

    def tell(self, method, params):
        if self.listen is not None:
            params = {**params, "_meta": {SUBSCRIPTION: self.listen}}
        self.heard.put({"jsonrpc": "2.0", "method": method, "params": params})


sessions: dict[str, Peer] = {}


def change(uri):
    """Change a resource: when, and how often that was done so far."""
    with changing:
        versions[uri] += 1
        changed = {"at": time.monotonic(), "version": versions[uri]}
        concerned = [peer for peer in peers if uri in peer.uris]
    for peer in concerned:
        peer.tell("notifications/resources/updated", {"uri": uri})
    return changed


def result_of(message, session, say):
    method, params = message["method"], message.get("params", {})
    if method == "server/discover" and era == "modern":
        return {"supportedVersions": ["2026-07-28"], "capabilities": OFFERED, **OWN}
    if method == "initialize" and era == "legacy":
        info = {"name": name, "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": OFFERED, "serverInfo": info}
    if method == "resources/list":
        return {"resources": resources, **OWN}
    if method == "tools/list":
        return {"tools": tools, **OWN}
    if method == "resources/read":
        return read(params["uri"], params.get("_meta", {}))
    if method == "tools/call":
        answer = call_tool(params["name"], params["arguments"], params.get("_meta", {}), say)
        return {"content": [{"type": "text", "text": json.dumps(answer)}], **OWN}
    if method in ("resources/subscribe", "resources/unsubscribe") and session is not None:
        with changing:
            (session.uris.add if method == "resources/subscribe" else session.uris.discard)(params["uri"])
        return {}
    if method == "ping" and session is not None:
        return {}
    raise Failure(-32601, f"Method not found: {method}")


def read(uri, meta):
    if uri.startswith("count:"):
        with changing:
            said = versions[uri]
        hints = EVERYBODYS
    else:
        said, hints = meta.get(CLIENT_INFO, {}).get("name"), OWN
    return {"contents": [{"uri": uri, "text": json.dumps({"uri": uri, "said": said})}], **hints}


def call_tool(tool, arguments, meta, say):
    with changing:
        calls[arguments["id"]] += 1
    if tool == "write":
        return {**arguments, **change(arguments["uri"])}
    steps = arguments.get("steps", 0)
    for step in range(steps):
        time.sleep(arguments["ms"] / 1000 / steps)
        if "progressToken" in meta:
            told = {"progressToken": meta["progressToken"], "progress": step + 1}
            say({"jsonrpc": "2.0", "method": "notifications/progress", "params": told})
    if not steps:
        time.sleep(arguments["ms"] / 1000)
    return {**arguments, "client": meta.get(CLIENT_INFO, {}).get("name")}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/change":
            self.reply(200, change(body.decode()))
            return
        message = json.loads(body)
        session_id = self.headers["Mcp-Session-Id"]
        if era == "modern" and VERSION not in message.get("params", {}).get("_meta", {}):
            self.reply(
                400, {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "No version"}}
            )
        elif message["method"] == "subscriptions/listen" and era == "modern":
            self.listen(message)
        elif message["method"] == "initialize" and era == "legacy":
            session_id = secrets.token_hex(8)
            sessions[session_id] = Peer()
            with changing:
                peers.add(sessions[session_id])
            self.answer(message, None, session_id)
        elif era == "legacy" and session_id not in sessions:
            self.reply(404 if session_id else 400, None)
        elif "id" in message:
            self.answer(message, sessions.get(session_id))
        else:
            self.reply(202, None)

    def answer(self, message, session, session_id=None):
        if "progressToken" in message.get("params", {}).get("_meta", {}):
            self.open_stream()
            self.say(answer_to(message, session, self.say))
            self.close_connection = True
        else:
            self.reply(200, answer_to(message, session, None), session_id)

    def listen(self, message):
        wish = message["params"]["notifications"]
        peer = Peer(message["id"], wish.get("resourceSubscriptions", ()))
        peer.tell("notifications/subscriptions/acknowledged", {"notifications": wish})
        with changing:
            peers.add(peer)
        try:
            self.stream(peer)
        finally:
            with changing:
                peers.discard(peer)

    def do_GET(self):
        session = sessions.get(self.headers["Mcp-Session-Id"])
        if self.path == "/truth":
            with changing:
                truth = {"calls": dict(calls), "versions": dict(versions)}
            self.reply(200, truth)
        elif session is None:
            self.reply(404 if "Mcp-Session-Id" in self.headers else 405, None)
        else:
            self.stream(session)

    def do_DELETE(self):
        session = sessions.pop(self.headers["Mcp-Session-Id"], None)
        with changing:
            peers.discard(session)
        self.reply(200 if session is not None else 404, None)

    def reply(self, status, message, session_id=None):
        body = b"" if message is None else json.dumps(message).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if session_id is not None:
            self.send_header("Mcp-Session-Id", session_id)
        self.end_headers()
        self.wfile.write(body)

    def open_stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()

    def say(self, message):
        with suppress(OSError):  # nobody waits for it any more; what was begun is done all the same
            self.wfile.write(f"data: {json.dumps(message)}\n\n".encode())

    def stream(self, peer):
        """What is heard, as events, until nobody reads them any more."""
        self.open_stream()
        while True:
            try:
                event = f"data: {json.dumps(peer.heard.get(timeout=ALIVE_SECONDS))}\n\n"
            except queue.Empty:
                event = ":\n\n"
            self.wfile.write(event.encode())


def answer_to(message, session, say):
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        return {**reply, "result": result_of(message, session, say)}
    except Failure as failure:
        return {**reply, "error": {"code": failure.args[0], "message": failure.args[1]}}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_):
        """A client has gone."""


server = Server(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
