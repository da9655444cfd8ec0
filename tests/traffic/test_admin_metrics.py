"""`/metrics` on a real admin listener."""

from __future__ import annotations

import trio

from mcpmux.app.control import Control
from mcpmux.config.expansion import Secret
from mcpmux.config.listener import Admin
from mcpmux.traffic.admin.listener import serve_admin
from mcpmux.traffic.admin.upstreams import UpstreamView
from mcpmux.traffic.telemetry.prometheus import Family, metrics_route, mux_gauges, snapshot
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin
from mcpmux.transports.tls import TlsContexts
from tests.http_request import requested
from tests.peers.server import ScriptedServer
from tests.runtime.world import open_world
from tests.traffic.admin_world import Traffic
from tests.traffic.test_metrics import Play
from tests.traffic.test_prometheus import parse

TOKEN = "a-token-of-32-characters-or-more!"


async def test_prometheus_reads_metrics_with_the_token_and_nobody_without():
    play, traffic = Play(), Traffic()
    await play.exchange("ping", {})
    async with open_world({"docs": ScriptedServer(tools=[])}) as world, trio.open_nursery() as nursery:
        await world.mux.upstreams.settled(legacy=False)
        announced: list[str] = []

        async def read() -> list[Family]:
            return snapshot(play.metrics, mux_gauges(world.mux.upstreams, world.mux.hub))

        route = metrics_route(read)
        upstreams = UpstreamView(world.mux.upstreams, world.mux.hub, traffic.view.redactor)
        admin = Admin(port=0, token=Secret(TOKEN))
        more = (announced.append, [route], Control(world.mux, None), TlsContexts())
        await nursery.start(serve_admin, admin, traffic.view, upstreams, trio.Event(), *more)
        port = int(announced[0].rstrip("/").rpartition(":")[2])
        with HttpPool(HttpOrigin(False, "127.0.0.1", port)) as pool, trio.fail_after(60):
            token = (("Authorization", f"Bearer {TOKEN}"),)
            async with requested(pool, "GET", "/metrics", token, b"", idempotent=True) as response:
                assert response.status == 200
                assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
                found = parse(await response.read())
            async with requested(pool, "GET", "/metrics", (), b"", idempotent=True) as response:
                assert response.status == 401
                assert b"mcpmux_" not in await response.read()
        assert found["mcpmux_exchanges_total"]["ping", "ok", "(none)"] == 1
        assert found["mcpmux_upstream_up"] == {("docs",): 1}
        nursery.cancel_scope.cancel()
