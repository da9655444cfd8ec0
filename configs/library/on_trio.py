"""Servers of a program's own, asked from a program on trio: python configs/library/on_trio.py"""

from __future__ import annotations

import sys

import trio

from mcpmux.library import Exchanges, Notification, RpcError, open_mux

# As in a file: {"upstreams": {NAME: {"command": …, "args": […]} or {"url": …}}}. A path works, too.
DEMO = {
    name: {"command": sys.executable, "args": ["-m", f"mcpmux.demo.{name}"]} for name in ("clock", "library")
}


async def show_progress(notification: Notification) -> None:
    if notification.method == "notifications/progress":
        print("  ", notification.params["message"])


async def show(exchanges: Exchanges) -> None:
    async for exchange in exchanges:
        upstreams = ", ".join(exchange.upstreams)
        print(f"{exchange.method} {exchange.target} asked {upstreams}: {exchange.outcome}")


async def main() -> None:
    async with (
        open_mux({"upstreams": DEMO}) as mux,
        mux.observe() as exchanges,
        mux.client() as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(show, exchanges)
        tools = await client.list_all("tools/list")
        print([tool["name"] for tool in tools])

        build = {"name": "library__build_index", "arguments": {"seconds": 0.1}}
        result = await client.request("tools/call", build, show_progress)
        print(result["content"][0]["text"].splitlines()[0])

        try:
            await client.request("resources/read", {"uri": "library+book:///nowhere"})
        except RpcError as error:
            print(error.code, error.message)

        with trio.move_on_after(0.2) as scope:  # cancelled at the server, too
            await client.request("tools/call", {"name": "library__build_index", "arguments": {"seconds": 9}})
        print("given up" if scope.cancelled_caught else "done")

        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
