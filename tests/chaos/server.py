"""A server to be harmed: every answer says whose it is and what was asked.

    server.py NAME ERA [PIDS] [--http]

ERA is legacy, modern or both; the folder PIDS gets its process id. It reads any `note:…`, echoes (after `ms`
milliseconds) and tells its subscribers when `touch` was called. Over HTTP it prints its port first; its
sessions are lost with it, as real servers' are. Standard library only, to start fast.
"""

import itertools
import json
import os
import queue
import secrets
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VERSION = "io.modelcontextprotocol/protocolVersion"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
OFFERED = {"resources": {"subscribe": True}, "tools": {}}
FRESH = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
ALIVE_SECONDS = 1.0  # how often a stream is written to, to find out that nobody reads it

name, era = sys.argv[1:3]
tools = [{"name": tool, "inputSchema": {"type": "object"}} for tool in ("echo", "touch")]
notes = [{"uri": f"note:{name}/{number}", "name": str(number)} for number in range(5)]


class Failure(Exception):
    """An answer that is an error: code, message."""


class Peer:
    """Whoever hears of changes through `send`: a session (no `listen`), or one listen."""

    def __init__(self, send, listen=None, uris=()):
        self.send, self.listen, self.uris = send, listen, set(uris)

    def tell(self, method, params):
        if self.listen is not None:
            params = {**params, "_meta": {SUBSCRIPTION: self.listen}}
        self.send({"jsonrpc": "2.0", "method": method, "params": params})


peers: dict[int, Peer] = {}
numbers = itertools.count()
changing = threading.Lock()


def join(peer):
    with changing:
        key = next(numbers)
        peers[key] = peer
    return key


def touch(uri):
    with changing:
        concerned = [peer for peer in peers.values() if uri in peer.uris]
    for peer in concerned:
        peer.tell("notifications/resources/updated", {"uri": uri})


def is_modern(message):
    return VERSION in message.get("params", {}).get("_meta", {}) and era != "legacy"


def result_of(message, session):
    """The result of one request; `session` is who has sent it, in a legacy session."""
    method, params = message["method"], message.get("params", {})
    if method == "server/discover" and era != "legacy":
        return {"supportedVersions": ["2026-07-28"], "capabilities": OFFERED}
    if method == "initialize" and era != "modern":
        info = {"name": name, "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": OFFERED, "serverInfo": info}
    if method == "resources/list":
        return {"resources": notes}
    if method == "resources/read":
        return {"contents": [{"uri": params["uri"], "text": f"{name} reads {params['uri']}"}]}
    if method == "tools/list":
        return {"tools": tools}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": call_tool(params["name"], params["arguments"])}]}
    if method in ("resources/subscribe", "resources/unsubscribe") and session is not None:
        (session.uris.add if method == "resources/subscribe" else session.uris.discard)(params["uri"])
        return {}
    if method == "ping" and session is not None:
        return {}
    raise Failure(-32601, f"Method not found: {method}")


def call_tool(tool, arguments):
    if tool == "touch":
        touch(arguments["uri"])
        return f"{name} touches {arguments['uri']}"
    time.sleep(arguments["ms"] / 1000)
    return f"{name} echoes {arguments['text']}"


def answer(message, session):
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        result = result_of(message, session)
        return {**reply, "result": {**result, **FRESH} if is_modern(message) else result}
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

    session = Peer(send)
    join(session)
    for line in sys.stdin:
        message = json.loads(line)
        method = message["method"]
        if method == "subscriptions/listen" and is_modern(message):
            listens[message["id"]] = open_listen(message, send)
        elif method == "notifications/cancelled":
            peers.pop(listens.pop(message["params"]["requestId"], None), None)
        elif method == "tools/call":
            threading.Thread(target=lambda m=message: send(answer(m, session)), daemon=True).start()
        elif "id" in message:
            send(answer(message, session))


# HTTP

sessions: dict[str, "Session"] = {}


class Session(Peer):
    """A legacy session; what it is to hear waits in `heard` for its stream."""

    def __init__(self):
        self.heard: queue.Queue[Any] = queue.Queue()
        super().__init__(self.heard.put)
        self.key = join(self)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if is_modern(message) and message["method"] == "subscriptions/listen":
            heard: queue.Queue[Any] = queue.Queue()
            self.stream(heard, open_listen(message, heard.put))
        elif is_modern(message):
            self.reply(200, answer(message, None))
        elif message["method"] == "initialize" and era != "modern":
            session_id = secrets.token_hex(8)
            sessions[session_id] = Session()
            self.reply(200, answer(message, None), session_id)
        elif "Mcp-Session-Id" not in self.headers:
            self.reply(
                400, {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "No session"}}
            )
        elif self.headers["Mcp-Session-Id"] not in sessions:
            self.reply(404, None)
        elif "id" in message:
            self.reply(200, answer(message, sessions[self.headers["Mcp-Session-Id"]]))
        else:
            self.reply(202, None)

    def do_GET(self):
        session = sessions.get(self.headers["Mcp-Session-Id"])
        if session is None:
            self.reply(404 if "Mcp-Session-Id" in self.headers else 405, None)
        else:
            self.stream(session.heard)

    def do_DELETE(self):
        session = sessions.pop(self.headers["Mcp-Session-Id"], None)
        if session is not None:
            peers.pop(session.key, None)
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

    def stream(self, heard, key=None):
        """What is heard, as events, until nobody reads them any more."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            while True:
                try:
                    event = f"data: {json.dumps(heard.get(timeout=ALIVE_SECONDS))}\n\n"
                except queue.Empty:
                    event = ":\n\n"
                self.wfile.write(event.encode())
        finally:
            peers.pop(key, None)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_):
        """A client has gone."""


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
