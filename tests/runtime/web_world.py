"""mcpmux in front of one scripted web server on a real socket."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcpmux import app
from mcpmux.config import Config, Http, Upstream
from mcpmux.config.model import Limits
from mcpmux.protocol.call import CLIENT_CAPABILITIES, Call, Event
from mcpmux.protocol.envelope import decode_any, raw
from tests.inline import run_inline
from tests.peers.http_server import open_http
from tests.peers.revision import Json
from tests.peers.web import Script, Web


@asynccontextmanager
async def open_web(
    script: Script,
    *,
    tls: ssl.SSLContext | None = None,
    make_target: Callable[[str], Http] = Http,
    limits: Limits | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Web, app.Mux]]:
    """Open the server (https with `tls`), and mcpmux with it as its only, unprefixed upstream."""
    web = Web(script)
    async with open_http(web.handle, tls=None if tls is None else lambda: tls) as port:
        url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/mcp"
        upstream = Upstream(name="web", target=make_target(url), prefix="", **settings)
        config = Config(upstreams=(upstream,), limits=limits or Limits())
        with trio.fail_after(60):
            async with app.open_mux(config) as mux:
                yield web, mux


async def exchange(mux: app.Mux, method: str, params: Json, events: list[Event] | None = None) -> Json:
    async def notify(happened: Event) -> None:
        if events is not None:
            events.append(happened)

    meta = {"progressToken": raw("t"), CLIENT_CAPABILITIES: raw({"roots": {}})}
    call = Call(method, {key: raw(value) for key, value in params.items()}, meta)
    result = await run_inline(mux.router.exchange(call, notify))
    return {key: decode_any(value) for key, value in result.items()}
