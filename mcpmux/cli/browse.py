"""`mcpmux ls` and `mcpmux read`: what servers have."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import BinaryIO

import click

from mcpmux.cli.console import (
    is_screen,
    show_activity,
    show_bytes,
    show_heading,
    show_json,
    show_table,
    show_text,
    tell,
    tell_left_out,
)
from mcpmux.cli.content import Content, decode_contents, describe_bytes
from mcpmux.cli.listing import KINDS, fill_table
from mcpmux.cli.options import quiet_option
from mcpmux.cli.running import run
from mcpmux.cli.source import load_config
from mcpmux.cli.visit import Listing, absent, ask, ignore, open_visit, walk
from mcpmux.config import Config
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.raw_json import Fields


@click.command()
@click.argument("target")
@click.argument("kinds", nargs=-1, metavar="[KINDS]...", type=click.Choice(list(KINDS)))
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line: the items as they came.")
@quiet_option
def ls(target: str, kinds: tuple[str, ...], as_json: bool) -> None:
    """List what servers have.

    KINDS are any of resources, templates, tools and prompts; without them all four are listed. TARGET is
    the URL of an MCP server, the command line that starts one in quotes, or a configuration file. All
    pages are fetched; servers that are missing are named on stderr.

    \b
    Examples:
      mcpmux ls http://127.0.0.1:8484/mcp
      mcpmux ls mcpmux.toml tools prompts
      mcpmux ls "uvx mcp-server-time" --json | jq .name
    """
    kinds = kinds or tuple(KINDS)
    listings = run(fetch_listings, load_config(target), kinds)
    for kind, listing in listings.items():
        if as_json:
            show_items(listing)
        elif listing.items:
            show_listing(kind, listing, with_heading=len(kinds) > 1)
    if not any(listing.items for listing in listings.values()):
        tell(f"there are no {' or '.join(kinds)}")
    tell_left_out({name: why for listing in listings.values() for name, why in listing.left_out.items()})


async def fetch_listings(config: Config, kinds: Sequence[str]) -> dict[str, Listing]:
    """The lists of these kinds; of what nobody offers an empty one."""
    async with show_activity("listing"), open_visit(config) as mux:
        capabilities, _ = await mux.router.introduce()
        listings = {kind: Listing([], absent(mux)) for kind in kinds}
        for kind in kinds:
            method = KINDS[kind].method
            if m.LISTS[method].capability in capabilities:
                listings[kind] = await walk(mux, method)
        return listings


def show_items(listing: Listing) -> None:
    """The items for machines."""
    for item in listing.items:
        show_json(raw(item))


def show_listing(name: str, listing: Listing, *, with_heading: bool) -> None:
    """The items for people; a heading tells one kind from the others."""
    kind = KINDS[name]
    if with_heading:
        show_heading(f"{kind.heading} ({len(listing.items)})")
    show_table(fill_table(kind, listing.items))
    if with_heading:
        click.echo()


@click.command()
@click.argument("target")
@click.argument("uri")
@click.option("-o", "--output", type=click.File("wb", lazy=True), help="Write it to this file.")
@click.option("--json", "as_json", is_flag=True, help="The whole result as JSON.")
@quiet_option
def read(target: str, uri: str, output: BinaryIO | None, as_json: bool) -> None:
    """Read a resource.

    Text and bytes go to a pipe or a file as they are, several contents one after the other. On a terminal
    control characters are made visible, and images and the like are only named.

    \b
    Examples:
      mcpmux read http://127.0.0.1:8484/mcp 'notes+note:///welcome'
      mcpmux read mcpmux.toml 'library+book:///cover' -o cover.png
      mcpmux read mcpmux.toml 'library+book:///all' --json | jq '.contents[].uri'
    """
    result = run(fetch_resource, load_config(target), target, uri)
    if as_json:
        show_json(raw(result))
        return
    contents = decode_contents(result)
    data = b"".join(content.as_bytes for content in contents)
    if output is not None:
        output.write(data)
    elif is_screen():
        show_contents(contents)
    else:
        show_bytes(data)


async def fetch_resource(config: Config, target: str, uri: str) -> Fields:
    """The result of reading `uri`. Raises RpcError and McpmuxError."""
    hint = f"`mcpmux ls {shlex.quote(target)} resources templates` shows what there is"
    async with show_activity(f"reading {uri}"), open_visit(config) as mux:
        return await ask(mux, Call(m.RESOURCES_READ, {"uri": raw(uri)}, {}), ignore, hint)


def show_contents(contents: Sequence[Content]) -> None:
    """The contents on a terminal."""
    for content in contents:
        if len(contents) > 1:
            show_heading(f"{content.uri}  {content.mime_type}".rstrip())
        if isinstance(content.data, str):
            show_text(content.data)
        else:
            show_text(f"{describe_bytes(content.data, content.mime_type)}; -o FILE writes it to a file")
