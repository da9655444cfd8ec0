"""A server to be harmed: every answer says whose it is and what was asked, and it remembers what was done.

    server.py NAME ERA [PIDS] [--http]

ERA is legacy, modern or both; the folder PIDS gets its process id. Over HTTP it prints its port first; its
sessions are lost with it, as real servers' are. To MCP it has these resources, of which it lists five notes:

    note:…    whose it is, and its URI
    count:…   how often the resource was changed; a modern server lets all clients remember that for a minute
    own:…     the name that the client which reads it gives itself, for this client only

and these tools:

    echo      answers its `text` after `ms` milliseconds
    touch     changes any resource, and tells its subscribers
    write     does the same, and answers how often it was changed
    work      takes `ms` milliseconds, reports progress in `steps` of them, and answers its arguments

`write` and `work` count calls by their `id`. Besides MCP, `POST /change` with a URI changes it now, and
answers when that was, by the machine's monotonic clock, which all its processes share. `GET /truth` tells how
often each id was called, and how often each resource was changed. Standard library only, to start fast.
"""

import json
import os
import queue
import secrets
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VERSION = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
OFFERED = {"resources": {"subscribe": True}, "tools": {}}
OWN = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
PUBLIC = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "public"}
ALIVE_SECONDS = 1.0  # how often a stream is written to, to find out that its client has gone

name, era = sys.argv[1:3]
text, number = {"type": "string"}, {"type": "number"}
PARAMETERS = {
    "echo": {"text": text, "ms": number},
    "touch": {"uri": text},
    "write": {"id": text, "uri": text},
    "work": {"id": text, "as": text, "ms": number, "steps": number},
}
tools = [
    {"name": tool, "inputSchema": {"type": "object", "properties": properties}}
    for tool, properties in PARAMETERS.items()
]
notes = [{"uri": f"note:{name}/{number}", "name": str(number)} for number in range(5)]

changing = threading.Lock()
calls: Counter[str] = Counter()
versions: Counter[str] = Counter()
peers: set["Peer"] = set()


class Failure(Exception):
    """An answer that is an error: code, message."""


class Peer:
    """A client that gets changes by `send`: a session (no `listen`), or one listen."""

    def __init__(self, send, listen=None, uris=()):
        self.send, self.listen, self.uris = send, listen, set(uris)

    def tell(self, method, params):
        if self.listen is not None:
            params = {**params, "_meta": {SUBSCRIPTION: self.listen}}
        self.send({"jsonrpc": "2.0", "method": method, "params": params})


def join(peer):
    with changing:
        peers.add(peer)
    return peer


def leave(peer):
    with changing:
        peers.discard(peer)


def change(uri):
    """Change a resource: when, and how often that was done so far."""
    with changing:
        versions[uri] += 1
        changed = {"at": time.monotonic(), "version": versions[uri]}
        concerned = [peer for peer in peers if uri in peer.uris]
    for peer in concerned:
        peer.tell("notifications/resources/updated", {"uri": uri})
    return changed


def is_modern(message):
    return VERSION in message.get("params", {}).get("_meta", {}) and era != "legacy"


def result_of(message, session, say):
    """Return the result of one request; `session`: its sender, in a legacy session."""
    method, params = message["method"], message.get("params", {})
    if method == "server/discover" and era != "legacy":
        return {"supportedVersions": ["2026-07-28"], "capabilities": OFFERED}
    if method == "initialize" and era != "modern":
        info = {"name": name, "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": OFFERED, "serverInfo": info}
    if method == "resources/list":
        return {"resources": notes}
    if method == "resources/read":
        return {"contents": [{"uri": params["uri"], "text": read(params["uri"], params.get("_meta", {}))}]}
    if method == "tools/list":
        return {"tools": tools}
    if method == "tools/call":
        answered = call_tool(params["name"], params["arguments"], params.get("_meta", {}), say)
        return {"content": [{"type": "text", "text": answered}]}
    if method in ("resources/subscribe", "resources/unsubscribe") and session is not None:
        with changing:
            (session.uris.add if method == "resources/subscribe" else session.uris.discard)(params["uri"])
        return {}
    if method == "ping" and session is not None:
        return {}
    raise Failure(-32601, f"Method not found: {method}")


def hints_of(message):
    """Return the cache hints for the answer to a modern request."""
    if message["method"] == "resources/read" and message["params"]["uri"].startswith("count:"):
        return PUBLIC
    return OWN


def read(uri, meta):
    if uri.startswith("note:"):
        return f"{name} reads {uri}"
    with changing:
        text = versions[uri]
    if uri.startswith("own:"):
        text = meta.get(CLIENT_INFO, {}).get("name")
    return json.dumps({"uri": uri, "said": text})


