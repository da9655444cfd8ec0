"""`mcpmux call`: let a tool work."""

from __future__ import annotations

import shlex
from typing import Any

import click

from mcpmux.cli.arguments import parse_arguments
from mcpmux.cli.console import Activity, show_activity, show_json, show_text
from mcpmux.cli.content import render_block
from mcpmux.cli.options import quiet_option
from mcpmux.cli.running import run
from mcpmux.cli.source import load_config
from mcpmux.cli.visit import ask, open_visit
from mcpmux.config import Config
from mcpmux.errors import RemoteProtocolError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Event, Notify
from mcpmux.protocol.envelope import decode_any, raw, text_of
from mcpmux.protocol.meta import PROGRESS_TOKEN
from mcpmux.protocol.raw_json import Fields

Json = dict[str, Any]


@click.command()
@click.argument("target")
@click.argument("tool")
@click.argument("pairs", nargs=-1, metavar="[KEY=TEXT | KEY:=JSON]...")
@click.option("--args", "whole", metavar="JSON", help="All arguments as one JSON object.")
@click.option(
    "--json", "as_json", is_flag=True, help="The whole result as JSON, structured content included."
)
@quiet_option
def call(target: str, tool: str, pairs: tuple[str, ...], whole: str | None, as_json: bool) -> None:
    """Call a tool and print what it answers.

    TARGET is the URL of an MCP server, the command line that starts one in quotes, or a configuration
    file. Arguments are text after =, any other JSON value after :=. Exit code 1 when the tool fails.

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
    """The result of the call. Raises RpcError and McpmuxError."""
    request = Call(
        m.TOOLS_CALL, {"name": raw(tool), "arguments": raw(arguments)}, {PROGRESS_TOKEN: raw("progress")}
    )
    hint = f"`mcpmux ls {shlex.quote(target)} tools` shows what there is"
    async with show_activity(f"calling {tool}") as activity, open_visit(config) as mux:
        return await ask(mux, request, make_reporter(activity), hint)


def make_reporter(activity: Activity) -> Notify:
    """Takes the notifications of the call; those of progress are shown."""

    async def report(event: Event) -> None:
        if event.method != m.PROGRESS:
            return
        progress, total = (_number(event.params, key) for key in ("progress", "total"))
        activity.report(progress or 0, total, text_of(event.params.get("message")) or "")

    return report


def _number(params: Fields, key: str) -> float | None:
    value = decode_any(params.get(key, b"null"))
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def show_blocks(result: Fields) -> None:
    """Every content block, each from a new line on."""
    blocks = decode_any(result.get("content", b"null"))
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise RemoteProtocolError("the answer to tools/call has no content in it")
    for block in blocks:
        show_text(render_block(block).removesuffix("\n") + "\n")
