"""Speed of this machine: the processor time of an exchange with a thin loop of trio and httptools.

The goals that are absolute times or rates were set on a machine where such a loop served 60,000 requests a
second on one core (64 connections kept alive, requests of 200 bytes, answers of 1 KB). `pace_of` returns how
many times as long this one takes. `python -m benchmarks.yardstick` is the loop; it never changes.
"""

from __future__ import annotations

import os
from contextlib import suppress

import httptools
import trio
from trio.socket import SocketType

from benchmarks.bench import Bench
from benchmarks.load import run_wrk
from benchmarks.process import Child

GOAL_SECONDS = 1 / 60_000  # of a core, for an exchange, where the goals were set
CONNECTIONS = 64
REQUEST = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 140\r\n\r\n".ljust(200, b"x")
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 1024\r\n\r\n" + bytes(1024)
RUNS = 3


def pace_of(bench: Bench) -> float:
    """Return how many times as long this machine takes as that of the goals; the least of some runs."""
    bench.note("the machine's pace")
    with Child(["benchmarks.yardstick"], bench.mux_core) as server:
        urls, costs = server.lines(1), []
        for _ in range(RUNS):
            start = server.cpu_seconds()
            tally = run_wrk(urls, [REQUEST], 1024, CONNECTIONS, bench.effort.seconds, {bench.load_core})
            costs.append((server.cpu_seconds() - start) / tally.exchanges)
        return min(costs) / GOAL_SECONDS


class _Requests:
    """Counts what httptools has found."""

    def __init__(self) -> None:
        self.complete = 0

    def on_message_complete(self) -> None:
        self.complete += 1


async def _converse(sock: SocketType) -> None:
    requests = _Requests()
    parser = httptools.HttpRequestParser(requests)
    with suppress(OSError), sock:  # wrk resets its connections at the end
        while data := await sock.recv(65536):
            parser.feed_data(data)
            while requests.complete:
                requests.complete -= 1
                await sock.send(ANSWER)


async def _serve() -> None:
    listener = trio.socket.socket()
    await listener.bind(("127.0.0.1", 0))
    listener.listen(CONNECTIONS)
    os.write(1, b"http://127.0.0.1:%d/mcp\n" % listener.getsockname()[1])
    async with trio.open_nursery() as nursery:
        while True:
            sock, _ = await listener.accept()
            nursery.start_soon(_converse, sock)


if __name__ == "__main__":
    trio.run(_serve)
