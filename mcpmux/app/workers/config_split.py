"""Split one configuration into the configurations of several processes. Pure.

  * A server that mcpmux starts, and that all clients share, runs once, under the supervisor. Workers reach it
    at a Unix socket as a server of the newest revision. Other upstreams run in each worker.
  * Limits on the whole (connections, sessions, exchanges with a server, memory) are divided and rounded up.
    Limits on one client are not divided.
  * Each worker has a separate folder for its audit log. Capture files are separate for each run anyway.
  * All workers have the same key, as any worker must open what another one has sealed.

Laws: the workers' parts of a number add up to it, or to less than one a worker more; a worker has the
upstreams of the whole in the same order with the same prefixes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import attrs

from mcpmux.config import Caching, Capture, Config, Limits, Listeners, Secret, Stdio, Unix, Upstream
from mcpmux.config.model import ToolSelection
from mcpmux.traffic.audit.chain import CHAIN_FOLDER

T = TypeVar("T", Limits, Caching, Capture, Upstream)


def is_shared(upstream: Upstream) -> bool:
    """Return whether a server runs once for all workers."""
    return (
        upstream.enabled
        and isinstance(upstream.target, Stdio)
        and upstream.session == "shared"
        and not upstream.per_worker
    )


DIVIDED = ("max_sessions", "max_connections", "max_connections_per_address", "max_streams_per_client")
"""Limits of a listener, of which each worker has a part."""


def divide(settings: T, workers: int, **least: int) -> T:
    """Return `settings` with one worker's part of each named limit that is set.

    A part is rounded up, and at least the given number.
    """
    whole = {name: getattr(settings, name) for name in least}
    parts = {name: max(low, -(-whole[name] // workers)) for name, low in least.items() if whole[name]}
    return attrs.evolve(settings, **parts)


def worker_config(
    config: Config, worker: int, workers: int, sockets: Mapping[str, str], key: Secret
) -> Config:
    """Return the configuration of worker number `worker`, which is 1 to `workers`.

    `sockets`: of shared upstreams, by name. `key`: for seals, when none is configured.
    """
    folder = config.audit.directory
    if folder is not None:
        folder = str(Path(folder) / f"{CHAIN_FOLDER}{worker}")
    return attrs.evolve(
        config,
        upstreams=tuple(_seen_by_worker(upstream, workers, sockets) for upstream in config.upstreams),
        merging=attrs.evolve(config.merging, cursor_key=config.merging.cursor_key or key),
        limits=divide(config.limits, workers, **dict.fromkeys(DIVIDED, 1)),
        caching=divide(config.caching, workers, max_bytes=1024, max_entries=1),
        capture=divide(config.capture, workers, queue_bytes=65536),
        audit=attrs.evolve(config.audit, directory=folder),
    )


def _seen_by_worker(upstream: Upstream, workers: int, sockets: Mapping[str, str]) -> Upstream:
    if upstream.name not in sockets:
        # The workers divide the limits of servers at an address among them, as replicas do: see Mux.share.
        own = upstream.session == "shared" and isinstance(upstream.target, Stdio | Unix)
        return divide(upstream, workers, max_in_flight=1, max_waiting=0) if own else upstream
    era = "mirror" if upstream.era == "mirror" and upstream.revision is None else "newest"
    # The supervisor's mux speaks the newest revision for every server, and checks its health.
    target = Unix(sockets[upstream.name])
    return attrs.evolve(upstream, target=target, era=era, revision=None, health_interval=0.0)


def shared_config(config: Config, upstream: Upstream) -> Config:
    """Return the configuration of the mux in front of one shared upstream, which passes all messages on.

    It does not authenticate, select, rename, count or cache anything: each worker does that for its clients.
    """
    in_flight = upstream.max_in_flight + upstream.max_waiting
    limits = attrs.evolve(config.limits, max_in_flight=in_flight, rate=())
    return Config(
        upstreams=(attrs.evolve(upstream, prefix="", caching=False, tools=ToolSelection(), overrides=()),),
        listeners=Listeners(),
        limits=limits,
        logging=config.logging,
        redaction=config.redaction,
    )
