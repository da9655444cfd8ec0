"""Interceptors that are functions of Python, sync or async on trio.

A function gets the message as plain values and returns the verdict as such.
A sync function runs in the event loop: all of mcpmux waits for it, and its timeout does not end it. One that
waits for anything is async, or is called in a thread. A late one in a thread runs on, without an effect.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from typing import Any, Final, TypeAlias, cast

import trio

from mcpmux.config.report import InvalidValue
from mcpmux.mux.intercept import InterceptedMessage, Verdict, read_verdict

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


class FunctionInterceptor:
    """An interceptor that is a function. `in_thread`: for a sync one that waits."""

    def __init__(self, function: Function, *, in_thread: bool = False) -> None:
        self._function = function
        self.waits = in_thread or is_async(function)
        # Late calls count until they end: they must not take all threads of trio.
        self._threads = trio.CapacityLimiter(THREADS) if in_thread else None

    def judge(self, message: InterceptedMessage) -> Verdict | Awaitable[Verdict]:
        """Return the function's verdict. Raises BadVerdict, and what the function raises."""
        return self._wait(message) if self.waits else read_verdict(self._function(message.as_json()))

    async def _wait(self, message: InterceptedMessage) -> Verdict:
        function, shown, threads = self._function, message.as_json(), self._threads
        if threads is None:
            return read_verdict(await function(shown))
        run = trio.to_thread.run_sync
        return read_verdict(await run(function, shown, abandon_on_cancel=True, limiter=threads))
