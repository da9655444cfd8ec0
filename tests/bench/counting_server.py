"""A small MCP server (modern, JSON over HTTP) that counts the reads on each connection.

Prints its URL; on SIGTERM the counts, as a JSON list. One epoll loop: 1,000 connections are no burden.
"""

import json
import re
import resource
import select
import signal
import socket

HEAD = re.compile(rb"content-length: *(\d+)\r\n", re.IGNORECASE)
READ = {"contents": [{"uri": "memo:1", "text": "x" * 1000}], "ttlMs": 0, "cacheScope": "private"}
LISTED = {"resources": [{"uri": "memo:1", "name": "1"}], "ttlMs": 0, "cacheScope": "private"}
FACTS = {"supportedVersions": ["2026-07-28"], "capabilities": {"resources": {}}}


def answer(body: bytes) -> tuple[bytes, bool]:
    """Return the whole response, and whether it was a read."""
    message = json.loads(body)
    reads = message["method"] == "resources/read"
    result = READ if reads else LISTED if message["method"] == "resources/list" else FACTS
    whole = {"jsonrpc": "2.0", "id": message["id"], "result": {"resultType": "complete", **result}}
    text = json.dumps(whole).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    return head.encode() + text, reads


class Server:
    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.poller = select.epoll()
        self.poller.register(self.listener, select.EPOLLIN)
        self.sockets: dict[int, socket.socket] = {}
        self.data: dict[int, bytes] = {}
        self.reads: dict[int, int] = {}
        self.counts: list[int] = []

    def run(self) -> None:
        while True:
            for fd, _ in self.poller.poll():
                if fd == self.listener.fileno():
                    opened, _ = self.listener.accept()
                    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.sockets[opened.fileno()] = opened
                    self.data[opened.fileno()], self.reads[opened.fileno()] = b"", 0
                    self.poller.register(opened, select.EPOLLIN)
                else:
                    self.serve(fd)

    def serve(self, fd: int) -> None:
        try:
            received = self.sockets[fd].recv(65536)
        except ConnectionResetError:
            received = b""
        if not received:
            self.poller.unregister(fd)
            self.sockets.pop(fd).close()
            self.counts.append(self.reads.pop(fd))
            return
        data = self.data[fd] + received
        end = data.find(b"\r\n\r\n") + 4
        length = HEAD.search(data)
        if end < 4 or length is None or len(data) < end + int(length[1]):
            self.data[fd] = data
            return
        self.data[fd] = b""
        response, reads = answer(data[end:])
        self.reads[fd] += reads
        self.sockets[fd].sendall(response)


class Stopped(Exception):
    pass


def stop(*_: object) -> None:
    raise Stopped


if __name__ == "__main__":
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    server = Server()
    signal.signal(signal.SIGTERM, stop)
    print(f"http://127.0.0.1:{server.listener.getsockname()[1]}/mcp", flush=True)
    try:
        server.run()
    except Stopped:
        counts = server.counts + list(server.reads.values())
        print(json.dumps(counts), flush=True)
