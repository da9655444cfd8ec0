"""How many files and sockets this process may have open: as many as the system lets us, when we need them."""

from __future__ import annotations

import sys

import structlog

from mcpmux.config import Config, Http

if sys.platform != "win32":
    import resource


SPARE_FILES = 200  # the event loop, logs, child processes with three pipes each, connections that are refused
FILES_PER_SERVER = 256  # connections to a server over HTTP at most

log = structlog.get_logger()


def allow_clients(config: Config) -> None:
    """Allow this process what its clients and servers may need; say so when the system forbids it."""
    listeners = config.listeners
    clients = config.limits.max_connections * (len(listeners.http) + len(listeners.streams))
    servers = sum(isinstance(upstream.target, Http) for upstream in config.upstreams)
    allowed = may_open(SPARE_FILES + clients + FILES_PER_SERVER * servers)
    if allowed < SPARE_FILES + clients:
        log.warning(
            "too few open files are allowed for all clients: raise the limit (ulimit -n) or lower "
            "limits.max_connections",
            allowed=allowed,
            needed=SPARE_FILES + clients,
        )


def may_open(needed: int) -> int:
    """Allow this process `needed` open files; how many it may open now, fewer where the system says no."""
    if sys.platform == "win32":
        return needed
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(wanted, soft), hard))
    except (OSError, ValueError):  # some systems have a lower limit than the hard one they tell
        return soft
    return max(wanted, soft)
