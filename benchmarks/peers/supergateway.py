"""supergateway: bridges a stdio server to Streamable HTTP, in Node. Every session starts the server anew."""

from __future__ import annotations

import shlex

from benchmarks.peers.install import NPM, Environment
from benchmarks.peers.peer import Launch, Peer, Shape, Site
from benchmarks.process import PROJECT


def start(site: Site) -> Launch:
    """Return the launch, in which the server's command line is one argument."""
    program = str(site.installed.modules / "supergateway" / "dist" / "index.js")
    options = ["--outputTransport=streamableHttp", "--stateful", f"--port={site.port}", "--logLevel=none"]
    command = [site.installed.node, program, "--stdio", shlex.join(site.command), *options]
    return Launch(command, {"NODE_ENV": "production"}, PROJECT)


PEER = Peer(
    name="supergateway",
    environment=Environment(NPM, "supergateway", ("supergateway@4.0.0", "node@24")),
    settings="NODE_ENV=production; Streamable HTTP, stateful, nothing logged",
    start=start,
    path="/mcp",
    expose=lambda _server, uri: uri,
    bridge=True,
    shapes=(Shape(64, 1), Shape(64, 4), Shape(8, 1), Shape(8, 4)),
)
