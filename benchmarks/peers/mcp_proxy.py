"""mcp-proxy (the npm package): bridges one stdio server to Streamable HTTP, in Node."""

from __future__ import annotations

from benchmarks.peers.install import NPM, Environment
from benchmarks.peers.peer import Launch, Peer, Shape, Site
from benchmarks.process import PROJECT


def start(site: Site) -> Launch:
    """Return how it starts, with one transport and no event store."""
    program = str(site.installed.modules / "mcp-proxy" / "dist" / "bin" / "mcp-proxy.mjs")
    options = [f"--port={site.port}", "--host=127.0.0.1", "--server=stream", "--no-eventStore", "--no-modern"]
    command = [site.installed.node, program, *options, "--", *site.command]
    return Launch(command, {"NODE_ENV": "production"}, PROJECT)


PEER = Peer(
    name="mcp-proxy (npm)",
    environment=Environment(NPM, "mcp-proxy", ("mcp-proxy@6.7.19", "node@24")),
    settings="NODE_ENV=production; Streamable HTTP only, no event store",
    start=start,
    path="/mcp",
    expose=lambda _server, uri: uri,
    bridge=True,
    shapes=(Shape(64, 1), Shape(64, 4), Shape(8, 1), Shape(8, 4)),
)
