"""`mcpmux read`, `call`, `prompt` and `complete`: one request, and its result for people or as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import attrs
import click

from mcpmux.cli import console
from mcpmux.cli.client.arguments import Arguments, Parameters, parse_arguments, types_of
from mcpmux.cli.client.content import block_bytes, decode_content, render_block, text_in
from mcpmux.cli.client.listing import complete_argument, complete_prompt, complete_tool, complete_uri
from mcpmux.cli.client.visit import open_client
from mcpmux.cli.completion import complete_file
from mcpmux.cli.options import (
    Credentials,
    Decorator,
    credentials_options,
    json_option,
    load_target,
    quiet_option,
    target_argument,
)
from mcpmux.cli.process import Mistake, run
from mcpmux.config import Config
from mcpmux.errors import RemoteProtocolError
from mcpmux.printable import printable
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import raw, text_of, value_of
from mcpmux.protocol.raw_json import Fields

Json = dict[str, Any]

STANDARD_OUTPUT = "-"


async def ask(
    config: Config, activity: str, method: str, params: Mapping[str, Any], hint: str = ""
) -> Fields:
    """Visit the servers for one request, and return its result. `hint`: see Visit. Raises McpmuxError."""
    async with open_client(config, activity) as client:
        return await client.exchange(method, params, hint)


async def ask_by_name(
    config: Config, activity: str, methods: tuple[str, str], name: str, arguments: Arguments, hint: str
) -> Fields:
    """Return what a tool or a prompt answers to arguments, which are read as its item in the list has them.

    `methods`: of the list, and of the request. Raises ConfigError for arguments that it does not take, and
    McpmuxError.
    """
    async with open_client(config, f"{activity} {name}") as client:
        item = None if arguments.is_whole else await client.find(methods[0], name)
        values = arguments.unread if item is None else arguments.read_by(Parameters.of(item))
        params: Json = {"name": name}
        if values or methods[1] == m.TOOLS_CALL:  # a tool's schema is of an object
            params["arguments"] = values
        return await client.exchange(methods[1], params, hint)


def listed_by(target: str, *kinds: str) -> str:
    """Return the sentence that names the command for what there is."""
    return f"`mcpmux ls {shlex.quote(target)} {' '.join(kinds)}` shows what there is"


def objects_in(result: Fields, key: str, method: str) -> list[Json]:
    """Return the objects in a list of a result. Raises RemoteProtocolError if that is no such list."""
    items = value_of(result.get(key))
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise RemoteProtocolError(f"the answer to {method} has no {key} in it")
    return items


FILE_HINT = "; -o FILE writes it to a file"


def show_block(block: Json, hint: str = "") -> None:
    console.show_text(render_block(block, hint).removesuffix("\n") + "\n")


def check_place(_context: click.Context, _option: click.Parameter, output: Any) -> Any:
    """Check that there can be a file of that name, before a tool runs whose result would be lost.

    `output`: a click.File that is opened at its first use, or None. Raises Mistake.
    """
    if output is not None and output.name != STANDARD_OUTPUT:
        path = Path(output.name)
        if path.is_dir():
            raise Mistake(f"-o {printable(output.name)}: this is a folder; name a file in it")
        if not path.parent.is_dir():
            raise Mistake(f"-o {printable(output.name)}: there is no folder {printable(str(path.parent))}")
    return output


output_option: Decorator = click.option(
    "-o",
    "--output",
    type=click.File("wb", lazy=True),
    callback=check_place,
    help="Write the contents to this file.",
)


@click.command()
@target_argument
@click.argument("uri", shell_complete=complete_uri)
@output_option
@credentials_options
@json_option(help="Print the whole result as JSON.")
@quiet_option
def read(target: str, uri: str, output: BinaryIO | None, credentials: Credentials, as_json: bool) -> None:
    """Read a resource.

    Text and bytes go to a pipe or a file unchanged, several contents one after the other. On a terminal
    control characters are made visible, and images and other bytes are only named.

    \b
    Examples:
      mcpmux read http://127.0.0.1:8484/mcp 'notes+note:///welcome'
      mcpmux read mcpmux.toml 'library+book:///cover' -o cover.png
      mcpmux read mcpmux.toml 'library+book:///all' --json | jq '.contents[].uri'
    """
    hint = listed_by(target, "resources", "templates")
    params = {"uri": uri}
    result = run(ask, load_target(target, credentials), f"reading {uri}", m.RESOURCES_READ, params, hint)
    if as_json:
        console.show_json(raw(result))
        return
    contents = [decode_content(item) for item in objects_in(result, "contents", m.RESOURCES_READ)]
    data = b"".join(content.as_bytes for content in contents)
    if output is not None:
        output.write(data)
    elif not console.is_screen():
        console.show_bytes(data)
    else:
        for content in contents:
            if len(contents) > 1:
                console.show_line(f"{content.uri}  {content.mime_type}".rstrip())
            console.show_text(content.as_text(FILE_HINT))


async def find_tool(config: Config, tool: str) -> Fields | None:
    """Return the tool's item of the list; None when it is not there. Raises TransportError."""
    async with open_client(config, f"looking for {tool}") as client:
        return await client.find(m.TOOLS_LIST, tool)


