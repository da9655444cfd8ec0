"""The settings that several replicas of mcpmux share: a store, and a port for each other. Settings only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from attrs import field, frozen

from mcpmux.config.expansion import Secret
from mcpmux.config.listener import ClientTls, Password, Port, ServerTls, TcpAddress
from mcpmux.config.report import InvalidValue
from mcpmux.config.scalars import HTTP_URL, NAME_PATTERN, Filled, Seconds, Text
from mcpmux.errors import Problem

_HOSTS = r"[^\s\x00-\x1f/?#,]+(?:,[^\s\x00-\x1f/?#,]+)*"
STORE_URL = Text(
    "redis://HOST:PORT, rediss://HOST:PORT, redis+sentinel://HOST:PORT,…/SERVICE, or redis+cluster://HOST:PORT,…",
    rf"rediss?(?:\+sentinel|\+cluster)?://{_HOSTS}(?:/[^\s\x00-\x1f?#]*)?",
    Secret,
)
REPLICA_NAME = Text('a name (a letter, then up to 31 of a-z, 0-9, "." and "-")', NAME_PATTERN)
KEY_PREFIX = Text('letters, digits, "_", "." and "-"', r"[A-Za-z0-9_.-]+")


@frozen(kw_only=True)
class ReplicaListener(TcpAddress):
    """The port at which replicas hand requests to each other. Never for clients."""

    port: Port = 0
    """TCP port. With 0 the system chooses a free one."""
    url: Annotated[str, HTTP_URL] | None = None
    """Where the other replicas reach it. Default: `host` and `port`."""
    tls: ServerTls | None = None
    """Serve https with this certificate. With `client_ca` the other replicas have to show one, too."""

    def __attrs_post_init__(self) -> None:
        if self.url is None and self.host in ("0.0.0.0", "::"):
            raise InvalidValue(f"`host` {self.host} does not say where others reach it; set `url` too")


@frozen(kw_only=True)
class Cluster:
    """Replicas that serve the same clients. Each has this section, and the same `merging.cursor_key`."""

    url: Annotated[Secret, STORE_URL] | None = None
    """Where Redis or Valkey is. Default: this mcpmux is alone."""
    username: Filled | None = None
    """User name for it."""
    password: Password | None = None
    """Password for it. It is best taken from an environment variable."""
    tls: ClientTls = field(factory=ClientTls)
    """How to verify the server of a rediss URL, and what to show it."""
    prefix: Annotated[str, KEY_PREFIX] = "mcpmux"
    """What all keys there begin with. Replicas with the same prefix are one cluster."""
    replica: Annotated[str, REPLICA_NAME] | None = None
    """The name of this replica in logs and in `mcpmux ctl status --cluster`. Default: one that is made up.
    With an audit log it has to be set, as the log goes on under that name at the next start.
    """
    timeout: Seconds = 1.0
    """Time for an answer of the store. A request that needs one and gets none is refused as busy."""
    lease: Seconds = 3.0
    """A replica that the store has not heard of for so long is gone, and others take over its sessions."""
    listener: ReplicaListener = field(factory=ReplicaListener)
    """The port at which replicas hand requests to each other."""
    peers: ClientTls = field(factory=ClientTls)
    """How to verify the ports of other replicas, and what to show them."""


def find_lacking(cluster: Cluster, cursor_key: Secret | None, *, has_audit: bool) -> Iterator[Problem]:
    """Yield every mistake in [cluster] that only appears beside the other settings."""
    if cluster.url is None:
        return
    if cursor_key is None:
        text = "all replicas need the same `cursor_key` in [merging]; set it to random text"
        yield Problem(("cluster",), text)
    if has_audit and cluster.replica is None:
        text = "`replica` names the audit log of each replica, which it continues; set it, too"
        yield Problem(("cluster",), text)
