"""`mcpmux completion`, and what shells complete: files, and names from a mcpmux that is running.

A user who presses Tab waits for at most a second, and sees no message if that fails. No server is started. A
server's text is only offered if a shell takes it as one word without effects.
"""

from __future__ import annotations

import io
import re
from collections.abc import Awaitable, Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from mcpmux.config import Config
    from mcpmux.protocol.raw_json import Fields

PATIENCE_SECONDS = 1.0
MOST_ITEMS = 500  # what a shell can still show
VARIABLE = "_MCPMUX_COMPLETE"

NO_BLANK = """\
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
    return 0
"""
"""What the function of bash ends with: a word that ends with = is not complete."""

_ONE_WORD = re.compile(r"[A-Za-z0-9_./@%][A-Za-z0-9_./:@%+=,-]*")

Items = list["CompletionItem[str]"]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes a shell complete commands, options, files and names.

    Names of upstreams, tools, prompts, their arguments, and URIs come from a mcpmux that is running.

    \b
    Examples:
      mcpmux completion bash > ~/.local/share/bash-completion/completions/mcpmux
      mcpmux completion zsh > ~/.zfunc/_mcpmux         a folder in $fpath
      mcpmux completion fish > ~/.config/fish/completions/mcpmux.fish
    """
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None
    root = click.get_current_context().find_root().command
    if shell == "bash":  # which would take URLs and URIs apart
        click.echo("COMP_WORDBREAKS=${COMP_WORDBREAKS//:}")
    source = script(root, {}, "mcpmux", VARIABLE).source()
    click.echo(source.replace("    return 0\n", NO_BLANK) if shell == "bash" else source, nl=False)


def complete_file(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Let the shell itself complete files."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def complete_server(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Return the upstreams of the configuration file."""
    return _offer(incomplete, lambda: [upstream.name for upstream in _configured(context.params).upstreams])


def complete_file_or_server(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Return the upstreams of the default configuration file, and let the shell complete files."""
    files = complete_file(context, parameter, incomplete)
    return [*files, *complete_server(context, parameter, incomplete)]


def complete_view(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Return the views of the configuration file."""
    return _offer(incomplete, lambda: _configured(context.params).views)


def complete_upstream(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Return the upstreams of the mcpmux whose admin listener the options name."""
    return _offer(incomplete, lambda: _ask_upstreams(context.params))


def complete_tool(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Return the tools at TARGET, if it is running."""
    return _offer(incomplete, lambda: _list(context.params, ("tools",), "name"))


def complete_prompt(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Return the prompts at TARGET, if it is running."""
    return _offer(incomplete, lambda: _list(context.params, ("prompts",), "name"))


def complete_argument(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Return `NAME=` of what the tool or prompt takes, without arguments that are given already."""
    taken = {re.split(":?=", pair)[0] for pair in context.params.get("pairs") or ()}
    return _offer(
        incomplete, lambda: (f"{name}=" for name in _parameters(context.params) if name not in taken)
    )


def complete_filter(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Return keys of filters, and let the shell complete files."""
    from mcpmux.traffic.reading.filters import KEYS

    return [
        *complete_file(context, parameter, incomplete),
        *_offer(incomplete, lambda: (f"{key}=" for key in KEYS)),
    ]


def complete_uri(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Return the URIs of resources at TARGET, if it is running."""
    return _offer(incomplete, lambda: _list(context.params, ("resources",), "uri"))


def _offer(incomplete: str, find: Callable[[], Iterable[str]]) -> Items:
    """Return the words that begin with `incomplete`; no word if finding them fails."""
    from click.shell_completion import CompletionItem

    words: list[str] = []
    with (
        suppress(Exception, BaseExceptionGroup),
        redirect_stderr(io.StringIO()),
        redirect_stdout(io.StringIO()),
    ):
        words = list(find())
    fitting = (word for word in words if word.startswith(incomplete) and _ONE_WORD.fullmatch(word))
    return [CompletionItem(word) for _, word in zip(range(MOST_ITEMS), fitting, strict=False)]


# Imports stand in the functions: commands import this module, and most have no names to complete.


def _run(work: Callable[[], Awaitable[Any]]) -> Any:
    """Run `work` and return its result. Raises TimeoutError after PATIENCE_SECONDS."""
    import trio

    from mcpmux.cli.main import import_structlog

    import_structlog()
    from mcpmux.logs import configure_logs

    configure_logs("error", "console")

    async def bounded() -> Any:
        with trio.move_on_after(PATIENCE_SECONDS):
            return await work()
        raise TimeoutError

    return trio.run(bounded)


def _configured(options: dict[str, Any]) -> Config:
    from mcpmux.cli.options import DEFAULT_FILE, load_config

    return load_config(str(options.get("config") or options.get("file") or DEFAULT_FILE))


def _ask_upstreams(options: dict[str, Any]) -> Iterable[str]:
    from mcpmux.cli.ctl import find_admin

    admin = find_admin(*(options.get(key) for key in ("config", "url", "token", "ca")))
    answer = _run(lambda: admin.ask("GET", "/api/upstreams"))
    return [upstream["name"] for upstream in answer["upstreams"]]


def _list(options: dict[str, Any], kinds: tuple[str, ...], member: str) -> Iterable[str]:
    from mcpmux.protocol.envelope import text_of

    return [text for item in _items(options, kinds) if (text := text_of(item.get(member)))]


def _parameters(options: dict[str, Any]) -> Iterable[str]:
    from mcpmux.cli.client import parameters_of
    from mcpmux.protocol.envelope import text_of

    kind, name = ("tools", options["tool"]) if "tool" in options else ("prompts", options["name"])
    items = (item for item in _items(options, (kind,)) if text_of(item.get("name")) == name)
    return [name for item in items for name, _ in parameters_of(item)]


def _items(options: dict[str, Any], kinds: tuple[str, ...]) -> list[Fields]:
    from mcpmux.cli.client import fetch_lists
    from mcpmux.config import Config, parse_upstream_argument

    url = find_running(options["target"])
    config = Config(upstreams=(parse_upstream_argument(url),))
    lists, _ = _run(lambda: fetch_lists(config, kinds))
    return [item for kind in kinds for item in lists[kind]]


def find_running(target: str) -> str:
    """Return the URL at which TARGET answers if it is running. Raises LookupError if it is unknown."""
    from mcpmux.cli.ctl import ANYWHERE
    from mcpmux.cli.options import DEFAULT_ADDRESS, as_url, is_file, load_config
    from mcpmux.config.listener import parse_http_argument

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