def show_tool(item: Fields) -> None:
    """Print what a tool is for, and what it takes."""
    fields, needed, _ = Parameters.of(item)
    console.show_line(text_of(item.get("name")) or "")
    console.show_text(text_of(item.get("description")) or "")
    rows = []
    for name, field in fields.items():
        schema = field if isinstance(field, dict) else {}
        about = [str(schema.get("description", ""))]
        if isinstance(values := schema.get("enum"), list):
            about.append(f"one of {', '.join(map(str, values))}")
        if "default" in schema:
            about.append(f"default {bytes(raw(schema['default'])).decode()}")
        types, required = "|".join(types_of(field)) or "any", "yes" if name in needed else "no"
        rows.append((name, types, required, "; ".join(filter(None, about))))
    if rows:
        click.echo()
        console.show_table(["ARGUMENT", "TYPE", "REQUIRED", "DESCRIPTION"], rows)


def with_timeout(config: Config, seconds: float | None) -> Config:
    """Return the configuration with this time for requests."""
    if seconds is None:
        return config
    timed = [
        attrs.evolve(upstream, request_timeout=seconds, timeouts={**upstream.timeouts, m.TOOLS_CALL: seconds})
        for upstream in config.upstreams
    ]
    return attrs.evolve(config, upstreams=tuple(timed))


