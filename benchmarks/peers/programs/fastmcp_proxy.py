"""Serves the servers whose URLs are the arguments through FastMCP, in FastMCP's own environment.

One session for each of them, shared by all clients: the quickest way that FastMCP has. This file imports no
module of the benchmark, as none is installed there. Arguments: the port, then the URLs.
"""

# mypy: disable-error-code="import-not-found"

import asyncio
import sys
from contextlib import AsyncExitStack

import uvicorn
import uvloop
from fastmcp import Client, FastMCP
from fastmcp.server import create_proxy


async def serve(port: int, urls: list[str]) -> None:
    """Serve until cancelled."""
    server = FastMCP("benchmark")
    async with AsyncExitStack() as stack:
        for number, url in enumerate(urls):
            client = await stack.enter_async_context(Client(url, mode="legacy"))
            server.mount(create_proxy(client), namespace=f"s{number}")
        app = server.http_app(path="/mcp", json_response=True, stateless_http=True)
        config = uvicorn.Config(app, port=port, log_level="error", access_log=False)
        await uvicorn.Server(config).serve()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1]), sys.argv[2:]))
