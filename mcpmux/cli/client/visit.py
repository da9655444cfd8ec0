"""A visit to the servers of a configuration: connect, ask, leave.

Questions of a server meanwhile, elicitation and sampling, are answered by the person at the terminal.

Source: `client/elicitation`, `client/sampling`, 2026-07-28.
"""

from __future__ import annotations

import select
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
import click
import trio

from mcpmux.app import Mux, open_mux
from mcpmux.cli import console
from mcpmux.cli.client.arguments import Parameters, decoded, read_text, types_of
from mcpmux.cli.client.content import render_block
from mcpmux.config import Config, Http, WebSocket
from mcpmux.config.model import Target
from mcpmux.errors import RemoteProtocolError, RpcError, TransportError
from mcpmux.library.client import list_items
from mcpmux.library.mux import absent
from mcpmux.mux.override import NotJudged, find_mistake
from mcpmux.mux.report import ITEMS, LEFT_OUT
from mcpmux.printable import printable, printable_lines
from mcpmux.protocol import method as m
from mcpmux.protocol.call import CLIENT_CAPABILITIES, META, PROGRESS_TOKEN, Call, Event, Notify, is_complete
from mcpmux.protocol.codes import INVALID_PARAMS, INVALID_REQUEST
from mcpmux.protocol.envelope import decode_any, raw, text_of, value_of
from mcpmux.protocol.input_requests import Wish, error_response
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.runtime.round_trips import end_rounds


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

    async def exchange(self, method: str, params: Mapping[str, Any], hint: str = "") -> Fields:
        """Send a request and return its result. A person at the terminal answers what the server asks.

        `hint` follows the error if what the request names does not exist. Raises RpcError, and
        RemoteProtocolError for a question without a person.
        """
        meta = {PROGRESS_TOKEN: raw("progress")}
        if has_person():
            meta[CLIENT_CAPABILITIES] = CAPABILITIES
        call = Call(method, {key: raw(value) for key, value in params.items()}, meta, self)
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
    value = value_of(params.get(key))
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
    note = decoded(result, META, dict).get(LEFT_OUT)
    entries = note.items() if isinstance(note, dict) else ()
    return {name: str(entry.get("reason", "")) for name, entry in entries if isinstance(entry, dict)}


def read_items_left_out(result: Fields) -> dict[str, str]:
    """Return the items that mcpmux has left out of a list, as `NAME of UPSTREAM`, with the problem."""
    note = decoded(result, META, dict).get(ITEMS)
    found: dict[str, str] = {}
    for upstream, problems in note.items() if isinstance(note, dict) else ():
        for each in problems if isinstance(problems, list) else ():
            if isinstance(each, dict) and each.get("leftOut") is True:
                what = f"`{each['item']}` of {upstream}" if "item" in each else f"a part of {upstream}"
                found[what] = str(each.get("problem", ""))
    return found


# Questions to the person.

CAPABILITIES: Final = raw({"elicitation": {"form": {}, "url": {}}, "sampling": {}})
"""What a person at a terminal can be asked."""

ANSWER, DECLINE, CANCEL = "y", "n", "c"
_ACTIONS = {DECLINE: "decline", CANCEL: "cancel"}


def has_person() -> bool:
    """Return whether a person can answer: the input is a terminal, and so is where questions are shown."""
    return sys.stdin.isatty() and sys.stderr.isatty()


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
    params = {key: decode_any(value) for key, value in wish.params.items()}
    with _cancellable_prompts():
        click.echo(err=True)
        if wish.method == m.ELICIT and params.get("mode") == "url":
            _tell(f"The server asks: {params.get('message', '')}")
            _tell(f"  {params.get('url', '')}")
            choice = _choose("Open this URL yourself, if you trust it. Have you?")
            return raw({"action": _ACTIONS.get(choice, "accept")})
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
    if "boolean" in types_of(field):
        return "true or false"
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
            for block in content if isinstance(content, list) else [content]:
                _tell(f"  {message.get('role')}: {render_block(block if isinstance(block, dict) else {})}")
    text = click.prompt("Answer, or nothing to refuse", default="", show_default=False, err=True)
    if not text:
        return error_response(RpcError(-1, "the user refused the sampling request"))
    block = {"type": "text", "text": text}
    return raw({"role": "assistant", "content": block, "model": "a person", "stopReason": "endTurn"})
