"""What of one configuration each of several processes gets. Pure.

Rules
  * A server that mcpmux starts, and that all clients share, runs once, beside the keeper: its home. To the
    workers it is a server at a Unix socket that speaks the newest revision. `per_worker` and sessions of
    clients' own are the workers' own.
  * What is bounded in all (connections, sessions, exchanges with a running server, memory) is divided and
    rounded up. What is bounded for one client stays as it is.
  * Files are written by one process: each worker has an audit log in a folder of its own. Capture files are
    each one run's anyway, and stand side by side.
  * What one worker seals another must open: the key is the same everywhere.

Laws: the workers' shares of a number are that number together, or less than one a worker more; a worker has
the upstreams of the whole in the same order with the same prefixes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from mcpmux.config import Config, Listeners, Secret, Stdio, Unix, Upstream
from mcpmux.config.model import Caching, Limits
from mcpmux.traffic.audit.chain import CHAIN_FOLDER


def is_homed(upstream: Upstream) -> bool:
    """Whether a server runs once for all workers."""
    return (
        upstream.enabled
        and isinstance(upstream.target, Stdio)
        and upstream.session == "shared"
        and not upstream.per_worker
    )


def part(whole: int, workers: int) -> int:
    """One worker's share of a bound."""
    return -(-whole // workers)


def folder_of(worker: int) -> str:
    """The name of a worker's own folder inside of another one."""
    return f"{CHAIN_FOLDER}{worker}"


def worker_config(
    config: Config, worker: int, workers: int, sockets: Mapping[str, str], key: Secret
) -> Config:
    """The configuration of worker 1 to `workers`.

    `sockets`: of the homes, by upstream. `key`: for cursors, when none is configured.
    """
    capture, audit = config.capture, config.audit
    audit_folder = str(Path(audit.directory) / folder_of(worker)) if audit.directory is not None else None
    return attrs.evolve(
        config,
        upstreams=tuple(_seen_by_worker(each, workers, sockets) for each in config.upstreams),
        merging=attrs.evolve(config.merging, cursor_key=config.merging.cursor_key or key),
        limits=_divide_limits(config.limits, workers),
        caching=_divide_caching(config.caching, workers),
        capture=attrs.evolve(capture, queue_bytes=max(65536, part(capture.queue_bytes, workers))),
        audit=attrs.evolve(audit, directory=audit_folder),
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


def _divide_limits(limits: Limits, workers: int) -> Limits:
    return attrs.evolve(
        limits,
        max_sessions=part(limits.max_sessions, workers),
        max_connections=part(limits.max_connections, workers),
    )


def _divide_caching(caching: Caching, workers: int) -> Caching:
    return attrs.evolve(
        caching,
        max_bytes=max(1024, part(caching.max_bytes, workers)),
        max_entries=part(caching.max_entries, workers),
    )


def home_config(config: Config, upstream: Upstream) -> Config:
    """The configuration of the home of one upstream, which passes it on untouched.

    Who comes is known to the workers, and so is what they have kept: a home asks and keeps nothing.
    """
    limits = attrs.evolve(config.limits, max_in_flight=upstream.max_in_flight + upstream.max_waiting)
    return Config(
        upstreams=(attrs.evolve(upstream, prefix="", caching=False),),
        listeners=Listeners(),
        limits=limits,
        logging=config.logging,
        redaction=config.redaction,
    )
