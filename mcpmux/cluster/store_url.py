"""Where a store is, as its URL says it.

    redis://HOST:PORT/DB                            one server
    redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB what these Sentinels call the primary of SERVICE
    redis+cluster://HOST:PORT,HOST:PORT             a Redis Cluster, some nodes of which are there

With `rediss` instead of `redis` all connections are secured by TLS. Unless it is given, the port is 6379,
that of a Sentinel 26379, and the database is 0. `USER:PASSWORD@` before the hosts is for the servers that are
named; in a URL of Sentinels that is for them, and not for what they name.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple
from urllib.parse import unquote

from mcpmux.config import Secret
from mcpmux.errors import ConfigError

REDIS_PORT: Final = 6379
SENTINEL_PORT: Final = 26379

_URL = re.compile(r"(rediss?)(\+sentinel|\+cluster)?://(?:([^@/]*)@)?([^@/]+)((?:/[^/]*)*)")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?")


class Topology(Enum):
    ONE = None
    SENTINEL = "+sentinel"
    CLUSTER = "+cluster"


class StoreAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class StoreUrl(NamedTuple):
    """`service` is "" unless `topology` is SENTINEL; `username` and `password` are None if not given."""

    topology: Topology
    secure: bool
    places: tuple[StoreAddress, ...]
    service: str
    database: int
    username: str | None
    password: Secret | None

    def __str__(self) -> str:
        """Return the places for people, without user and password."""
        return ", ".join(map(str, self.places))


def parse_store_url(url: Secret) -> StoreUrl:
    """Raises ConfigError, which does not tell the URL."""
    match = _URL.fullmatch(url.reveal())
    if match is None:
        raise _unfit("it is no URL of Redis")
    scheme, kind, user, hosts, path = match.groups()
    topology = Topology(kind)
    parts = [unquote(part) for part in path.split("/") if part]
    service = parts.pop(0) if topology is Topology.SENTINEL and parts else ""
    if topology is Topology.SENTINEL and not service:
        raise _unfit("a URL of Sentinels needs the name of the service: …/SERVICE")
    default = SENTINEL_PORT if topology is Topology.SENTINEL else REDIS_PORT
    places = tuple(_parse_place(host, default) for host in hosts.split(","))
    if topology is Topology.ONE and len(places) > 1:
        raise _unfit("redis:// names one server; several need redis+sentinel:// or redis+cluster://")
    username, password = _parse_user(user)
    return StoreUrl(
        topology, scheme == "rediss", places, service, _parse_database(parts, topology), username, password
    )


def _parse_place(text: str, port: int) -> StoreAddress:
    match = _HOST.fullmatch(text)
    if match is None or not 0 < int(match[2] or port) < 65536:
        raise _unfit("after :// it needs HOST:PORT")
    return StoreAddress(match[1].strip("[]"), int(match[2] or port))


def _parse_user(text: str | None) -> tuple[str | None, Secret | None]:
    username, colon, password = (text or "").partition(":")
    return unquote(username) or None, Secret(unquote(password)) if colon else None


def _parse_database(parts: list[str], topology: Topology) -> int:
    if not parts:
        return 0
    if len(parts) > 1 or not parts[0].isdecimal():
        raise _unfit("the database at its end is a number")
    if topology is Topology.CLUSTER and int(parts[0]) != 0:
        raise _unfit("a Redis Cluster has database 0 only")
    return int(parts[0])


def _unfit(problem: str) -> ConfigError:
    return ConfigError([f"cluster.url: {problem}"])
