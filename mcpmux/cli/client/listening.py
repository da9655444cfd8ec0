"""`mcpmux subscribe` and `ping`: changes that servers notify of, and signs of life."""

from __future__ import annotations

from contextlib import nullcontext

import attrs
import click
import trio

from mcpmux import library
from mcpmux.channels.channel import ignore_event
from mcpmux.cli import console
from mcpmux.cli.client.visit import open_visit
from mcpmux.cli.options import (
    Credentials,
    credentials_options,
    json_option,
    load_target,
    quiet_option,
    target_argument,
)
from mcpmux.cli.process import run, until_interrupted
from mcpmux.config import Config
from mcpmux.config.traffic import Audit, Capture, Tracing
from mcpmux.errors import RpcError
from mcpmux.format import time_text
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.revisions import is_modern
from mcpmux.upstreams.upstream import Upstream

LISTS = ("tools", "prompts", "resources")


@click.command()
@target_argument
@click.argument("uris", nargs=-1, metavar="[URI]...")
@click.option("--once", is_flag=True, help="End after the first change.")
@credentials_options
@json_option(help="Print each notification as JSON, one on each line.")
@quiet_option
def subscribe(
    target: str, uris: tuple[str, ...], once: bool, credentials: Credentials, as_json: bool
) -> None:
    """Print changes of resources, and of the lists of tools, prompts and resources, until Ctrl-C.

    \b
    Examples:
      mcpmux subscribe http://127.0.0.1:8484/mcp
      mcpmux subscribe https://mux.example.com/mcp 'docs+file:///a.md' --json
    """
    with until_interrupted() if not once else nullcontext():
        run(listen, load_target(target, credentials), uris, once, as_json)


async def listen(config: Config, uris: tuple[str, ...], once: bool, as_json: bool) -> None:
    """Print changes until cancelled, or until the first one. Raises McpmuxError."""
    # A reader of the configuration may see everything, and this is no traffic to be recorded.
    quiet = attrs.evolve(config, access=(), capture=Capture(), audit=Audit(), tracing=Tracing())
    async with (
        library.open_mux(quiet) as mux,
        mux.client() as client,
        client.listen(uris, LISTS) as notifications,
    ):
        granted = notifications.honoured.get("resourceSubscriptions", [])
        for uri in uris:
            if uri not in granted:
                console.tell(f"no updates of {uri}: its server does not offer them")
        console.tell("waiting for changes; Ctrl-C ends")
        async for notification in notifications:
            if as_json:
                console.show_json(raw({"method": notification.method, "params": notification.params}))
            else:
                uri = notification.params.get("uri", "")
                console.show_text(
                    f"{notification.method.removeprefix('notifications/')} {uri}".rstrip() + "\n"
                )
            if once:
                return


@click.command()
@target_argument
@click.option("-c", "--count", type=click.IntRange(1), default=4, show_default=True, help="How often to ask.")
@click.option(
    "--interval",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two questions.",
)
@credentials_options
@json_option(help="Print each answer as JSON, one on each line.")
@quiet_option
def ping(target: str, count: int, interval: float, credentials: Credentials, as_json: bool) -> None:
    """Ask servers for a sign of life and print how long they took.

    Servers of 2026-07-28 are asked `server/discover`, others `ping`.

    \b
    Examples:
      mcpmux ping http://127.0.0.1:8484/mcp
      mcpmux ping mcpmux.toml -c 1
    """
    if not run(ping_all, load_target(target, credentials), count, interval, as_json):
        raise click.exceptions.Exit(1)


async def ping_all(config: Config, count: int, interval: float, as_json: bool) -> bool:
    """Ask each server `count` times. Return whether all have answered. Raises TransportError without any."""
    is_good = True
    async with open_visit(config) as mux:
        for number in range(count):
            if number:
                await trio.sleep(interval)
            for name, upstream in mux.upstreams.items():
                began, error = trio.current_time(), await _ask(upstream)
                seconds = trio.current_time() - began
                is_good = is_good and error is None
                if as_json:
                    outcome = {"ms": round(seconds * 1000, 3)} if error is None else {"error": error}
                    console.show_json(raw({"name": name, **outcome}))
                else:
                    console.show_text(f"{name}: {time_text(seconds) if error is None else error}\n")
    return is_good


async def _ask(upstream: Upstream) -> str | None:
    """Ask one server for a sign of life. Return what is wrong, None if it answers."""
    facts = upstream.facts
    method = m.DISCOVER if facts is not None and is_modern(facts.revision) else m.PING
    try:
        await upstream.exchange(Call(method, {}, {}), ignore_event)
    except RpcError as error:
        return error.in_full
    return None
