"""1mcp: aggregates in Node; its clients speak Streamable HTTP."""

from __future__ import annotations

import msgspec

from benchmarks.naming import name_of
from benchmarks.peers.install import NPM, Environment
from benchmarks.peers.peer import Launch, Peer, Site


def start(site: Site) -> Launch:
    """Write a configuration with the servers, and return the launch."""
    servers = {name_of(number): {"type": "http", "url": url} for number, url in enumerate(site.urls)}
    config = site.write("mcp.json", msgspec.json.encode({"mcpServers": servers}).decode())
    program = str(site.installed.modules / "@1mcp" / "agent" / "build" / "index.js")
    return Launch(
        [site.installed.node, program, "serve", f"--config={config}", f"--port={site.port}"],
        {"NODE_ENV": "production", "ONE_MCP_LOG_LEVEL": "error", "ONE_MCP_HOST": "127.0.0.1"},
    )


PEER = Peer(
    name="1mcp",
    environment=Environment(NPM, "@1mcp/agent", ("@1mcp/agent", "node@24")),
    settings="NODE_ENV=production, errors logged only",
    start=start,
    path="/mcp",
    expose=lambda server, uri: f"{server}_1mcp_{uri}",
)
