"""`mcpmux completion`, and what each completion of a shell promises.

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
import trio

from mcpmux.logs import configure_logs

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

PATIENCE_SECONDS = 1.0
MOST_ITEMS = 500  # what a shell can still show
VARIABLE = "_MCPMUX_COMPLETE"

NO_BLANK = {
    "bash": ("    return 0\n", "    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace\n    return 0\n"),
    "zsh": (
        "        compadd -U -V unsorted -a completions\n",
        "        local -a ending\n"
        "        [[ $completions[1] == *= ]] && ending=(-S '')\n"
        '        compadd -U -V unsorted "$ending[@]" -a completions\n',
    ),
}
"""What click's script has, and what replaces it: a word that ends with = is not complete. fish knows that."""

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
    click.echo(source.replace(*NO_BLANK[shell]) if shell in NO_BLANK else source, nl=False)


def complete_file(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Let the shell itself complete files."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def offer(incomplete: str, find: Callable[[], Iterable[str]]) -> Items:
    """Return the words that begin with `incomplete`; no word if finding them fails."""
    from click.shell_completion import CompletionItem  # not at the top: only a shell needs it

    words: list[str] = []
    with (
        suppress(Exception, BaseExceptionGroup),
        redirect_stderr(io.StringIO()),
        redirect_stdout(io.StringIO()),
    ):
        configure_logs("error", "console")
        words = list(find())
    fitting = (word for word in words if word.startswith(incomplete) and _ONE_WORD.fullmatch(word))
    return [CompletionItem(word) for _, word in zip(range(MOST_ITEMS), fitting, strict=False)]


def run_shortly(work: Callable[[], Awaitable[Any]]) -> Any:
    """Run `work` and return its result. Raises TimeoutError after PATIENCE_SECONDS."""

    async def bounded() -> Any:
        with trio.move_on_after(PATIENCE_SECONDS):
            return await work()
        raise TimeoutError

    return trio.run(bounded)
