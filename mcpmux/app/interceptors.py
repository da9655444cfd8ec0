"""Make the interceptors of a configuration."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from mcpmux.config import Config, Intercept
from mcpmux.config.report import InvalidValue
from mcpmux.errors import ConfigError, Problem
from mcpmux.interceptors import builtin
from mcpmux.interceptors.function import Function, FunctionInterceptor, find_function
from mcpmux.mux.intercept import Rule
from mcpmux.mux.naming import Naming
from mcpmux.runtime.interception import Interceptor, Step

Functions = Mapping[str, Function]
NO_FUNCTIONS: Final[Functions] = MappingProxyType({})


def check_interceptors(config: Config, functions: Functions = NO_FUNCTIONS) -> None:
    """Import the functions of a configuration. Raises ConfigError with every one that cannot be."""
    problems = []
    for number, settings in enumerate(config.intercept):
        if settings.python is not None:
            try:
                find_function(settings.python, functions)
            except InvalidValue as mistake:
                problems.append(Problem(("intercept", number, "python"), str(mistake)))
    if problems:
        raise ConfigError(problems)


def make_steps(config: Config, naming: Naming, functions: Functions = NO_FUNCTIONS) -> list[Step]:
    """Return the interceptors in their order. Raises ConfigError as `check_interceptors`."""
    check_interceptors(config, functions)
    return [
        Step(Rule(settings, f"intercept[{number}]", naming), _make(settings, config, functions))
        for number, settings in enumerate(config.intercept)
    ]


def _make(settings: Intercept, config: Config, functions: Functions) -> Interceptor:
    if settings.python is not None:
        return FunctionInterceptor(find_function(settings.python, functions))
    if settings.webhook is not None:
        from mcpmux.interceptors.webhook import Webhook

        return Webhook(settings.webhook, settings.secret, time.time)
    share = settings.probability
    makers: dict[str | None, Callable[[], Interceptor]] = {
        "approve": builtin.Approve,
        "hold": builtin.HoldBack,
        "redact": lambda: builtin.Redact(config.redaction),
        "limit_size": lambda: builtin.LimitSize(settings.max_bytes or 0),
        "delay": lambda: builtin.Delay(settings.seconds or 0.0, share, random.random),
        "fail": lambda: builtin.Fail(share, random.random),
    }
    return makers[settings.builtin]()
