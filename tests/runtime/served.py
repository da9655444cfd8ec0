"""mcpmux and the benchmark's upstream as separate processes, and a small client."""

import json
import re
import socket
import subprocess
import sys

from mcpmux.protocol.call import CLIENT_CAPABILITIES, CLIENT_INFO, META, VERSION
from mcpmux.protocol.revisions import NEWEST

WAIT_SECONDS = 120


def started(stack, *arguments, stdin="", urls=1):
    """Start a process. Return it and the ports that it prints; it ends with `stack`."""
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-m", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    )
    stack.callback(process.terminate)
    process.stdin.write(stdin)
    process.stdin.close()
    lines = [process.stdout.readline() for _ in range(urls)]
    ports = re.findall(r"http://127\.0\.0\.1:(\d+)/mcp", "".join(lines))
    assert len(ports) == urls
    return process, [int(port) for port in ports]


def started_mux(stack, config):
    """Start mcpmux with this configuration. Return it and its port."""
    arguments = ["serve", "-", "--http", "127.0.0.1:0", "--log-level", "error"]
    process, (port,) = started(stack, "mcpmux", *arguments, stdin=config)
    return process, port


def connected(port, **options):
    """Return a connection. `options` are set on its socket before it connects."""
    client = socket.socket()
    for name, value in options.items():
        client.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    client.settimeout(WAIT_SECONDS)
    client.connect(("127.0.0.1", port))
    return client


def ask(client, method, **params):
    """Send a modern request."""
    meta = {VERSION: NEWEST, CLIENT_INFO: {"name": "t", "version": "1"}, CLIENT_CAPABILITIES: {}}
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, META: meta}}
    body = json.dumps(message).encode()
    named = f"Mcp-Name: {params['uri']}\r\n" if "uri" in params else ""
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{client.getpeername()[1]}\r\n"
        f"Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
        f"MCP-Protocol-Version: {NEWEST}\r\nMcp-Method: {method}\r\n{named}"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    client.sendall(head.encode() + body)


def result_of(client):
    """Return the result in the next answer."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += client.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    (length,) = map(int, re.findall(rb"(?i)content-length: (\d+)", head))
    parts = [body]
    missing = length - len(body)
    while missing:
        parts.append(client.recv(min(missing, 2**20)))
        missing -= len(parts[-1])
    return json.loads(b"".join(parts))["result"]
