"""`mcpmux ls`, `mcpmux read` and `mcpmux call`: a small client, which connects, asks and leaves."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, BinaryIO, NamedTuple

import attrs
import click

from mcpmux.app import Mux, open_mux
from mcpmux.cli.console import (
    KINDS,
    Content,
    ReportProgress,
    decode_contents,
    describe_bytes,
    fill_table,
    is_screen,
    render_block,
    show_activity,
    show_bytes,
    show_heading,
    show_json,
    show_table,
    show_text,
    tell,
    tell_left_out,
)
from mcpmux.cli.options import load_config, quiet_option
from mcpmux.cli.process import run
from mcpmux.config import Config
from mcpmux.errors import ConfigError, RemoteProtocolError, RpcError, TransportError
from mcpmux.mux.merge import PAGE_LIMIT
from mcpmux.protocol import method as m
from mcpmux.protocol.call import META, PROGRESS_TOKEN, Call, Event, Notify
from mcpmux.protocol.codes import INVALID_PARAMS, METHOD_NOT_FOUND
from mcpmux.protocol.envelope import decode_any, decode_list, raw, text_of
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.merger import LEFT_OUT

Json = dict[str, Any]


def parse_arguments(pairs: Sequence[str], whole: str | None) -> Json:
    """The arguments of a tool: `key=text` and `key:=JSON`, or one JSON object with all of them.

    Raises ConfigError with every mistake at once.
    """
    if whole is None:
        return _parse_pairs(pairs)
    if pairs:
        raise ConfigError(["--args: expected either --args or key=value pairs, not both"])
    try:
        value = decode_any(whole.encode(errors="replace"))
    except ValueError as error:
        raise ConfigError([f"--args: expected a JSON object: {error}"]) from None
    if not isinstance(value, dict):
        raise ConfigError(["--args: expected a JSON object"])
    return value


def _parse_pairs(pairs: Sequence[str]) -> Json:
    arguments: Json = {}
    problems: list[str] = []
    for pair in pairs:
        try:
            key, value = _parse_pair(pair)
            if key in arguments:
                raise ValueError("it is given twice")
            arguments[key] = value
        except ValueError as mistake:
            problems.append(f"argument `{pair}`: {mistake}")
    if problems:
        raise ConfigError(problems)
    return arguments


def _parse_pair(pair: str) -> tuple[str, Any]:
    """The key and its value: text after `=`, any JSON value after `:=`. Raises ValueError."""
    key, equals, text = pair.partition("=")
    is_json = key.endswith(":")
    key = key.removesuffix(":")
    if not equals or not key:
        raise ValueError("expected key=text or key:=JSON")
    if not is_json:
        return key, text
    try:
        return key, decode_any(text.encode(errors="replace"))
    except ValueError:
        raise ValueError(f"expected JSON after `:=`; for text write `{key}={text}`") from None


INPUT_REQUIRED = "input_required"


class Listing(NamedTuple):
    """Every item of a list, and the upstreams that are missing in it, with the reason."""

    items: list[Fields]
    left_out: dict[str, str]


@asynccontextmanager
async def open_visit(config: Config) -> AsyncIterator[Mux]:
    """The mux once every upstream is ready or has failed. Raises TransportError when none is ready."""
    # Access rules are for clients. Whoever has the configuration may see everything.
    async with open_mux(attrs.evolve(config, access=())) as mux:
        for upstream in mux.upstreams.values():
            await upstream.settled()
        troubles = absent(mux)
        if len(troubles) == len(mux.upstreams):
            raise TransportError("; ".join(f"{name}: {reason}" for name, reason in troubles.items()))
        yield mux


def absent(mux: Mux) -> dict[str, str]:
    """The upstreams that are not ready, with the reason."""
    return {name: up.trouble for name, up in mux.upstreams.items() if up.state != "ready"}


async def ignore(_event: Event) -> None:
    """Ignore notifications before the response."""


async def ask(mux: Mux, call: Call, notify: Notify, hint: str) -> Fields:
    """Send one request. `hint` follows the error if what it names does not exist.

    Raises RpcError, and RemoteProtocolError if the server asks the user for something first.
    """
    try:
        result = await mux.router.exchange(call, notify)
    except RpcError as error:
        if error.code != INVALID_PARAMS:
            raise
        raise RpcError(error.code, f"{error.message}; {hint}", error.data) from None
    if text_of(result.get("resultType")) == INPUT_REQUIRED:
        raise RemoteProtocolError("it asks for the user's input, which only a host app can give")
    return result


async def walk(mux: Mux, method: str) -> Listing:
    """All pages of a list, or an empty list if there is none. Raises RpcError and McpmuxError."""
    listing = Listing([], {})
    params: Fields = {}
    cursors: set[str] = set()
    while True:
        try:
            result = await mux.router.exchange(Call(method, params, {}), ignore)
        except RpcError as error:
            if error.code == METHOD_NOT_FOUND:
                return listing
            raise
        listing.items.extend(_items(method, result))
        listing.left_out.update(read_left_out(result))
        cursor = text_of(result.get("nextCursor"))
        if cursor is None:
            return listing
        if cursor in cursors or len(cursors) >= PAGE_LIMIT:
            raise RemoteProtocolError(
                f"{method} never ends: after {len(cursors)} pages there is still a next"
            )
        cursors.add(cursor)
        params = {"cursor": raw(cursor)}


def _items(method: str, result: Fields) -> list[Fields]:
    try:
        return decode_list(result[m.LISTS[method].items])
    except (KeyError, ValueError):
        raise RemoteProtocolError(f"the answer to {method} has no list in it") from None


def read_left_out(result: Fields) -> dict[str, str]:
    """The upstreams that this mux, or a mux behind it, has left out of a result, with the reason."""
    meta = decode_any(result.get(META, b"null"))
    told = meta.get(LEFT_OUT) if isinstance(meta, dict) else None
    if not isinstance(told, dict):
        return {}
    return {name: str(entry.get("reason", "")) for name, entry in told.items() if isinstance(entry, dict)}


@click.command()
@click.argument("target")
@click.argument("kinds", nargs=-1, metavar="[KINDS]...", type=click.Choice(list(KINDS)))
@click.option("--json", "as_json", is_flag=True, help="Print the items unchanged, one JSON object a line.")
@quiet_option
def ls(target: str, kinds: tuple[str, ...], as_json: bool) -> None:
    """List what servers have.

    KINDS are any of resources, templates, tools and prompts. Without KINDS all four are listed. TARGET is the
    URL of an MCP server, the command line that starts one in quotes, or a configuration file. All pages are
    fetched. Servers that are missing are named on stderr.

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
            for item in listing.items:
                show_json(raw(item))
        elif listing.items:
            show_listing(kind, listing, with_heading=len(kinds) > 1)
    if not any(listing.items for listing in listings.values()):
        tell(f"there are no {' or '.join(kinds)}")
    tell_left_out({name: why for listing in listings.values() for name, why in listing.left_out.items()})


