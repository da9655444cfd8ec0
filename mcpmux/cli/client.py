"""`mcpmux ls`, `read` and `call`: a small client, which connects, asks and leaves."""

from __future__ import annotations

import base64
import binascii
import re
import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import chain
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit

import attrs
import click

from mcpmux.app import Mux, open_mux
from mcpmux.cli import console
from mcpmux.cli.arguments import Arguments, parse_arguments, types_of
from mcpmux.cli.completion import complete_argument, complete_file, complete_tool, complete_uri
from mcpmux.cli.console import Columns
from mcpmux.cli.options import (
    NO_TARGET,
    Credentials,
    credentials_options,
    json_option,
    load_target,
    quiet_option,
    split_config,
)
from mcpmux.cli.process import Mistake, run
from mcpmux.cli.questions import CAPABILITIES, answer_all, has_person
from mcpmux.config import Config, Http, WebSocket
from mcpmux.config.model import Target
from mcpmux.errors import ConfigError, RemoteProtocolError, RpcError, TransportError
from mcpmux.library.client import list_items
from mcpmux.library.mux import absent
from mcpmux.mux.pattern import Glob, matches, parse_glob
from mcpmux.printable import printable
from mcpmux.protocol import method as m
from mcpmux.protocol.call import (
    CLIENT_CAPABILITIES,
    META,
    PROGRESS_TOKEN,
    Call,
    Event,
    Notify,
    is_complete,
)
from mcpmux.protocol.codes import INVALID_PARAMS
from mcpmux.protocol.envelope import decode_any, decode_list, raw, text_of
from mcpmux.protocol.input_requests import Wish
from mcpmux.protocol.raw_json import Fields
from mcpmux.runtime.merger import ITEMS, LEFT_OUT
from mcpmux.runtime.round_trips import end_rounds

# The lists of servers, as tables.


class Kind(NamedTuple):
    """A kind of item that servers list."""

    method: str
    heading: str
    columns: Columns


def _member(*keys: str) -> Callable[[Fields], str]:
    """Return the cell of the first of these members that is there."""
    return lambda item: next(filter(None, (text_of(item.get(key)) for key in keys)), "")


def _description(item: Fields) -> str:
    """Return the first line only; the rest is for models."""
    return (text_of(item.get("description")) or "").strip().partition("\n")[0].strip()


def _arguments(item: Fields) -> str:
    """Return `required [optional]`."""
    return " ".join(f"{name}" if is_needed else f"[{name}]" for name, is_needed in parameters_of(item))


def parameters_of(item: Fields) -> list[tuple[Any, bool]]:
    """Return (name, whether it is required) from the input schema of a tool or the list of a prompt."""
    schema = _decoded(item, "inputSchema", dict)
    required, properties = schema.get("required"), schema.get("properties")
    needed = required if isinstance(required, list) else []
    parameters = [(name, name in needed) for name in properties] if isinstance(properties, dict) else []
    listed = (entry for entry in _decoded(item, "arguments", list) if isinstance(entry, dict))
    return parameters + [(entry.get("name"), entry.get("required") is True) for entry in listed]


def _decoded(item: Fields, key: str, kind: type) -> Any:
    value = decode_any(item.get(key, b"null"))
    return value if isinstance(value, kind) else kind()


def _columns(uri_heading: str, uri_member: str) -> Columns:
    return {
        uri_heading: _member(uri_member),
        "TITLE": _member("title", "name"),
        "TYPE": _member("mimeType"),
        "DESCRIPTION": _description,
    }


_NAMED = {"NAME": _member("name"), "ARGUMENTS": _arguments, "DESCRIPTION": _description}

_IDENTITY = _member("uri", "uriTemplate", "name")
_PREFIX = re.compile(r"[a-z][a-z0-9.-]*(?=__|\+)")

KINDS = {
    "resources": Kind(m.RESOURCES_LIST, "Resources", _columns("URI", "uri")),
    "templates": Kind(m.TEMPLATES_LIST, "Resource templates", _columns("URI TEMPLATE", "uriTemplate")),
    "tools": Kind(m.TOOLS_LIST, "Tools", _NAMED),
    "prompts": Kind(m.PROMPTS_LIST, "Prompts", _NAMED),
}


@asynccontextmanager
async def open_visit(config: Config, *, has_access: bool = False) -> AsyncIterator[Mux]:
    """Yield the mux once every upstream is ready or has failed. Raises TransportError when none is ready.

    `has_access`: access rules hold. They are for clients: who has the configuration may see everything.
    """
    async with open_mux(config if has_access else attrs.evolve(config, access=())) as mux:
        for upstream in mux.upstreams.values():
            await upstream.supervision.settled()
        troubles = absent(mux)
        if len(troubles) == len(mux.upstreams):
            hints = [hint for upstream in config.upstreams if (hint := _hint_at(upstream.target))]
            # The user has just named a single target.
            is_one = all(not upstream.prefix for upstream in config.upstreams)
            reasons = (reason if is_one else f"{name}: {reason}" for name, reason in troubles.items())
            raise TransportError("; ".join([*reasons, *hints]))
        yield mux