def call_tool(tool, arguments, meta, say):
    if tool == "echo":
        time.sleep(arguments["ms"] / 1000)
        return f"{name} echoes {arguments['text']}"
    if tool == "touch":
        change(arguments["uri"])
        return f"{name} touches {arguments['uri']}"
    with changing:
        calls[arguments["id"]] += 1
    if tool == "write":
        return json.dumps({**arguments, **change(arguments["uri"])})
    steps = arguments.get("steps", 0)
    for step in range(steps):
        time.sleep(arguments["ms"] / 1000 / steps)
        if "progressToken" in meta:
            progress = {"progressToken": meta["progressToken"], "progress": step + 1}
            say({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
    if not steps:
        time.sleep(arguments["ms"] / 1000)
    return json.dumps({**arguments, "client": meta.get(CLIENT_INFO, {}).get("name")})


def answer_to(message, session, say):
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        result = result_of(message, session, say)
        return {**reply, "result": {**result, **hints_of(message)} if is_modern(message) else result}
    except Failure as failure:
        return {**reply, "error": {"code": failure.args[0], "message": failure.args[1]}}


def open_listen(message, send):
    wish = message["params"]["notifications"]
    peer = Peer(send, message["id"], wish.get("resourceSubscriptions", ()))
    peer.tell("notifications/subscriptions/acknowledged", {"notifications": wish})
    return join(peer)


# Standard input and output


def serve_stdio():
    writing = threading.Lock()
    listens = {}

    def send(message):
        with writing:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()

    def answer(message):
        send(answer_to(message, session, send))

    session = join(Peer(send))
    for line in sys.stdin:
        message = json.loads(line)
        method = message["method"]
        if method == "subscriptions/listen" and is_modern(message):
            listens[message["id"]] = open_listen(message, send)
        elif method == "notifications/cancelled":
            leave(listens.pop(message["params"]["requestId"], None))
        elif method == "tools/call":
            threading.Thread(target=answer, args=(message,), daemon=True).start()
        elif "id" in message:
            answer(message)


# HTTP

sessions: dict[str, tuple[Peer, queue.Queue[Any]]] = {}


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
        if is_modern(message) and message["method"] == "subscriptions/listen":
            messages: queue.Queue[Any] = queue.Queue()
            peer = open_listen(message, messages.put)
            try:
                self.stream(messages)
            finally:
                leave(peer)
        elif is_modern(message):
            self.answer(message, None)
        elif message["method"] == "initialize" and era != "modern":
            messages, session_id = queue.Queue(), secrets.token_hex(8)
            sessions[session_id] = join(Peer(messages.put)), messages
            self.answer(message, None, session_id)
        elif session_id is None:
            self.reply(
                400, {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "No session"}}
            )
        elif session_id not in sessions:
            self.reply(404, None)
        elif "id" in message:
            self.answer(message, sessions[session_id][0])
        else:
            self.reply(202, None)

    def answer(self, message, session, session_id=None):
        if "progressToken" in message.get("params", {}).get("_meta", {}):
            self.open_stream()
            self.say(answer_to(message, session, self.say))
            self.close_connection = True
        else:
            self.reply(200, answer_to(message, session, None), session_id)

    def do_GET(self):
        session_id = self.headers["Mcp-Session-Id"]
        if self.path == "/truth":
            with changing:
                truth = {"calls": dict(calls), "versions": dict(versions)}
            self.reply(200, truth)
        elif session_id in sessions:
            self.stream(sessions[session_id][1])
        else:
            self.reply(405 if session_id is None else 404, None)

    def do_DELETE(self):
        session, _ = sessions.pop(self.headers["Mcp-Session-Id"], (None, None))
        leave(session)
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
        with suppress(OSError):  # its client has gone; what was begun is done all the same
            self.wfile.write(f"data: {json.dumps(message)}\n\n".encode())

    def stream(self, messages):
        """Send what is heard, as events, until the client has gone."""
        self.open_stream()
        while True:
            try:
                event = f"data: {json.dumps(messages.get(timeout=ALIVE_SECONDS))}\n\n"
            except queue.Empty:
                event = ":\n\n"
            self.wfile.write(event.encode())


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_):
        """Log no error when a client has gone."""


def main():
    options = sys.argv[3:]
    if options and options[0] != "--http":
        Path(options[0], f"{os.getpid()}.{name}").touch()
    if options[-1:] == ["--http"]:
        server = Server(("127.0.0.1", 0), Handler)
        print(server.server_port, flush=True)
        server.serve_forever()
    else:
        serve_stdio()


main()