async def fetch_listings(config: Config, kinds: Sequence[str]) -> dict[str, Listing]:
    """The lists of these kinds. A list that no server offers is empty."""
    async with show_activity("listing"), open_visit(config) as mux:
        capabilities, _ = await mux.router.introduce()
        listings = {kind: Listing([], absent(mux)) for kind in kinds}
        for kind in kinds:
            method = KINDS[kind].method
            if m.LISTS[method].capability in capabilities:
                listings[kind] = await walk(mux, method)
        return listings


def show_listing(name: str, listing: Listing, *, with_heading: bool) -> None:
    """Print the items for people, with a heading if there are several kinds."""
    kind = KINDS[name]
    if with_heading:
        show_heading(f"{kind.heading} ({len(listing.items)})")
    show_table(fill_table(kind, listing.items))
    if with_heading:
        click.echo()


@click.command()
@click.argument("target")
@click.argument("uri")
@click.option("-o", "--output", type=click.File("wb", lazy=True), help="Write the contents to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
@quiet_option
def read(target: str, uri: str, output: BinaryIO | None, as_json: bool) -> None:
    """Read a resource.

    Text and bytes go to a pipe or a file unchanged, several contents one after the other. On a terminal
    control characters are made visible, and images and other bytes are only named.

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
    """The result of `resources/read` for `uri`. Raises RpcError and McpmuxError."""
    hint = f"`mcpmux ls {shlex.quote(target)} resources templates` shows what there is"
    async with show_activity(f"reading {uri}"), open_visit(config) as mux:
        return await ask(mux, Call(m.RESOURCES_READ, {"uri": raw(uri)}, {}), ignore, hint)


def show_contents(contents: Sequence[Content]) -> None:
    """Print contents on a terminal."""
    for content in contents:
        if len(contents) > 1:
            show_heading(f"{content.uri}  {content.mime_type}".rstrip())
        if isinstance(content.data, str):
            show_text(content.data)
        else:
            show_text(f"{describe_bytes(content.data, content.mime_type)}; -o FILE writes it to a file")


@click.command()
@click.argument("target")
@click.argument("tool")
@click.argument("pairs", nargs=-1, metavar="[KEY=TEXT | KEY:=JSON]...")
@click.option("--args", "whole", metavar="JSON", help="Give all arguments as one JSON object.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the whole result as JSON, with structured content."
)
@quiet_option
def call(target: str, tool: str, pairs: tuple[str, ...], whole: str | None, as_json: bool) -> None:
    """Call a tool and print its result.

    TARGET is the URL of an MCP server, the command line that starts one in quotes, or a configuration file.
    Arguments are text after =, or any JSON value after :=. The exit code is 1 if the tool fails.

    \b
    Examples:
      mcpmux call http://127.0.0.1:8484/mcp clock__now zone=Europe/Paris
      mcpmux call http://127.0.0.1:8484/mcp library__build_index seconds:=3
      mcpmux call "uvx mcp-server-time" get_current_time --args '{"timezone": "UTC"}' --json
    """
    arguments = parse_arguments(pairs, whole)
    result = run(fetch_answer, load_config(target), target, tool, arguments)
    failed = decode_any(result.get("isError", b"false")) is True
    if as_json:
        show_json(raw(result))
    else:
        show_blocks(result)
    if failed:
        raise click.ClickException(f"the tool `{tool}` says that it failed")


async def fetch_answer(config: Config, target: str, tool: str, arguments: Json) -> Fields:
    """The result of `tools/call`. Raises RpcError and McpmuxError."""
    request = Call(
        m.TOOLS_CALL, {"name": raw(tool), "arguments": raw(arguments)}, {PROGRESS_TOKEN: raw("progress")}
    )
    hint = f"`mcpmux ls {shlex.quote(target)} tools` shows what there is"
    async with show_activity(f"calling {tool}") as report, open_visit(config) as mux:
        return await ask(mux, request, make_notify(report), hint)


def make_notify(report: ReportProgress) -> Notify:
    """A receiver of the notifications of a call. It reports progress."""

    async def notify(event: Event) -> None:
        if event.method == m.PROGRESS:
            progress, total = (_number(event.params, key) for key in ("progress", "total"))
            report(progress or 0, total, text_of(event.params.get("message")) or "")

    return notify


def _number(params: Fields, key: str) -> float | None:
    value = decode_any(params.get(key, b"null"))
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def show_blocks(result: Fields) -> None:
    """Print every content block, each on a new line."""
    blocks = decode_any(result.get("content", b"null"))
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise RemoteProtocolError("the answer to tools/call has no content in it")
    for block in blocks:
        show_text(render_block(block).removesuffix("\n") + "\n")
