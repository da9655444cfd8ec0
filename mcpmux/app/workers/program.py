"""The program of a worker; its arguments are numbers, everything else comes from its desk."""

from __future__ import annotations

import os
import signal
import socket
import sys

import structlog
import trio

from mcpmux.app.workers.changes import map_counters
from mcpmux.app.workers.control_channel import Desk
from mcpmux.app.workers.worker import run_worker
from mcpmux.mux.generations import Generations
from mcpmux.transports.handing import Hatch

log = structlog.get_logger()


def main() -> None:
    """Arguments: own number, how many workers, the file descriptors of desk, hatch and counters."""
    number, workers, desk, hatch, counters = (int(argument) for argument in sys.argv[1:6])
    for fd in (desk, hatch, counters):  # nothing that we start has any business with them
        os.set_inheritable(fd, False)
    failed = False
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    try:
        generations = map_counters(counters, number, workers)
        trio.run(_run, number, generations, socket.socket(fileno=desk), socket.socket(fileno=hatch))
    except* Exception as crash:  # the wall around the process
        log.error("worker failed", worker=number, errors=[repr(error) for error in crash.exceptions])
        log.debug("worker failed here", exc_info=crash)
        failed = True
    if failed:
        sys.exit(1)


async def _run(number: int, generations: Generations, desk: socket.socket, hatch: socket.socket) -> None:
    desk.setblocking(False)
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(desk))
    await run_worker(number, generations, Desk(stream), Hatch(hatch))
