"""Interceptors that are functions of Python, sync or async on trio.

A function gets the message as plain values and returns the verdict as such.
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
from mcpmux.mux.intercept import InterceptedMessage, Verdict, read_verdict
from mcpmux.runtime.interception import Interceptor

THREADS: Final = 8  # calls of one function at once

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
