"""Splits one configuration into those of several processes. Pure.

Rules
  * A server that mcpmux starts, and that all clients share, is a shared upstream: it runs once, under the
    supervisor. Workers reach it at a Unix socket as a server of the newest revision. Upstreams that are
    `per_worker` or have sessions of clients' own run in each worker.
  * Limits on the whole (connections, sessions, exchanges with a running server, memory) are divided and
    rounded up. Limits on one client stay as they are.
  * A file is written by one process: each worker has its audit log in a folder of its own. Capture files
    belong to one run each anyway and lie side by side.
  * What one worker seals another must open: the key is the same everywhere.

Laws: the workers' parts of a number add up to it, or to less than one a worker more; a worker has the
upstreams of the whole in the same order with the same prefixes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from mcpmux.config import Config, Listeners, Secret, Stdio, Unix, Upstream
from mcpmux.traffic.audit.chain import CHAIN_FOLDER


def is_shared(upstream: Upstream) -> bool:
    """Whether a server runs once for all workers."""
    return (
        upstream.enabled
        and isinstance(upstream.target, Stdio)
        and upstream.session == "shared"
        and not upstream.per_worker
    )


def part(whole: int, workers: int) -> int:
    """One worker's part of a limit."""
    return -(-whole // workers)


def folder_of(worker: int) -> str:
    """The name of a worker's own folder inside of another one."""
    return f"{CHAIN_FOLDER}{worker}"


def worker_config(
    config: Config, worker: int, workers: int, sockets: Mapping[str, str], key: Secret
) -> Config:
    """The configuration of worker 1 to `workers`.

    `sockets`: of shared upstreams, by name. `key`: for cursors, when none is configured.
    """
    limits, caching, capture, audit = config.limits, config.caching, config.capture, config.audit
    return attrs.evolve(
        config,
        upstreams=tuple(_seen_by_worker(each, workers, sockets) for each in config.upstreams),
        merging=attrs.evolve(config.merging, cursor_key=config.merging.cursor_key or key),
        limits=attrs.evolve(
            limits,
            max_sessions=part(limits.max_sessions, workers),
            max_connections=part(limits.max_connections, workers),
        ),
        caching=attrs.evolve(
            caching,
            max_bytes=max(1024, part(caching.max_bytes, workers)),
            max_entries=part(caching.max_entries, workers),
        ),
        capture=attrs.evolve(capture, queue_bytes=max(65536, part(capture.queue_bytes, workers))),
        audit=attrs.evolve(
            audit,
            directory=str(Path(audit.directory) / folder_of(worker)) if audit.directory is not None else None,
        ),
    )


def _seen_by_worker(upstream: Upstream, workers: int, sockets: Mapping[str, str]) -> Upstream:
    if upstream.name in sockets:
        era = upstream.era if upstream.era == "mirror" else "newest"
        return attrs.evolve(upstream, target=Unix(sockets[upstream.name]), era=era, health_interval=0.0)
    return attrs.evolve(
        upstream,
        max_in_flight=part(upstream.max_in_flight, workers),
        max_waiting=part(upstream.max_waiting, workers),
    )


def shared_config(config: Config, upstream: Upstream) -> Config:
    """The configuration of the mux in front of one shared upstream, which passes it on untouched.

    Workers know who their clients are and what may be cached, so this mux asks nobody and caches nothing.
    """
    limits = attrs.evolve(config.limits, max_in_flight=upstream.max_in_flight + upstream.max_waiting)
    return Config(
        upstreams=(attrs.evolve(upstream, prefix="", caching=False),),
        listeners=Listeners(),
        limits=limits,
        logging=config.logging,
        redaction=config.redaction,
    )
