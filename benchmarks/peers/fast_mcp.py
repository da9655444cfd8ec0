"""FastMCP: a proxy made of its parts, `programs/fastmcp_proxy.py`; its clients speak Streamable HTTP."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.install import PIP, Environment
from benchmarks.peers.peer import Launch, Peer, Site

PROGRAM = Path(__file__).parent / "programs" / "fastmcp_proxy.py"


def start(site: Site) -> Launch:
    """Return the launch of our program in FastMCP's environment."""
    return Launch(
        [site.installed.python, "-P", "-O", str(PROGRAM), str(site.port), *site.urls],
        {"FASTMCP_LOG_LEVEL": "ERROR", "FASTMCP_CHECK_FOR_UPDATES": "off"},
    )


def exposed(server: str, uri: str) -> str:
    """Expose a URI: the server's name becomes the first segment of the path."""
    scheme, _, rest = uri.partition("://")
    return f"{scheme}://{server}/{rest}"


PEER = Peer(
    name="FastMCP",
    environment=Environment(PIP, "fastmcp", ("fastmcp==4.1.2", "uvicorn", "uvloop", "httptools")),
    settings="one shared session for each upstream; JSON answers, no sessions of its own; "
    "uvicorn with uvloop and httptools, one worker, no access log",
    start=start,
    expose=exposed,
)