def _hint_at(target: Target) -> str:
    """Return another URL to try when there is no server at a target; "" if no other is likelier."""
    parts = urlsplit(target.url) if isinstance(target, Http | WebSocket) else None
    if parts is None or parts.path not in ("", "/"):
        return ""
    return f"most servers have a path in their URL, such as {parts.scheme}://{parts.netloc.rpartition('@')[2]}/mcp"


class Visit:
    """One client at the servers of a configuration, for requests one after the other."""

    def __init__(self, mux: Mux, activity: console.Activity) -> None:
        self._mux, self._activity = mux, activity

    async def exchange(self, method: str, params: Fields, hint: str = "") -> Fields:
        """Send a request and return its result. A person at the terminal answers what the server asks.

        `hint` follows the error if what the request names does not exist. Raises RpcError, and
        RemoteProtocolError for a question without a person.
        """
        meta = {PROGRESS_TOKEN: raw("progress")}
        if has_person():
            meta[CLIENT_CAPABILITIES] = CAPABILITIES
        call = Call(method, params, meta, self)
        try:
            exchange, notify = self._mux.router.exchange, self._show_progress
            result = await exchange(call, notify)
            if not is_complete(result):
                result = await end_rounds(result, exchange, call, notify, self._answer)
            return result
        except RpcError as error:
            if error.code != INVALID_PARAMS or not hint:
                raise
            joint = " " if error.message.endswith("?") else "; "
            raise RpcError(error.code, f"{error.message}{joint}{hint}", error.data) from None

    async def _answer(self, _result: Fields, wishes: dict[str, Wish]) -> Fields:
        if wishes and not has_person():
            problem = "the server asks for input, which a person can give at a terminal, or in a host app"
            raise RemoteProtocolError(problem)
        with self._activity.paused():
            return await answer_all(wishes)

    async def find(self, method: str, name: str) -> Fields | None:
        """Return the item of this name in a list, None when it is not there or the list cannot be had."""
        with suppress(RpcError, RemoteProtocolError):
            items = await list_all(self._mux, method, {})
            return next((item for item in items if text_of(item.get("name")) == name), None)
        return None

    async def _show_progress(self, event: Event) -> None:
        if event.method == m.PROGRESS:
            progress, total = (_number(event.params, key) for key in ("progress", "total"))
            self._activity.report(progress or 0, total, text_of(event.params.get("message")) or "")


@asynccontextmanager
async def open_client(config: Config, activity: str) -> AsyncIterator[Visit]:
    """Visit the servers, with a progress bar about `activity`. Raises TransportError when none is ready."""
    async with console.show_activity(activity) as shown, open_visit(config) as mux:
        yield Visit(mux, shown)


def _number(params: Fields, key: str) -> float | None:
    value = decode_any(params.get(key, b"null"))
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


async def list_all(mux: Mux, method: str, left_out: dict[str, str]) -> list[Fields]:
    """Return every item of a list, if any; missing upstreams go to `left_out`. Raises McpmuxError."""

    async def exchange(call: Call, notify: Notify) -> Fields:
        result = await mux.router.exchange(call, notify)
        for name, reason in (read_left_out(result) | read_items_left_out(result)).items():
            left_out.setdefault(name, reason)  # what is known of our own upstreams is shorter
        return result

    return await list_items(Call(method, {}, {}), exchange)


def read_left_out(result: Fields) -> dict[str, str]:
    """Return the upstreams that this mux, or a mux behind it, has left out of a result, with the reason."""
    note = _decoded(result, META, dict).get(LEFT_OUT)
    entries = note.items() if isinstance(note, dict) else ()
    return {name: str(entry.get("reason", "")) for name, entry in entries if isinstance(entry, dict)}


def read_items_left_out(result: Fields) -> dict[str, str]:
    """Return the items that mcpmux has left out of a list, as `NAME of UPSTREAM`, with the problem."""
    note = _decoded(result, META, dict).get(ITEMS)
    found: dict[str, str] = {}
    for upstream, problems in note.items() if isinstance(note, dict) else ():
        for each in problems if isinstance(problems, list) else ():
            if isinstance(each, dict) and each.get("leftOut") is True:
                what = f"`{each['item']}` of {upstream}" if "item" in each else f"a part of {upstream}"
                found[what] = str(each.get("problem", ""))
    return found


target_argument = click.argument("target", shell_complete=complete_file)


