"""`mcpmux ls`, `mcpmux read` and `mcpmux call`: a small client, which connects, asks and leaves."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, BinaryIO

import attrs
import click

from mcpmux.app import Mux, open_mux
from mcpmux.cli import console
from mcpmux.cli.console import KINDS
from mcpmux.cli.options import json_option, load_config, quiet_option
from mcpmux.cli.process import run
from mcpmux.config import Config
from mcpmux.errors import ConfigError, RemoteProtocolError, RpcError, TransportError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import META, PROGRESS_TOKEN, Call, Event
from mcpmux.protocol.codes import INVALID_PARAMS, METHOD_NOT_FOUND
from mcpmux.protocol.envelope import decode_any, decode_list, raw, text_of
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.merger import LEFT_OUT, walk_pages

Json = dict[str, Any]


def parse_arguments(pairs: Sequence[str], whole: str | None) -> Json:
    """The arguments of a tool, out of pairs or one JSON object. Raises ConfigError with all mistakes."""
    if whole is not None:
        if pairs:
            raise ConfigError(["use either --args or key=value pairs, not both"])
        try:
            value = decode_any(whole.encode(errors="replace"))
        except ValueError as error:
            raise ConfigError([f"--args: expected a JSON object: {error}"]) from None
        if not isinstance(value, dict):
            raise ConfigError(["--args: expected a JSON object"])
        return value
    arguments: Json = {}
    problems: list[str] = []
    for pair in pairs:
        key, equals, text = pair.partition("=")
        is_json, key = key.endswith(":"), key.removesuffix(":")
        problem = "" if equals and key else "expected key=text or key:=JSON"
        if key in arguments:
            problem = problem or "it is given twice"
        try:
            arguments[key] = decode_any(text.encode(errors="replace")) if is_json else text
        except ValueError:
            problem = problem or f"expected JSON after `:=`; for text write `{key}={text}`"
        if problem:
            problems.append(f"argument `{pair}`: {problem}")
    if problems:
        raise ConfigError(problems)
    return arguments


INPUT_REQUIRED = "input_required"


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
    return {name: up.trouble for name, up in mux.upstreams.items() if up.state != "ready"}


async def ask(config: Config, call: Call, activity: str, hint: str) -> Fields:
    """Send one request and show its progress. `hint` follows the error if what it names does not exist.

    Raises RpcError, and RemoteProtocolError if the server asks the user for something first.
    """
    async with console.show_activity(activity) as report, open_visit(config) as mux:

        async def notify(event: Event) -> None:
            if event.method == m.PROGRESS:
                progress, total = (_number(event.params, key) for key in ("progress", "total"))
                report(progress or 0, total, text_of(event.params.get("message")) or "")

        try:
            result = await mux.router.exchange(call, notify)
        except RpcError as error:
            if error.code != INVALID_PARAMS:
                raise
            raise RpcError(error.code, f"{error.message}; {hint}", error.data) from None
    if text_of(result.get("resultType")) == INPUT_REQUIRED:
        raise RemoteProtocolError("the server asks for the user's input, which only a host app can give")
    return result


def _number(params: Fields, key: str) -> float | None:
    value = decode_any(params.get(key, b"null"))
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


async def walk(mux: Mux, method: str, left_out: dict[str, str]) -> list[Fields]:
    """Every item of a list, if there is one. Missing upstreams go to `left_out`. Raises McpmuxError."""
    items: list[Fields] = []

    def take(_call: Call, result: Fields) -> None:
        try:
            items.extend(decode_list(result[m.LISTS[method].items]))
        except (KeyError, ValueError):
            raise RemoteProtocolError(f"the answer to {method} has no list in it") from None
        left_out.update(read_left_out(result))

    try:
        await walk_pages(Call(method, {}, {}), mux.router.exchange, take)
    except RpcError as error:
        if error.code != METHOD_NOT_FOUND:
            raise
    return items


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
@json_option(help="Print the unchanged items, one JSON object per line.")
@quiet_option
def ls(target: str, kinds: tuple[str, ...], as_json: bool) -> None:
    """List the resources, templates, tools and prompts of servers.

    Without KINDS all four are listed. TARGET is the URL of an MCP server, the command line that starts one in
    quotes, or a configuration file. All pages are fetched. Servers that are missing are named on stderr.

    \b
    Examples:
      mcpmux ls http://127.0.0.1:8484/mcp
      mcpmux ls mcpmux.toml tools prompts
      mcpmux ls "uvx mcp-server-time" --json | jq .name
    """
    kinds = kinds or tuple(KINDS)
    lists, left_out = run(fetch_lists, load_config(target), kinds)
    for kind, items in lists.items():
        if not items:
            continue
        is_titled = len(kinds) > 1 and not as_json
        if is_titled:
            console.show_line(f"{KINDS[kind].heading} ({len(items)})")
        console.show_items(items, as_json, KINDS[kind].columns)
        if is_titled:
            click.echo()
    if not any(lists.values()):
        console.tell(f"no {' or '.join(kinds)} found")
    for name, reason in left_out.items():
        console.tell(f"left out: {name}: {reason}")


async def fetch_lists(config: Config, kinds: Sequence[str]) -> tuple[dict[str, list[Fields]], dict[str, str]]:
    """The items of each kind, and the upstreams that are missing in any list, with the reason."""
    async with console.show_activity("listing"), open_visit(config) as mux:
        capabilities, _ = await mux.router.introduce()
        lists: dict[str, list[Fields]] = {kind: [] for kind in kinds}
        left_out = absent(mux)
        for kind in kinds:
            method = KINDS[kind].method
            if m.LISTS[method].capability in capabilities:
                lists[kind] = await walk(mux, method, left_out)
        return lists, left_out


@click.command()
@click.argument("target")
@click.argument("uri")
@click.option("-o", "--output", type=click.File("wb", lazy=True), help="Write the contents to this file.")
@json_option(help="Print the whole result as JSON.")
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
    request = Call(m.RESOURCES_READ, {"uri": raw(uri)}, {})
    hint = f"`mcpmux ls {shlex.quote(target)} resources templates` shows what there is"
    result = run(ask, load_config(target), request, f"reading {uri}", hint)
    if as_json:
        console.show_json(raw(result))
        return
    contents = console.decode_contents(result)
    data = b"".join(content.as_bytes for content in contents)
    if output is not None:
        output.write(data)
    elif not console.is_screen():
        console.show_bytes(data)
    else:
        for content in contents:
            if len(contents) > 1:
                console.show_line(f"{content.uri}  {content.mime_type}".rstrip())
            hint = "" if isinstance(content.data, str) else "; -o FILE writes it to a file"
            console.show_text(content.as_text + hint)


@click.command()
@click.argument("target")
@click.argument("tool")
@click.argument("pairs", nargs=-1, metavar="[KEY=TEXT | KEY:=JSON]...")
@click.option("--args", "whole", metavar="JSON", help="Give all arguments as one JSON object.")
@json_option(help="Print the whole result as JSON, with structured content.")
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
    params = {"name": raw(tool), "arguments": raw(parse_arguments(pairs, whole))}
    request = Call(m.TOOLS_CALL, params, {PROGRESS_TOKEN: raw("progress")})
    hint = f"`mcpmux ls {shlex.quote(target)} tools` shows what there is"
    result = run(ask, load_config(target), request, f"calling {tool}", hint)
    if as_json:
        console.show_json(raw(result))
    else:
        blocks = decode_any(result.get("content", b"null"))
        if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
            raise RemoteProtocolError("the answer to tools/call has no content in it")
        for block in blocks:
            console.show_text(console.render_block(block).removesuffix("\n") + "\n")
    if decode_any(result.get("isError", b"false")) is True:
        raise click.ClickException(f"the tool `{tool}` reported an error")
