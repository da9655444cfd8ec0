"""`mcpmux ls`: the lists of servers, as tables; and the completion of what is in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import click

from mcpmux.cli import console
from mcpmux.cli.client.arguments import Parameters
from mcpmux.cli.client.visit import list_all, open_visit
from mcpmux.cli.completion import Items, complete_file, offer, run_shortly
from mcpmux.cli.console import Columns
from mcpmux.cli.options import (
    ANYWHERE,
    DEFAULT_ADDRESS,
    NO_TARGET,
    Credentials,
    as_url,
    credentials_options,
    is_file,
    json_option,
    load_config,
    load_target,
    quiet_option,
    split_config,
)
from mcpmux.cli.process import Mistake, run
from mcpmux.config import Config, parse_upstream_argument
from mcpmux.config.listener import parse_http_argument
from mcpmux.library.mux import absent
from mcpmux.mux.pattern import Glob, matches, parse_glob
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import raw, text_of
from mcpmux.protocol.raw_json import Fields


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
    parameters = Parameters.of(item)
    return " ".join(name if name in parameters.needed else f"[{name}]" for name in parameters.fields)


def _columns(uri_heading: str, uri_member: str) -> Columns:
    return {
        uri_heading: _member(uri_member),
        "TITLE": _member("title", "name"),
        "TYPE": _member("mimeType"),
        "DESCRIPTION": _description,
    }


_NAME = _member("name")
_NAMED = {"NAME": _NAME, "ARGUMENTS": _arguments, "DESCRIPTION": _description}

_IDENTITY = _member("uri", "uriTemplate", "name")
_PREFIX = re.compile(r"[a-z][a-z0-9.-]*(?=__|\+)")

KINDS = {
    "resources": Kind(m.RESOURCES_LIST, "Resources", _columns("URI", "uri")),
    "templates": Kind(m.TEMPLATES_LIST, "Resource templates", _columns("URI TEMPLATE", "uriTemplate")),
    "tools": Kind(m.TOOLS_LIST, "Tools", _NAMED),
    "prompts": Kind(m.PROMPTS_LIST, "Prompts", _NAMED),
}


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
        raise Mistake(NO_TARGET)
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


# Completion of items that a running mcpmux lists.


def _complete(
    kind: str, member: str, context: click.Context, _parameter: click.Parameter, incomplete: str
) -> Items:
    """Return what TARGET lists, if it is running."""
    return offer(
        incomplete,
        lambda: [text for item in _items(context, kind) if (text := text_of(item.get(member)))],
    )


complete_tool = partial(_complete, "tools", "name")
complete_prompt = partial(_complete, "prompts", "name")
complete_uri = partial(_complete, "resources", "uri")


def complete_argument(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Return `NAME=` for each argument of TOOL, or of the prompt NAME, that is not on the command line."""
    taken = {pair.partition("=")[0].removesuffix(":") for pair in context.params.get("pairs") or ()}

    def find() -> list[str]:
        kind, name = ("tools", "tool") if "tool" in context.params else ("prompts", "name")
        items = (item for item in _items(context, kind) if _NAME(item) == context.params[name])
        return [f"{name}=" for item in items for name in Parameters.of(item).fields if name not in taken]

    return offer(incomplete, find)


def _items(context: click.Context, kind: str) -> list[Fields]:
    config = Config(upstreams=(parse_upstream_argument(find_running(context.params["target"])),))
    lists, _ = run_shortly(lambda: fetch_lists(config, [kind]))
    items: list[Fields] = lists[kind]
    return items


def find_running(target: str) -> str:
    """Return the URL at which TARGET answers if it is running. Raises LookupError if it is unknown."""
    target = as_url(target)
    if target.startswith(("http://", "https://", "ws://", "wss://")):
        return target
    if not is_file(target):
        raise LookupError(target)
    listeners = load_config(target).listeners
    configured = listeners.http if listeners.bound else (parse_http_argument(DEFAULT_ADDRESS),)
    for listener in configured:
        if listener.tls is None and listener.port:
            host = ANYWHERE.get(listener.host, listener.host)
            return f"http://{f'[{host}]' if ':' in host else host}:{listener.port}{listener.path}"
    raise LookupError(target)