@click.command()
@click.argument("target", required=False, shell_complete=complete_file)
@click.argument("words", nargs=-1, metavar="[KIND|NAME]...")
@credentials_options
@json_option(help="Print the items, each with its `kind`, one JSON object per line.")
@quiet_option
def ls(target: str | None, words: tuple[str, ...], credentials: Credentials, as_json: bool) -> None:
    """List the resources, templates, tools and prompts of servers.

    KIND is one of these four words; without one all are listed. NAME is the name or URI of what to list, in
    which * stands for any text. TARGET is the URL of an MCP server, the command line that starts one in
    quotes, or a configuration file, mcpmux.toml by default. All pages are fetched. Servers that are missing
    are named on stderr.

    \b
    Examples:
      mcpmux ls http://127.0.0.1:8484/mcp
      mcpmux ls mcpmux.toml tools prompts
      mcpmux ls tools 'docs__*'
      mcpmux ls "uvx mcp-server-time" --json | jq .name
    """
    target, words = split_config(target, words)
    if target is None:
        raise ConfigError([NO_TARGET])
    kinds = list(dict.fromkeys(word for word in words if word in KINDS)) or list(KINDS)
    globs = [parse_glob(word) for word in words if word not in KINDS]
    lists, left_out = run(fetch_lists, load_target(target, credentials), kinds)
    if globs:
        lists = {kind: [item for item in lists[kind] if is_named(item, globs)] for kind in kinds}
    for kind, items in lists.items():
        if not items:
            continue
        items = group_by_server(items)
        if as_json:
            items = [{**item, "kind": raw(kind)} for item in items]
        is_titled = len(kinds) > 1 and not as_json
        if is_titled:
            console.show_line(f"{KINDS[kind].heading} ({len(items)})")
        console.show_items(items, as_json, KINDS[kind].columns)
        if is_titled:
            click.echo()
    if not any(lists.values()):
        named = f" called {' or '.join(word for word in words if word not in KINDS)}" if globs else ""
        console.tell(f"no {' or '.join(kinds)}{named} found")
    for name, reason in left_out.items():
        console.tell(f"left out: {name}: {reason}")


def group_by_server(items: Sequence[Fields]) -> list[Fields]:
    """Return the items with those of each server beside each other, as the prefix of mcpmux shows it.

    mcpmux lists them as pages arrive. Items without a prefix keep their order.
    """
    groups: dict[str, list[Fields]] = {}
    for item in items:
        prefix = _PREFIX.match(_IDENTITY(item))
        groups.setdefault(prefix[0] if prefix is not None else "", []).append(item)
    return list(chain.from_iterable(groups.values()))


def is_named(item: Fields, globs: Sequence[Glob]) -> bool:
    """Return whether the name or URI of an item fits one of the globs."""
    texts = [text_of(item.get(key)) for key in ("name", "uri", "uriTemplate")]
    return any(matches(glob, text) for glob in globs for text in texts if text is not None)


async def fetch_lists(config: Config, kinds: Sequence[str]) -> tuple[dict[str, list[Fields]], dict[str, str]]:
    """Return the items of each kind, and the upstreams that are missing in any list, with the reason."""
    async with console.show_activity("listing"), open_visit(config) as mux:
        capabilities, _ = await mux.router.introduce()
        lists: dict[str, list[Fields]] = {kind: [] for kind in kinds}
        left_out = absent(mux)
        for kind in kinds:
            method = KINDS[kind].method
            if m.LISTS[method].capability in capabilities:
                lists[kind] = await list_all(mux, method, left_out)
        return lists, left_out


# Results: the contents of resources, and the content blocks of tools.


class Content(NamedTuple):
    """One item of `contents`: text, or the bytes of a blob."""

    uri: str
    mime_type: str
    data: str | bytes

    @property
    def as_bytes(self) -> bytes:
        return self.data if isinstance(self.data, bytes) else self.data.encode(errors="replace")

    @property
    def as_text(self) -> str:
        """The text; `[image/png, 311 bytes]` in place of bytes that a terminal cannot show."""
        if isinstance(self.data, str):
            return self.data
        return f"[{self.mime_type or 'unknown type'}, {len(self.data)} bytes]"


def decode_contents(result: Fields) -> list[Content]:
    """Return the contents in the result of `resources/read`. Raises RemoteProtocolError if there are none."""
    try:
        return [decode_content(item) for item in decode_list(result["contents"])]
    except (KeyError, ValueError):
        raise RemoteProtocolError("the answer to resources/read has no contents in it") from None


def decode_content(item: Fields) -> Content:
    """Return one item of `contents`. Raises RemoteProtocolError for a blob that is no base64."""
    uri, mime_type = text_of(item.get("uri")) or "", text_of(item.get("mimeType")) or ""
    text, blob = text_of(item.get("text")), text_of(item.get("blob"))
    if text is not None or blob is None:
        return Content(uri, mime_type, text or "")
    try:
        return Content(uri, mime_type, base64.b64decode(blob, validate=True))
    except binascii.Error:
        raise RemoteProtocolError(f"the blob of {uri} is not base64") from None


