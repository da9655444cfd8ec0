"""Interceptors that are functions of Python, sync or async on trio.

A function gets the message as plain values and returns the verdict as such, see `mcpmux/mux/intercept`:

    def check(message):
        if message["params"]["arguments"].get("path", "").startswith("/etc"):
            return {"verdict": "refuse", "reason": "not there"}

A sync function runs in the event loop: all of mcpmux waits for it, and its timeout does not end it. Write one
that waits for anything as an async function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeAlias, cast

from mcpmux.config.report import InvalidValue
from mcpmux.mux.intercept import InterceptedMessage, Verdict, read_verdict

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
    except Exception as error:  # a module may do anything when it is imported
        raise InvalidValue(f"cannot import {module}: {error!r}") from None
    if not callable(function):
        raise InvalidValue(f"{module} has no function {attribute}")
    return cast(Function, function)


class FunctionInterceptor:
    """An interceptor that is a function."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self.waits = inspect.iscoroutinefunction(function)

    async def judge(self, message: InterceptedMessage) -> Verdict:
        """Return the function's verdict. Raises BadVerdict, and what the function raises."""
        verdict = self._function(message.as_json())
        return read_verdict(await verdict if self.waits else verdict)
