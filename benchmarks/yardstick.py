"""How fast this machine is: the processor time that a thin loop of trio over httptools takes for an exchange.

The goals that are times or rates by themselves were set on a machine where such a loop served 60,000 requests
a second on one core (64 connections kept alive, requests of 200 bytes, answers of 1 KB). `pace_of` says how
many times as long this one takes. `python -m benchmarks.yardstick` is the loop; it never changes.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack

import httptools
import trio
from trio.socket import SocketType

from benchmarks.bench import Bench
from benchmarks.connection import Connection, WrongAnswer
from benchmarks.process import Child, on_core

GOAL_SECONDS = 1 / 60_000  # of a core, for an exchange, where the goals were set
CONNECTIONS = 64
REQUEST = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 140\r\n\r\n".ljust(200, b"x")
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 1024\r\n\r\n" + bytes(1024)
WARM_UP_ROUNDS = 50
RUNS = 3


def pace_of(bench: Bench) -> float:
    """How many times as long this machine takes as the one of the goals; the least of some runs."""
    bench.note("the machine's pace")
    with Child(["benchmarks.yardstick"], bench.mux_core) as server, ExitStack() as stack:
        stack.enter_context(on_core(bench.load_core))
        (url,) = server.lines(1)
        connections = [Connection(url) for _ in range(CONNECTIONS)]
        for connection in connections:
            stack.callback(connection.close)
        _ask(connections, WARM_UP_ROUNDS)
        seconds = max(bench.effort.seconds / 2, 0.5)
        return min(_seconds_each(server, connections, seconds) for _ in range(RUNS)) / GOAL_SECONDS


def _seconds_each(server: Child, connections: list[Connection], seconds: float) -> float:
    """Processor time of the server for an exchange."""
    rounds, before, end = 0, server.cpu_seconds(), time.monotonic() + seconds
    while time.monotonic() < end:
        _ask(connections, 10)
        rounds += 10
    return (server.cpu_seconds() - before) / (rounds * len(connections))


def _ask(connections: list[Connection], rounds: int) -> None:
    """All at once, so that the loop finds as much to do at a time as it can. Raises WrongAnswer."""
    for _ in range(rounds):
        for connection in connections:
            connection.send(REQUEST)
        for connection in connections:
            while (answer := connection.receive()) is None:
                pass
            if answer.status != 200:
                raise WrongAnswer(f"status {answer.status}")


class _Requests:
    """Counts what httptools has found."""

    def __init__(self) -> None:
        self.complete = 0

    def on_message_complete(self) -> None:
        self.complete += 1


async def _converse(sock: SocketType) -> None:
    requests = _Requests()
    parser = httptools.HttpRequestParser(requests)
    with sock:
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
