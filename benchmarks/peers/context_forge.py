"""ContextForge: aggregates in Python with a database.

It does not tell equal URIs of different upstreams apart, so a tool is called instead of a resource read. It
keeps sessions: without them it has a seventh of the rate.
"""

from __future__ import annotations

import urllib.request
from urllib.error import HTTPError

import msgspec

from benchmarks.naming import name_of
from benchmarks.peers.install import PIP, Environment, run
from benchmarks.peers.peer import LEGACY_READ, Launch, Peer, Site
from benchmarks.upstream import TOOL
from mcpmux.protocol import method as m

ADMIN = "admin@example.com"
SECRET = "only for this measurement, on loopback"  # it signs the token with which servers are added
ANSWER_SECONDS = 30
TOKEN_MINUTES = 60
ALREADY_THERE = 409

SETTINGS = {
    "MCP_REQUIRE_AUTH": "false",
    "PLATFORM_ADMIN_EMAIL": ADMIN,
    "JWT_SECRET_KEY": SECRET,
    "AUTH_ENCRYPTION_SECRET": SECRET,
    "REQUIRE_STRONG_SECRETS": "false",
    "RATE_LIMITING_ENABLED": "false",
    "SSRF_ALLOW_LOCALHOST": "true",
    "SSRF_ALLOW_PRIVATE_NETWORKS": "true",
    "USE_STATEFUL_SESSIONS": "true",  # else it connects anew for every call
    "MCPGATEWAY_SESSION_AFFINITY_ENABLED": "true",
    "CACHE_TYPE": "memory",
    "LOG_LEVEL": "ERROR",
    "OTEL_ENABLE_OBSERVABILITY": "false",
}


def start(site: Site) -> Launch:
    """Return how it starts, with a database, and without authentication or a limit of the rate."""
    options = {"host": "127.0.0.1", "port": site.port, "workers": 1, "loop": "uvloop", "http": "httptools"}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    return Launch(
        [
            *(site.installed.python, "-m", "uvicorn", "mcpgateway.main:app", *arguments),
            *("--no-access-log", "--log-level=error"),
        ],
        {**SETTINGS, "DATABASE_URL": f"sqlite:///{site.folder}/gateway.db"},
    )


def add_servers(site: Site) -> None:
    """Add the upstreams by requests. Raises CannotRun, OSError."""
    command = [site.installed.python, "-m", "mcpgateway.utils.create_jwt_token"]
    command += ["--username", ADMIN, "--exp", str(TOKEN_MINUTES), "--secret", SECRET, "--admin"]
    fields = {"Authorization": f"Bearer {run(command, SETTINGS).strip()}", "Content-Type": "application/json"}
    for number, url in enumerate(site.urls):
        server = {"name": name_of(number), "url": url, "transport": "STREAMABLEHTTP"}
        target = f"http://127.0.0.1:{site.port}/gateways"
        request = urllib.request.Request(target, msgspec.json.encode(server), fields, method="POST")
        try:
            urllib.request.urlopen(request, timeout=ANSWER_SECONDS).close()
        except HTTPError as error:
            if error.code != ALREADY_THERE:  # from an attempt of which a later server was refused
                raise


PEER = Peer(
    name="ContextForge",
    environment=Environment(
        PIP,
        "mcp-contextforge-gateway",
        ("mcp-contextforge-gateway==1.0.7.post20260921", "uvloop", "httptools"),
    ),
    settings="calls of a tool, for it does not tell equal URIs of two servers apart; sessions, so that "
    "it keeps connections; uvicorn with uvloop and httptools, one worker, no access log; SQLite, cache in "
    "memory, no authentication, no limit of the rate",
    start=start,
    path="/mcp/",
    expose=lambda server, tool: f"{server}-{tool}",
    load=LEGACY_READ._replace(method=m.TOOLS_CALL, subjects=[TOOL]),
    prepare=add_servers,
    start_seconds=240,
)
