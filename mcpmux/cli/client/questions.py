"""Questions of a server during a command, answered by the person at the terminal: elicitation and sampling.

Source: `client/elicitation`, `client/sampling`, 2026-07-28.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import click
import trio

from mcpmux.cli.client.arguments import Parameters, read_text, types_of
from mcpmux.errors import RpcError
from mcpmux.mux.override import NotJudged, find_mistake
from mcpmux.printable import printable, printable_lines
from mcpmux.protocol import method as m
from mcpmux.protocol.codes import INVALID_REQUEST
from mcpmux.protocol.envelope import decode_any, raw
from mcpmux.protocol.input_requests import Wish, error_response
from mcpmux.protocol.raw_json import Fields, Raw

CAPABILITIES: Final = raw({"elicitation": {"form": {}, "url": {}}, "sampling": {}})
"""What a person at a terminal can be asked."""

ANSWER, DECLINE, CANCEL = "y", "n", "c"
_ACTIONS = {DECLINE: "decline", CANCEL: "cancel"}


def has_person() -> bool:
    """Return whether a person can answer: the input is a terminal, and so is where questions are shown."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


async def answer_all(wishes: Mapping[str, Wish]) -> Fields:
    """Ask the person each question, one after the other. Return the responses by their keys."""
    return {
        key: await trio.to_thread.run_sync(answer, wish, abandon_on_cancel=not CAN_SELECT)
        for key, wish in wishes.items()
    }


CAN_SELECT: Final = sys.platform != "win32"  # whether select waits for terminals
LOOK_SECONDS: Final = 0.1  # between two looks whether the question is still to be answered


@contextmanager
def _cancellable_prompts() -> Iterator[None]:
    """Let prompts of click in this thread end when the task that waits for it is cancelled.

    Python aborts, with a dump, when a thread still reads from standard input at its end.
    """

    def read(prompt: str = "") -> str:
        click.echo(prompt, nl=False, err=True)
        while not select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
            trio.from_thread.check_cancelled()
        return input()

    usual = click.termui.visible_prompt_func
    if CAN_SELECT and sys.stdin.isatty():
        click.termui.visible_prompt_func = read
    try:
        yield
    finally:
        click.termui.visible_prompt_func = usual


def answer(wish: Wish) -> Raw:
    """Ask the person one question, and return the response. Blocks while the person thinks."""
    with _cancellable_prompts():
        return _answer(wish)


def _answer(wish: Wish) -> Raw:
    params = {key: decode_any(value) for key, value in wish.params.items()}
    click.echo(err=True)
    if wish.method == m.ELICIT and params.get("mode") == "url":
        return raw(_visit(params))
    if wish.method == m.ELICIT:
        return raw(_fill_in(params))
    if wish.method == m.CREATE_MESSAGE:
        return _sample(params)
    return error_response(RpcError(INVALID_REQUEST, f"a person at a terminal cannot answer {wish.method}"))


def _tell(text: object) -> None:
    click.echo(printable_lines(str(text)), err=True)


def _choose(question: str) -> str:
    choice: str = click.prompt(
        f"{question} [y]es, [n]o, [c]ancel",
        type=click.Choice([ANSWER, DECLINE, CANCEL], case_sensitive=False),
        show_choices=False,
        err=True,
    )
    return choice.lower()


def _visit(params: Mapping[str, Any]) -> dict[str, Any]:
    _tell(f"The server asks: {params.get('message', '')}")
    _tell(f"  {params.get('url', '')}")
    choice = _choose("Open this URL yourself, if you trust it. Have you?")
    return {"action": _ACTIONS.get(choice, "accept")}


def _fill_in(params: Mapping[str, Any]) -> dict[str, Any]:
    _tell(f"The server asks: {params.get('message', '')}")
    fields, needed, _ = Parameters.of_schema(params.get("requestedSchema"))
    if (choice := _choose("Answer?" if fields else "Do you agree?")) != ANSWER:
        return {"action": _ACTIONS[choice]}
    if not fields:  # the question is one of consent
        return {"action": "accept", "content": {}}
    content = {}
    for name, field in fields.items():
        value = _ask_field(name, field if isinstance(field, dict) else {}, is_needed=name in needed)
        if value is not None:
            content[name] = value
    if (choice := _choose(f"Send {printable(bytes(raw(content)).decode())}?")) != ANSWER:
        return {"action": _ACTIONS[choice]}
    return {"action": "accept", "content": content}


def _ask_field(name: str, field: Mapping[str, Any], *, is_needed: bool) -> Any:
    """Ask for the value of one field until it fits. Return None when an optional one is left out."""
    label = printable(str(field.get("title") or name))
    about = [text for text in (field.get("description"), _choices_of(field)) if text]
    if about:
        _tell(f"  {label}: {'; '.join(map(str, about))}")
    default = field.get("default")
    shown = default if default is None or isinstance(default, str) else bytes(raw(default)).decode()
    types = types_of(field)
    while True:
        hint = "" if is_needed else " (optional)"
        text: str = click.prompt(
            f"  {label}{hint}",
            default="" if shown is None else printable(shown),
            show_default=shown is not None,
            err=True,
        )
        if not text and not is_needed:
            return None
        try:
            value = default if text == shown else read_text(text, types)
            mistake = find_mistake(value, field)
        except ValueError:
            mistake = f"expected {' or '.join(types)}"
        except NotJudged:  # the server has to
            mistake = None
        if mistake is None:
            return value
        _tell(f"  {mistake}")


def _choices_of(field: Mapping[str, Any]) -> str:
    """Return the values that a field may have, with their titles; "" for any."""
    items = field.get("items")
    source = items if isinstance(items, dict) else field
    titled = source.get("oneOf") or source.get("anyOf")
    if isinstance(titled, list):
        options = [option for option in titled if isinstance(option, dict) and "const" in option]
        texts = [f"{option['const']} ({option.get('title', option['const'])})" for option in options]
    else:
        values = source.get("enum")
        texts = list(map(str, values)) if isinstance(values, list) else []
    if not texts:
        return ""
    return f"{'a JSON array of' if source is items else 'one of'} {', '.join(texts)}"


def _sample(params: Mapping[str, Any]) -> Raw:
    _tell("The server asks a model, and you answer in its place:")
    if params.get("systemPrompt"):
        _tell(f"  system: {params['systemPrompt']}")
    messages = params.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict):
            content = message.get("content")
            text = content.get("text") if isinstance(content, dict) else None
            _tell(f"  {message.get('role')}: {text if text is not None else bytes(raw(content)).decode()}")
    text = click.prompt("Answer, or nothing to refuse", default="", show_default=False, err=True)
    if not text:
        return error_response(RpcError(-1, "the user refused the sampling request"))
    block = {"type": "text", "text": text}
    return raw({"role": "assistant", "content": block, "model": "a person", "stopReason": "endTurn"})
