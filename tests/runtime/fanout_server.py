"""mcpmux over HTTP in a separate process, in front of a scripted server; its memory can be measured.

Says its port on standard output. Each line on standard input is `URI COUNT`: so many updates of that URI
(`*`: of all URIs in turn). When they have been given to mcpmux it says `done`.
"""

from __future__ import annotations

import resource
import sys

import trio

from mcpmux.config import Limits
from mcpmux.logs import configure_logs
from tests.peers.revision import MODERN
from tests.peers.subscribable import Subscribable
from tests.runtime.http_front import start_endpoint
from tests.runtime.world import World, open_world

CLIENTS = 2000
URIS = [f"memo:{number}/{'x' * 1000}" for number in range(50)]  # long: a reader that stops is soon stuck


async def serve() -> None:
    server = Subscribable(MODERN, uris=URIS)
    async with open_world({"x": server, "y": Subscribable(MODERN)}) as world:
        port = await listen(world)
        print(port, flush=True)
        lines = trio.wrap_file(sys.stdin)
        while line := await lines.readline():
            uri, count = line.split()
            for number in range(int(count)):
                await server.update(URIS[number % len(URIS)] if uri == "*" else uri)
            print("done", flush=True)
        world.nursery.cancel_scope.cancel()


async def listen(world: World) -> int:
    """Serve `world` on a free port of the loopback."""
    sessions = Limits(max_sessions=CLIENTS, max_streams_per_client=CLIENTS)
    serving = {"limits": Limits(max_connections=CLIENTS)}
    _, port = await start_endpoint(world.nursery, world.mux.service, sessions=sessions, serving=serving)
    return port


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 2 * CLIENTS), most))
    configure_logs("error", "console")
    trio.run(serve)