@click.command(context_settings={"help_option_names": []})
@click.argument("target", required=False, metavar="TARGET", shell_complete=complete_file)
@click.argument("tool", required=False, metavar="TOOL", shell_complete=complete_tool)
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE | KEY:=JSON]...", shell_complete=complete_argument)
@click.option("--args", "whole", metavar="JSON", help="Give all arguments as one JSON object, sent unread.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Time for the call, without progress. Default: `timeouts` of the configuration, or 5 minutes.",
)
@output_option
@credentials_options
@json_option(help="Print the whole result as JSON, with structured content.")
@quiet_option
@click.option(
    "-h",
    "--help",
    "wants_help",
    is_flag=True,
    help="Show this message and exit; after a TARGET and a TOOL, what that tool takes.",
)
@click.pass_context
def call(
    context: click.Context,
    target: str | None,
    tool: str | None,
    pairs: tuple[str, ...],
    whole: str | None,
    timeout: float | None,
    output: BinaryIO | None,
    credentials: Credentials,
    as_json: bool,
    wants_help: bool,
) -> None:
    """Call a tool and print its result.

    TARGET is the URL of an MCP server, the command line that starts one in quotes, or a configuration file.
    VALUE is read as the tool's schema has it, and JSON as any value. When the server asks something, you
    answer at the terminal. The exit code is 1 if the tool fails.

    \b
    Examples:
      mcpmux call http://127.0.0.1:8484/mcp clock__now zone=Europe/Paris
      mcpmux call http://127.0.0.1:8484/mcp library__build_index seconds=3
      mcpmux call http://127.0.0.1:8484/mcp library__build_index --help
      mcpmux call "uvx mcp-server-time" get_current_time --args '{"timezone": "UTC"}' --json
    """
    if wants_help and (target is None or tool is None):
        click.echo(context.get_help())
        return
    if target is None:
        raise click.UsageError("Missing argument 'TARGET'.", context)
    listed = listed_by(target, "tools")
    if tool is None:
        raise click.UsageError(f"Missing argument 'TOOL'; {listed}.", context)
    arguments = parse_arguments(pairs, whole)
    config = with_timeout(load_target(target, credentials), timeout)
    if wants_help:
        item = run(find_tool, config, tool)
        if item is None:
            raise Mistake(f"there is no tool `{printable(tool)}`; {listed}")
        show_tool(item)
        return
    methods = m.TOOLS_LIST, m.TOOLS_CALL
    result = run(ask_by_name, config, "calling", methods, tool, arguments, listed)
    if as_json:
        console.show_json(raw(result))
    else:
        blocks = objects_in(result, "content", m.TOOLS_CALL)
        if not blocks and value_of(structured := result.get("structuredContent")) is not None:
            blocks = [{"type": "text", "text": bytes(structured or b"").decode(errors="replace")}]
        if output is not None:
            output.write(b"".join(map(block_bytes, blocks)))
        for block in () if output is not None else blocks:
            show_block(block, FILE_HINT)
    if value_of(result.get("isError")) is True:
        raise click.ClickException(f"the tool `{tool}` reported an error")


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
      mcpmux prompt http://127.0.0.1:8484/mcp notes__explain name=welcome
      mcpmux ls http://127.0.0.1:8484/mcp prompts
    """
    config, arguments = load_target(target, credentials), parse_arguments(pairs, None)
    methods = m.PROMPTS_LIST, m.PROMPTS_GET
    result = run(ask_by_name, config, "getting", methods, name, arguments, listed_by(target, "prompts"))
    if as_json:
        console.show_json(raw(result))
        return
    for message in objects_in(result, "messages", m.PROMPTS_GET):
        console.show_line(text_in(message, "role") or "?")
        content = message.get("content")
        show_block(content if isinstance(content, dict) else {})


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
      mcpmux complete http://127.0.0.1:8484/mcp notes__explain name=we
      mcpmux complete http://127.0.0.1:8484/mcp 'notes+note:///{name}' name=we
    """
    name, equals, beginning = argument.partition("=")
    if not equals or not name:
        raise Mistake(f"expected NAME=BEGINNING, such as name=we, got {argument!r}")
    is_template = "{" in what or "://" in what
    ref = {"type": "ref/resource", "uri": what} if is_template else {"type": "ref/prompt", "name": what}
    params: Json = {"ref": ref, "argument": {"name": name, "value": beginning}}
    if pairs:
        params["context"] = {"arguments": parse_arguments(pairs, None).unread}
    hint = listed_by(target, "templates" if is_template else "prompts")
    result = run(ask, load_target(target, credentials), "completing", m.COMPLETE, params, hint)
    if as_json:
        console.show_json(raw(result))
        return
    completion = value_of(result.get("completion"))
    values = completion.get("values") if isinstance(completion, dict) else None
    if not isinstance(values, list):
        raise RemoteProtocolError("the answer to completion/complete has no values in it")
    for value in values:
        console.show_text(f"{value}\n")
    if completion.get("hasMore") is True:
        console.tell(
            f"there are more, {completion['total']} in all" if "total" in completion else "there are more"
        )
