"""mcp-hub: aggregates in Node; its clients speak HTTP+SSE. Resources keep their URIs in answers."""

from __future__ import annotations

import time

import msgspec

from benchmarks.naming import name_of
from benchmarks.peers.install import NPM, Environment
from benchmarks.peers.peer import Launch, Peer, Site


def start(site: Site) -> Launch:
    """Write a configuration with the servers, and a fresh catalogue, as it would fetch one otherwise."""
    servers = {name_of(number): {"url": url} for number, url in enumerate(site.urls)}
    config = site.write("servers.json", msgspec.json.encode({"mcpServers": servers}).decode())
    now = int(time.time() * 1000)
    catalogue = {"registry": {"servers": [{}]}, "lastFetchedAt": now, "serverDocumentation": {}}
    site.write("data/mcp-hub/cache/registry.json", msgspec.json.encode(catalogue).decode())
    program = str(site.installed.modules / "mcp-hub" / "dist" / "cli.js")
    return Launch(
        [site.installed.node, program, f"--port={site.port}", f"--config={config}"],
        {
            "NODE_ENV": "production",
            "XDG_DATA_HOME": str(site.folder / "data"),
            "XDG_STATE_HOME": str(site.folder / "state"),
        },
    )


PEER = Peer(
    name="mcp-hub",
    environment=Environment(NPM, "mcp-hub", ("mcp-hub@4.2.1", "node@24")),
    settings="NODE_ENV=production; clients over HTTP+SSE",
    start=start,
    path="/mcp",
    expose=lambda server, uri: f"{server}__{uri}",
    sse=True,
)
