"""Serves a benchmark's resources and tool with the official Python SDK, in the SDK's own environment.

It is the everyday server: the SDK's own decorators and settings, on uvicorn with uvloop and httptools. This
file imports no module of the benchmark, as none is installed there. Arguments: a port for each server.
"""

# mypy: disable-error-code="import-not-found,untyped-decorator"

import asyncio
import sys

import uvicorn
import uvloop
from mcp.server import MCPServer

TEXT = ("All work and no play makes a dull resource. " * 24)[:1024]


def make_server() -> MCPServer:
    """Return a server with 1 KB resources and a tool that answers with as much."""
    server = MCPServer("everyday", log_level="ERROR")

    @server.resource("bench:///item/{number}", mime_type="text/plain")
    def item(number: str) -> str:
        return TEXT

    @server.tool(structured_output=False)
    def report() -> str:
        return TEXT

    return server


async def serve(ports: list[int]) -> None:
    """Serve until cancelled."""
    async with asyncio.TaskGroup() as group:
        for port in ports:
            app = make_server().streamable_http_app()
            config = uvicorn.Config(app, port=port, log_level="error", access_log=False)
            group.create_task(uvicorn.Server(config).serve())


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve([int(port) for port in sys.argv[1:]]))
