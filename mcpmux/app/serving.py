"""From start to stop. Nesting is the stop order: who watches ⊃ upstreams ⊃ clients ⊃ exchanges.

The first SIGINT or SIGTERM drains: listeners close, exchanges finish up to a deadline, then upstreams are
closed. The second cancels. SIGHUP, or a change of the configuration's file, has it read again.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Sequence
from functools import partial

import structlog
import trio

from mcpmux.app.config_file import ConfigFile
from mcpmux.app.control import Control
from mcpmux.app.gates import adopt, make_gate
from mcpmux.app.listeners import Announce, Serving, serve_http_listener, serve_stdio, serve_stream_listener
from mcpmux.app.mux import Follower, open_mux
from mcpmux.app.reloading import keep_reloading
from mcpmux.app.watching import open_watching
from mcpmux.config import Config
from mcpmux.transports.memory import give_back_memory, keep_freed_memory

log = structlog.get_logger()

COLLECTOR_THRESHOLDS = (20_000, 20, 20)
DRAIN_SECONDS = 10.0  # for exchanges that run when we are asked to stop; a container runtime waits as long


async def serve(
    config: Config,
    announce: Announce,
    file: ConfigFile | None = None,
    *,
    watch: bool = True,
    followers: Sequence[Follower] = (),
) -> None:
    """Serve until SIGINT or SIGTERM, or until the client on standard input has gone.

    `announce` is called with each listener's URL when it is ready. `file` is what the configuration was read
    from; with `watch` it is followed. `followers` are told each new configuration.

    Raises TransportError when an address cannot be listened on, ConfigError when strangers would get in that
    nobody has asked for.
    """
    keep_freed_memory()
    gate = await make_gate(config)
    stopping, reloading = trio.Event(), trio.CancelScope()
    async with trio.open_nursery() as signals:
        signals.start_soon(watch_signals, stopping, signals.cancel_scope, name="signals")
        async with (
            open_watching(config) as watching,
            open_mux(config, tap=watching.tap, trace=watching.trace) as mux,
            trio.open_nursery() as clients,
        ):
            control = Control(mux, file)
            mux.followers += [watching.follow, *followers]
            if gate is not None:
                mux.followers.append(partial(adopt, gate))
            if file is not None:
                await clients.start(keep_reloading, control, file if watch else None, stopping, reloading)
            serving = Serving(
                config.limits, mux.front, stopping, announce, gate, mux.certificates, mux.reception
            )
            for listener in config.listeners.http:
                await clients.start(serve_http_listener, listener, serving)
            for each in config.listeners.streams:
                await clients.start(serve_stream_listener, each, serving)
            if config.listeners.stdio:
                clients.start_soon(serve_stdio, serving, name="stdio client")
            if watching.inspector is not None:
                await clients.start(watching.inspector.serve, mux, control, stopping, announce)
            settle_memory()
            await stopping.wait()
            mux.relay.close()
            reloading.cancel(reason="stopping")
            clients.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS
        signals.cancel_scope.cancel()


def settle_memory() -> None:
    """What exists once everything is set up stays: the collector need not look at it on every round.

    Nor need it come so often: what an exchange leaves behind is freed without it. What starting has left is
    given back to the system.
    """
    gc.collect()
    give_back_memory()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


async def watch_signals(stopping: trio.Event, everything: trio.CancelScope) -> None:
    """The first SIGINT or SIGTERM sets `stopping`, the second cancels everything."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        async for number in received:
            name = signal.Signals(number).name
            if stopping.is_set():
                log.warning("stopping at once", signal=name)
                everything.cancel(reason=f"second {name}")
                return
            log.info("stopping; once more to stop at once", signal=name)
            stopping.set()
