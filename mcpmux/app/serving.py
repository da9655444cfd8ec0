"""From start to stop. Nesting is the stop order: who watches ⊃ upstreams ⊃ clients ⊃ exchanges.

The first SIGINT or SIGTERM drains: listeners close, exchanges finish up to a deadline, then upstreams are
closed. The second cancels.
"""

from __future__ import annotations

import gc
import signal

import structlog
import trio

from mcpmux.app.assembly import open_mux
from mcpmux.app.listeners import Announce, Serving, serve_http_listener, serve_stdio, serve_stream_listener
from mcpmux.app.watching import open_watching
from mcpmux.config import Config

log = structlog.get_logger()

DRAIN_SECONDS = 10.0  # for exchanges that run when we are asked to stop; a container runtime waits as long


async def serve(config: Config, announce: Announce) -> None:
    """Serve until SIGINT or SIGTERM, or until the client on standard input has gone.

    `announce` is called with each listener's URL when it is ready. Raises TransportError when an address
    cannot be listened on.
    """
    stopping = trio.Event()
    async with trio.open_nursery() as signals:
        signals.start_soon(_watch_signals, stopping, signals.cancel_scope, name="signals")
        async with (
            open_watching(config) as watching,
            open_mux(config, tap=watching.tap, trace=watching.trace) as mux,
            trio.open_nursery() as clients,
        ):
            serving = Serving(config.limits, mux.front, stopping, announce)
            for listener in config.listeners.http:
                await clients.start(serve_http_listener, listener, serving)
            for each in config.listeners.streams:
                await clients.start(serve_stream_listener, each, serving)
            if config.listeners.stdio:
                clients.start_soon(serve_stdio, serving, name="stdio client")
            if watching.inspector is not None:
                await clients.start(watching.inspector.serve, mux, stopping, announce)
            _settle_memory()
            await stopping.wait()
            mux.relay.close()
            clients.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS
        signals.cancel_scope.cancel()


def _settle_memory() -> None:
    """What exists once everything is set up stays: the collector need not look at it on every round."""
    gc.collect()
    gc.freeze()


async def _watch_signals(stopping: trio.Event, everything: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        async for number in received:
            name = signal.Signals(number).name
            if stopping.is_set():
                log.warning("stopping at once", signal=name)
                everything.cancel(reason=f"second {name}")
                return
            log.info("stopping; once more to stop at once", signal=name)
            stopping.set()
