"""The interceptors of a mux: make those of a configuration, put them into force, and try them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, cast

from mcpmux.channels.tap import Tap
from mcpmux.config import Config, Intercept, intercept
from mcpmux.config.report import InvalidValue
from mcpmux.errors import ConfigError, Problem
from mcpmux.interceptors.function import (
    Function,
    approve,
    delay,
    fail,
    find_function,
    hold,
    interceptor_of,
    is_async,
    limit_size,
    redact,
)
from mcpmux.interceptors.mcp_server import McpServer
from mcpmux.mux.intercept import Ask, Hold, InterceptedMessage, InterceptorRule, Pass, Refuse, Verdict
from mcpmux.mux.naming import Naming, is_among
from mcpmux.mux.pattern import parse_glob
from mcpmux.mux.view import hints_of
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import raw
from mcpmux.runtime.holding import HeldExchanges
from mcpmux.runtime.interception import (
    Interception,
    Interceptor,
    Step,
    is_failure,
    reason_of,
    verdict_in_time,
)
from mcpmux.runtime.router import Router
from mcpmux.traffic.redaction.redactor import RuleSet
from mcpmux.upstreams.upstream import Upstream

Functions = Mapping[str, Function]
FindUpstream = Callable[[str, Call], Upstream]
NO_FUNCTIONS: Final[Functions] = MappingProxyType({})


def check_interceptors(config: Config, functions: Functions = NO_FUNCTIONS) -> None:
    """Import the functions of a configuration. Raises ConfigError with every one that cannot be."""
    # All of them before anything is started, as other mistakes of a configuration.
    problems = []
    for number, settings in enumerate(config.intercept):
        if settings.python is not None:
            try:
                function = find_function(settings.python, functions)
            except InvalidValue as mistake:
                problems.append(Problem(("intercept", number, "python"), str(mistake)))
            else:
                if settings.in_thread and is_async(function):
                    place = "intercept", number, "in_thread"
                    problems.append(Problem(place, "an async function needs no thread"))
    if problems:
        raise ConfigError(problems)


class Interceptors:
    """The interceptors in force at a router: those of a configuration, then that of the admin page.

    `holding`: the exchanges that wait for a person.
    """

    def __init__(
        self, router: Router, tap: Tap | None, max_bytes: int, find: FindUpstream, functions: Functions
    ) -> None:
        """`max_bytes`: of what a change makes. `functions`: those that can be named besides importable ones.

        `find` returns the session with an upstream, by its name, for a call.
        """
        self.holding = HeldExchanges()
        self._router, self._tap, self._max_bytes = router, tap, max_bytes
        self._find, self._functions = find, functions
        self._steps: Sequence[Step] = ()
        self._hold: Step | None = None

    def __repr__(self) -> str:
        return f"<Interceptors {self._router.interception!r}, {len(self.holding.held)} held>"

    def make(self, config: Config, naming: Naming) -> list[Step]:
        """Return the interceptors in their order. Raises ConfigError as `check_interceptors`."""
        check_interceptors(config, self._functions)
        return [
            Step(
                InterceptorRule(settings, f"intercept[{number}]", naming),
                _make(settings, config, self._find, self._functions),
            )
            for number, settings in enumerate(config.intercept)
        ]

    def adopt(self, steps: Sequence[Step]) -> None:
        """Put interceptors of a configuration into force."""
        self._steps = steps
        router, steps = self._router, [*steps, *filter(None, [self._hold])]
        # Also without any, if there were some: calls may wait there for consent.
        if steps or router.interception is not None:
            router.interception = Interception(
                steps,
                router.access,
                router.round_trips,
                self.holding,
                self._tap,
                self._max_bytes,
                router.abandon,
                router.interception,
            )

    def hold_by(self, step: Step | None) -> None:
        """Have another interceptor hold what a person wants held, None for none."""
        # It comes last, so that a person sees what the others have made of the message.
        self._hold = step
        self.adopt(self._steps)


def _make(settings: Intercept, config: Config, find: FindUpstream, functions: Functions) -> Interceptor:
    if settings.python is not None:
        return interceptor_of(find_function(settings.python, functions), in_thread=settings.in_thread)
    # Imported here, with the client for HTTP: most configurations have none.
    if settings.webhook is not None:
        from mcpmux.interceptors.webhook import Webhook

        return Interceptor(Webhook(settings.webhook, settings.secret, time.time).judge, waits=True)
    if settings.server is not None:
        return Interceptor(McpServer(partial(find, settings.server), time.time).judge, waits=True)
    match settings.builtin:
        case intercept.APPROVE:
            return Interceptor(approve)
        case intercept.HOLD:
            return Interceptor(hold)
        case intercept.REDACT:
            return Interceptor(partial(redact, RuleSet(config.redaction)))
        case intercept.LIMIT_SIZE:
            return Interceptor(partial(limit_size, settings.max_bytes or 0))
        case intercept.DELAY:
            pause = settings.seconds or 0.0, settings.probability, random.random
            return Interceptor(partial(delay, *pause), waits=True)
        case _:
            return Interceptor(partial(fail, settings.probability, random.random))


async def try_each(config: Config, steps: Sequence[Step]) -> dict[str, str]:
    """Return what each interceptor does with a made-up exchange that it is for, in words, by name."""
    words = {}
    for rule, interceptor in steps:
        message = _made_up(rule.settings, config)
        try:
            if interceptor.waits:
                verdict = await verdict_in_time(interceptor, rule.settings, message)
            else:
                verdict = cast(Verdict, interceptor.judge(message))
        except BaseException as problem:  # a wall, as in an exchange
            if not is_failure(problem):
                raise
            done = f"fails: {reason_of(problem)}"
        else:
            match verdict:
                case Pass():
                    done = "lets it pass"
                case Refuse(reason):
                    done = f"refuses it: {reason}"
                case Ask(question):
                    done = f"asks the user: {question}"
                case Hold():
                    done = "holds it for a person"
                case _:
                    done = "changes it"
        words[rule.name] = f"{message.method}, {message.on}: {done}"
    return words


def _made_up(settings: Intercept, config: Config) -> InterceptedMessage:
    """Return a message of an exchange that everything fits, as far as its table names it."""
    globs = list(map(parse_glob, settings.upstreams))
    upstream = next(name for name in (*config.enabled, None) if name is None or is_among(globs, name))
    method = next((method for method in settings.methods if "*" not in method), m.TOOLS_CALL)
    name = next((name for name in settings.names if "*" not in name), "example")
    hints = {**hints_of(None), **settings.annotations} if method == m.TOOLS_CALL else None
    named = {"uri": raw(name)} if method == m.RESOURCES_READ else {"name": raw(name), "arguments": raw({})}
    stage = settings.stages[0]
    outcome = {"content": raw([{"type": "text", "text": "example"}])} if stage == intercept.RESULT else None
    return InterceptedMessage(stage, Call(method, named, {}), upstream, name, hints, outcome)
