"""Peers in Node: mcp-hub and 1mcp, which aggregate, and the bridges supergateway and mcp-proxy.

mcp-hub's clients speak HTTP+SSE, and resources keep their URIs in its answers. supergateway starts the stdio
server anew for every session; stateless, it would for every request.
"""

from __future__ import annotations

import shlex
import time
from functools import partial

import msgspec

from benchmarks.naming import name_of
from benchmarks.peers.install import NPM, Environment
from benchmarks.peers.peer import Launch, Peer, Shape, Site
from benchmarks.process import PROJECT

NODE = "node@24"
SESSIONS = (Shape(64, 1), Shape(64, 4), Shape(8, 1), Shape(8, 4))


def _launch(site: Site, program: str, *options: str, **more: str) -> Launch:
    """Return the launch of a program below `node_modules`."""
    command = [site.installed.node, str(site.installed.modules / program), *options]
    return Launch(command, {"NODE_ENV": "production", **more}, PROJECT if site.command else None)


def _write_servers(site: Site, **more: str) -> str:
    servers = {name_of(number): {**more, "url": url} for number, url in enumerate(site.urls)}
    return site.write("servers.json", msgspec.json.encode({"mcpServers": servers}).decode())


def start_hub(site: Site) -> Launch:
    """Write a configuration with the servers, and a fresh catalogue, as it would fetch one otherwise."""
    now = int(time.time() * 1000)
    catalogue = {"registry": {"servers": [{}]}, "lastFetchedAt": now, "serverDocumentation": {}}
    site.write("data/mcp-hub/cache/registry.json", msgspec.json.encode(catalogue).decode())
    folders = {f"XDG_{name.upper()}_HOME": str(site.folder / name) for name in ("data", "state")}
    options = (f"--port={site.port}", f"--config={_write_servers(site)}")
    return _launch(site, "mcp-hub/dist/cli.js", *options, **folders)


def start_one(site: Site) -> Launch:
    """Write a configuration with the servers, and return the launch."""
    options = ("serve", f"--config={_write_servers(site, type='http')}", f"--port={site.port}")
    settings = {"ONE_MCP_LOG_LEVEL": "error", "ONE_MCP_HOST": "127.0.0.1"}
    return _launch(site, "@1mcp/agent/build/index.js", *options, **settings)


def start_supergateway(site: Site) -> Launch:
    """Return the launch, in which the server's command line is one argument."""
    options = ("--outputTransport=streamableHttp", "--stateful", f"--port={site.port}", "--logLevel=none")
    return _launch(site, "supergateway/dist/index.js", "--stdio", shlex.join(site.command), *options)


def start_proxy(site: Site) -> Launch:
    """Return the launch with one transport and no event store."""
    options = (f"--port={site.port}", "--host=127.0.0.1", "--server=stream", "--no-eventStore", "--no-modern")
    return _launch(site, "mcp-proxy/dist/bin/mcp-proxy.mjs", *options, "--", *site.command)


MCP_HUB = Peer(
    name="mcp-hub",
    environment=Environment(NPM, "mcp-hub", ("mcp-hub@4.2.1", NODE)),
    settings="NODE_ENV=production; clients over HTTP+SSE",
    start=start_hub,
    expose=lambda server, uri: f"{server}__{uri}",
    sse=True,
)
ONE_MCP = Peer(
    name="1mcp",
    environment=Environment(NPM, "@1mcp/agent", ("@1mcp/agent", NODE)),
    settings="NODE_ENV=production, errors logged only",
    start=start_one,
    expose=lambda server, uri: f"{server}_1mcp_{uri}",
)
_bridge = partial(Peer, expose=lambda _server, uri: uri, bridge=True, shapes=SESSIONS)
SUPERGATEWAY = _bridge(
    name="supergateway",
    environment=Environment(NPM, "supergateway", ("supergateway@4.0.0", NODE)),
    settings="NODE_ENV=production; Streamable HTTP, stateful, nothing logged",
    start=start_supergateway,
)
MCP_PROXY = _bridge(
    name="mcp-proxy (npm)",
    environment=Environment(NPM, "mcp-proxy", ("mcp-proxy@6.7.19", NODE)),
    settings="NODE_ENV=production; Streamable HTTP only, no event store",
    start=start_proxy,
)