def render_block(block: dict[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind == "resource_link":
        return f"[link] {block.get('uri')} {block.get('title') or block.get('name') or ''}".rstrip()
    if kind == "resource" and isinstance(block.get("resource"), dict):
        content = decode_content({key: raw(value) for key, value in block["resource"].items()})
        return f"[{content.uri}]\n{content.as_text}"
    if kind in ("image", "audio"):
        return f"[{kind}, {block.get('mimeType')}; -o FILE writes it to a file]"
    return bytes(raw(block)).decode()


async def read_resource(config: Config, uri: str, hint: str) -> Fields:
    """Return the result of `resources/read`. Raises McpmuxError."""
    async with open_client(config, f"reading {uri}") as client:
        return await client.exchange(m.RESOURCES_READ, {"uri": raw(uri)}, hint)


@click.command()
@target_argument
@click.argument("uri", shell_complete=complete_uri)
@click.option("-o", "--output", type=click.File("wb", lazy=True), help="Write the contents to this file.")
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
    hint = f"`mcpmux ls {shlex.quote(target)} resources templates` shows what there is"
    result = run(read_resource, load_target(target, credentials), uri, hint)
    if as_json:
        console.show_json(raw(result))
        return
    contents = decode_contents(result)
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


async def call_tool(config: Config, tool: str, arguments: Arguments, hint: str) -> Fields:
    """Return the result of `tools/call`, with arguments as the tool's schema has them.

    Raises ConfigError for arguments that the tool does not take, and McpmuxError.
    """
    async with open_client(config, f"calling {tool}") as client:
        item = None if arguments.is_whole else await client.find(m.TOOLS_LIST, tool)
        values = arguments.unread if item is None else arguments.read_by(_decoded(item, "inputSchema", dict))
        return await client.exchange(m.TOOLS_CALL, {"name": raw(tool), "arguments": raw(values)}, hint)


async def find_tool(config: Config, tool: str) -> Fields | None:
    """Return the tool's item of the list; None when it is not there. Raises TransportError."""
    async with open_client(config, f"looking for {tool}") as client:
        return await client.find(m.TOOLS_LIST, tool)


def show_tool(item: Fields) -> None:
    """Print what a tool is for, and what it takes."""
    schema = _decoded(item, "inputSchema", dict)
    console.show_line(_member("name")(item))
    console.show_text(text_of(item.get("description")) or "")
    properties, required = schema.get("properties"), schema.get("required")
    needed = required if isinstance(required, list) else []
    rows = [
        (name, "|".join(types_of(field)) or "any", "yes" if name in needed else "no", _about(field))
        for name, field in (properties.items() if isinstance(properties, dict) else ())
    ]
    if rows:
        click.echo()
        console.show_table(["ARGUMENT", "TYPE", "REQUIRED", "DESCRIPTION"], rows)


def _about(field: object) -> str:
    if not isinstance(field, dict):
        return ""
    default = f"default {bytes(raw(field['default'])).decode()}" if "default" in field else ""
    values = field.get("enum")
    choices = f"one of {', '.join(map(str, values))}" if isinstance(values, list) else ""
    return "; ".join(filter(None, (str(field.get("description", "")), choices, default)))


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
@click.option("-o", "--output", type=click.File("wb", lazy=True), help="Write the contents to this file.")
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
    listed = f"`mcpmux ls {shlex.quote(target)} tools` shows what there is"
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
    result = run(call_tool, config, tool, arguments, listed)
    if as_json:
        console.show_json(raw(result))
    else:
        blocks = decode_any(result.get("content", b"null"))
        if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
            raise RemoteProtocolError("the answer to tools/call has no content in it")
        if output is not None:
            output.write(b"".join(map(block_bytes, blocks)))
        for block in () if output is not None else blocks:
            console.show_text(render_block(block).removesuffix("\n") + "\n")
    if decode_any(result.get("isError", b"false")) is True:
        raise click.ClickException(f"the tool `{tool}` reported an error")


def block_bytes(block: dict[str, Any]) -> bytes:
    """Return a block for a file: the bytes of an image, a sound or a resource, or its text."""
    resource = block.get("resource")
    if isinstance(resource, dict):
        return decode_content({key: raw(value) for key, value in resource.items()}).as_bytes
    if block.get("type") in ("image", "audio"):
        try:
            return base64.b64decode(str(block.get("data")), validate=True)
        except binascii.Error:
            raise RemoteProtocolError(f"the {block['type']} of the result is not base64") from None
    return f"{render_block(block)}\n".encode(errors="replace")
