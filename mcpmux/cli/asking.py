"""`mcpmux prompt`, `complete`, `subscribe` and `ping`: the requests beside `ls`, `read` and `call`."""

from __future__ import annotations

import shlex
from contextlib import nullcontext, suppress
from typing import Any

import attrs
import click
import trio

from mcpmux import library
from mcpmux.channels.channel import ignore_event
from mcpmux.cli import console
from mcpmux.cli.arguments import Arguments, parse_arguments
from mcpmux.cli.client import open_client, open_visit, render_block, target_argument
from mcpmux.cli.completion import complete_argument, complete_prompt
from mcpmux.cli.options import Credentials, credentials_options, json_option, load_target, quiet_option
from mcpmux.cli.process import Mistake, run, until_interrupted
from mcpmux.config import Config
from mcpmux.config.traffic import Audit, Capture, Tracing
from mcpmux.errors import RemoteProtocolError, RpcError
from mcpmux.format import time_text
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import decode_any, decode_list, raw, text_of
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import is_modern
from mcpmux.upstreams.upstream import Upstream


@click.command()
@target_argument
@click.argument("name", shell_complete=complete_prompt)
@click.argument("pairs", nargs=-1, metavar="[KEY=TEXT]...", shell_complete=complete_argument)
@credentials_options
@json_option(help="Print the whole result as JSON.")
@quiet_option
def prompt(target: str, name: str, pairs: tuple[str, ...], credentials: Credentials, as_json: bool) -> None:
    """Get a prompt and print its messages.

    TARGET is the URL of an MCP server, the command line that starts one in quotes, or a configuration file.

    \b
    Examples:
      mcpmux prompt http://127.0.0.1:8484/mcp notes__summarize note=welcome
      mcpmux ls http://127.0.0.1:8484/mcp prompts
    """
    hint = f"`mcpmux ls {shlex.quote(target)} prompts` shows what there is"
    result = run(get_prompt, load_target(target, credentials), name, parse_arguments(pairs, None), hint)
    if as_json:
        console.show_json(raw(result))
        return
    try:
        messages = [
            (text_of(item.get("role")), decode_any(item["content"]))
            for item in decode_list(result["messages"])
        ]
    except (KeyError, ValueError):
        raise RemoteProtocolError("the answer to prompts/get has no messages in it") from None
    for role, content in messages:
        console.show_line(role or "?")
        console.show_text(
            render_block(content if isinstance(content, dict) else {}).removesuffix("\n") + "\n"
        )


async def get_prompt(config: Config, name: str, arguments: Arguments, hint: str) -> Fields:
    """Return the result of `prompts/get`. Raises ConfigError for wrong arguments, and McpmuxError."""
    async with open_client(config, f"getting {name}") as client:
        item = await client.find(m.PROMPTS_LIST, name)
        values = arguments.unread if item is None else arguments.read_by(_schema_of(item))
        params = {"name": raw(name), **({"arguments": raw(values)} if values else {})}
        return await client.exchange(m.PROMPTS_GET, params, hint)


def _schema_of(item: Fields) -> dict[str, Any]:
    """Return the arguments of a prompt in the form of a tool's schema."""
    entries = []
    with suppress(ValueError):
        entries = [entry for entry in decode_any(item.get("arguments", b"[]")) if isinstance(entry, dict)]
    properties = {str(entry.get("name")): {"type": "string"} for entry in entries}
    required = [str(entry.get("name")) for entry in entries if entry.get("required") is True]
    return {"properties": properties, "required": required, "additionalProperties": False}


@click.command()
@target_argument
@click.argument("what", metavar="PROMPT|TEMPLATE")
@click.argument("argument", metavar="NAME=BEGINNING")
@click.argument("pairs", nargs=-1, metavar="[KEY=TEXT]...")
@credentials_options
@json_option(help="Print the whole result as JSON.")
@quiet_option
def complete(
    target: str, what: str, argument: str, pairs: tuple[str, ...], credentials: Credentials, as_json: bool
) -> None:
    """Print the values that a server suggests for an argument of a prompt or a variable of a URI template.

    KEY=TEXT are the arguments that have their values already.

    \b
    Examples:
      mcpmux complete http://127.0.0.1:8484/mcp notes__summarize note=we
      mcpmux complete http://127.0.0.1:8484/mcp 'notes+note:///{name}' name=we
    """
    name, equals, beginning = argument.partition("=")
    if not equals or not name:
        raise Mistake(f"expected NAME=BEGINNING, such as name=we, got {argument!r}")
    is_template = "{" in what or "://" in what
    ref = {"type": "ref/resource", "uri": what} if is_template else {"type": "ref/prompt", "name": what}
    params = {"ref": raw(ref), "argument": raw({"name": name, "value": beginning})}
    if pairs:
        params["context"] = raw({"arguments": parse_arguments(pairs, None).unread})
    hint = (
        f"`mcpmux ls {shlex.quote(target)} {'templates' if is_template else 'prompts'}` shows what there is"
    )
    result = run(get_completion, load_target(target, credentials), params, hint)
    if as_json:
        console.show_json(raw(result))
        return
    completion = decode_any(result.get("completion", b"null"))
    values = completion.get("values") if isinstance(completion, dict) else None
    if not isinstance(values, list):
        raise RemoteProtocolError("the answer to completion/complete has no values in it")
    for value in values:
        console.show_text(f"{value}\n")
    if completion.get("hasMore") is True:
        console.tell(
            f"there are more, {completion['total']} in all" if "total" in completion else "there are more"
        )


async def get_completion(config: Config, params: Fields, hint: str) -> Fields:
    """Return the result of `completion/complete`. Raises McpmuxError."""
    async with open_client(config, "completing") as client:
        return await client.exchange(m.COMPLETE, params, hint)


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
      mcpmux subscribe http://127.0.0.1:8484/mcp 'notes+note:///welcome'
      mcpmux subscribe http://127.0.0.1:8484/mcp --json
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
