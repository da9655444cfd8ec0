"""Interceptors that are functions of Python, sync or async on trio: of a program, or of mcpmux (`builtin`).

A program's function gets the message as plain values and returns the verdict as such.
A sync function runs in the event loop: all of mcpmux waits for it, and its timeout does not end it. One that
waits for anything is async, or is called in a thread. A late one in a thread runs on, without an effect.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final, TypeAlias, cast

import trio

from mcpmux.config.report import InvalidValue
from mcpmux.errors import RpcError
from mcpmux.mux.intercept import (
    FIXED,
    PASS,
    Ask,
    Change,
    Hold,
    InterceptedMessage,
    Refuse,
    Verdict,
    read_verdict,
)
from mcpmux.mux.rewrite import NAMED_BY
from mcpmux.printable import printable
from mcpmux.protocol import method as m
from mcpmux.protocol.call import target_in
from mcpmux.protocol.envelope import decode_any, encode, error_body, raw
from mcpmux.protocol.input_requests import RESPONSES
from mcpmux.runtime.interception import Interceptor
from mcpmux.traffic.redaction.redactor import RuleSet

THREADS: Final = 8  # calls of one function at once
SHOWN_CHARACTERS: Final = 500  # of a name, or of arguments, in a question
_NAMING: Final = frozenset({"name", "uri", "ref"})  # what is used; other FIXED members are only sent back

Function: TypeAlias = Callable[[dict[str, Any]], Any]


def find_function(name: str, given: Mapping[str, Function]) -> Function:
    """Return the function MODULE:FUNCTION; `given`: those of a program. Raises InvalidValue."""
    if name in given:
        return given[name]
    module, _, attribute = name.partition(":")
    if not attribute:
        raise InvalidValue(f"no function is given as `{module}`; expected MODULE:FUNCTION")
    try:
        function = getattr(import_module(module), attribute, None)
    except (Exception, SystemExit) as error:  # a module may do anything when it is imported
        raise InvalidValue(f"cannot import {module}: {error!r}") from None
    if not callable(function):
        raise InvalidValue(f"{module} has no function {attribute}")
    return cast(Function, function)


def is_async(function: Function) -> bool:
    """Return whether calling a function, or an object, gives a coroutine."""
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


def interceptor_of(function: Function, *, in_thread: bool) -> Interceptor:
    """Return the interceptor that calls a function. `in_thread`: it is sync, and waits."""
    if in_thread:
        # Late calls count until they end: they must not take all threads of trio.
        return Interceptor(partial(_judge_in_thread, function, trio.CapacityLimiter(THREADS)), waits=True)
    if is_async(function):
        return Interceptor(partial(_judge_async, function), waits=True)
    return Interceptor(partial(_judge, function))


def _judge(function: Function, message: InterceptedMessage) -> Verdict:
    """Return the function's verdict. Raises BadVerdict, and what the function raises."""
    return read_verdict(function(message.as_json()))


async def _judge_async(function: Function, message: InterceptedMessage) -> Verdict:
    return read_verdict(await function(message.as_json()))


async def _judge_in_thread(
    function: Function, threads: trio.CapacityLimiter, message: InterceptedMessage
) -> Verdict:
    shown, run = message.as_json(), trio.to_thread.run_sync
    return read_verdict(await run(function, shown, abandon_on_cancel=True, limiter=threads))


# Those that need no code: each returns the verdict on a message.

Random: TypeAlias = Callable[[], float]
"""Returns a number from 0 to 1."""


def approve(message: InterceptedMessage) -> Verdict:
    """Have the client's user asked whether a request may go to the server."""
    what = f"Allow {message.method}"
    if (target := target_in(message.params)) is not None:
        what = f"{what} {_shown(target)}"
    if (arguments := message.params.get("arguments")) is not None:
        what = f"{what} with {_shown(encode(decode_any(arguments)).decode())}"
    return Ask(f"{what}?")


def _shown(text: str) -> str:
    """Return a model's text for a question to a person, in which it must not hide or reorder anything."""
    hidden = len(text) - SHOWN_CHARACTERS
    return printable(text[:SHOWN_CHARACTERS]) + (f"… ({hidden} more characters)" if hidden > 0 else "")


def hold(_message: InterceptedMessage) -> Verdict:
    """Have a person asked at the admin page."""
    return Hold()


def redact(rules: RuleSet, message: InterceptedMessage) -> Verdict:
    """Replace what the rules of captures find. Raises ValueError for malformed JSON.

    What has a secret in its name or URI is refused, and left out of lists. What a peer only sends back stays,
    such as a cursor. A question whose key is the name of a secret stays one, and an answer to it is refused.
    """
    outcome = message.outcome
    if outcome is None:
        member, body = "params", raw(message.params)
    elif isinstance(outcome, RpcError):
        member, body = "error", raw(error_body(outcome))
    else:
        member, body = "result", raw(outcome)
    # Around it stands what is around it in a message, as paths begin there.
    data, count = rules.redact(message.method, encode({member: body}))
    if not count:
        return PASS
    former, after = message.as_json()[member], decode_any(data)[member]
    for key in after.keys() & FIXED.get(message.on, frozenset()):
        if key in _NAMING and after[key] != former[key]:
            return Refuse(f"its `{key}` contains a secret")
        after[key] = former[key]
    for key in _replaced(after.get(RESPONSES)):
        return Refuse(f"the answer to `{key}` contains a secret")
    for key in _replaced(questions := after.get("inputRequests")):
        questions[key] = decode_any(rules.redact(m.ELICIT, encode(former["inputRequests"][key]))[0])
    if member == "result" and message.method in m.PAGED:
        items, named = m.PAGED[message.method].items, NAMED_BY[message.method]
        pairs = zip(former[items], after[items], strict=False)
        after[items] = [new for old, new in pairs if isinstance(new, dict) and new[named] == old[named]]
    return PASS if after == former else Change(**{member: after})


def _replaced(members: Any) -> list[str]:
    """Return the keys of the questions or answers that were replaced by a marker as a whole."""
    return (
        [key for key, value in members.items() if isinstance(value, str)] if isinstance(members, dict) else []
    )


def limit_size(most: int, message: InterceptedMessage) -> Verdict:
    """Refuse a message of more than `most` bytes."""
    what = "params" if message.outcome is None else "answer"
    return Refuse(f"the {what} has more than {most} bytes") if message.size > most else PASS


async def delay(seconds: float, probability: float, random: Random, _message: InterceptedMessage) -> Verdict:
    """Delay some exchanges, to test host apps."""
    if random() < probability:
        await trio.sleep(seconds)
    return PASS


def fail(probability: float, random: Random, _message: InterceptedMessage) -> Verdict:
    """Refuse some exchanges, to test host apps."""
    return Refuse("it fails on purpose") if random() < probability else PASS
