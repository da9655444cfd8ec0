"""Interceptors: what steps into an exchange, for which ones. Settings only.

A table names one interceptor by its kind, and selects exchanges: those that everything fits that it names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final

from attrs import field, frozen

from mcpmux.config.auth import PRINCIPALS, RULE_NAME, TARGETS, UPSTREAMS
from mcpmux.config.expansion import Secret
from mcpmux.config.report import InvalidValue
from mcpmux.config.scalars import (
    HEADER_NAME,
    HEADER_VALUE,
    HTTP_URL,
    KEY_TEXT,
    Choice,
    Flag,
    Fraction,
    Seconds,
    Size,
    Text,
    read_only,
)
from mcpmux.config.views import HINTS, UPSTREAM_NAME

REQUEST: Final = "request"
RESULT: Final = "result"
NOTIFICATION: Final = "notification"

APPROVE: Final = "approve"
HOLD: Final = "hold"
REDACT: Final = "redact"
LIMIT_SIZE: Final = "limit_size"
DELAY: Final = "delay"
FAIL: Final = "fail"
BUILTINS: Final = (APPROVE, HOLD, REDACT, LIMIT_SIZE, DELAY, FAIL)
_KINDS: Final = ("python", "webhook", "server", "builtin")
_REQUEST_ONLY: Final = frozenset({APPROVE, DELAY, FAIL})
_NEVER_PASSED: Final = frozenset({APPROVE, HOLD, REDACT})
SUBSCRIBE: Final = "resources/subscribe"
_NEVER_SEEN: Final = frozenset(
    {
        "initialize",
        "server/discover",
        "ping",
        "logging/setLevel",
        "resources/unsubscribe",
        "subscriptions/listen",
    }
)
"""Requests that mcpmux answers itself. Each URI of a listen is judged as a SUBSCRIBE."""

FUNCTION: Final = Text(
    "a Python function as MODULE:FUNCTION, or the name of one of the program's",
    r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*(?::[A-Za-z_][A-Za-z0-9_]*)?",
)
METHOD_GLOB: Final = Text(
    'a method such as "tools/call", in which * stands for any text', r"[A-Za-z0-9_./*-]+"
)
VIEW_GLOB: Final = Text("the name of a view, in which * stands for any text", r"[a-z0-9.*-]*")


@frozen(kw_only=True)
class Intercept:
    """One interceptor, and the exchanges that it is for."""

    name: Annotated[str, RULE_NAME] | None = None
    """Its name in errors, the audit log and metrics. Default: its position, such as `intercept[0]`."""
    python: Annotated[str, FUNCTION] | None = None
    """A function of Python, sync or async (trio), as MODULE:FUNCTION. It gets the message as a dict. Without
    a module it is one that a program has given to `mcpmux.library`.
    """
    in_thread: Annotated[bool, Flag()] = False
    """Call the function in a thread, as it waits for something. Of such calls 8 run at once, others wait."""
    webhook: Annotated[str, HTTP_URL] | None = None
    """A URL that gets the message by POST, and answers with the verdict. http:// is for private addresses."""
    secret: Annotated[Secret, KEY_TEXT] | None = None
    """Key that signs what the webhook gets (HMAC-SHA256)."""
    server: Annotated[str, UPSTREAM_NAME] | None = None
    """Name of an upstream that hosts interceptors by the draft of MCP. Experimental: the draft may change."""
    builtin: Annotated[str, Choice(BUILTINS)] | None = None
    """`approve` asks the client first. `hold` waits for a person at the admin page. `redact` replaces what
    `[redaction]` finds. `limit_size` refuses more than `max_bytes`. `delay` and `fail` test host apps.
    """
    methods: tuple[Annotated[str, METHOD_GLOB], ...] = ()
    """Methods of the requests. * stands for any text. Default: all."""
    upstreams: tuple[Annotated[str, UPSTREAMS], ...] = ()
    """Names of upstreams. * stands for any text. Default: all."""
    names: tuple[Annotated[str, TARGETS], ...] = ()
    """Tools, prompts and URIs, as the upstream has them or as clients see them. * stands for any text.
    Default: all.
    """
    annotations: Mapping[Annotated[str, Choice(HINTS)], Annotated[bool, Flag()]] = field(
        factory=dict, converter=read_only
    )
    """Annotations that a tool must have, such as `destructiveHint = true`; one without it may be destructive.
    Default: all.
    """
    views: tuple[Annotated[str, VIEW_GLOB], ...] = ()
    """Names of views. * stands for any text. Default: all."""
    principals: tuple[Annotated[str, PRINCIPALS], ...] = ()
    """Names of principals. * stands for any text. Default: all clients."""
    on: tuple[Annotated[str, Choice((REQUEST, RESULT, NOTIFICATION))], ...] = ()
    """When: `request` before the server gets it, `result` before the client gets the answer or the error,
    `notification` for progress and log messages, which can only be dropped. Default: request and result;
    only the request for `approve`, `hold`, `delay` and `fail`.
    """
    timeout: Seconds = 5.0
    """Time for a verdict. A person has `answer_timeout`."""
    on_failure: Annotated[str, Choice(("refuse", "pass"))] = "refuse"
    """What happens to the exchange if the interceptor fails, is late, or its verdict makes no sense."""
    refuse_as: Annotated[str, Choice(("error", "tool_error"))] = "error"
    """What a refused tool call is answered with: an error, or a result with `isError`, which models read."""
    unanswered: Annotated[str, Choice(("refuse", "hold"))] = "refuse"
    """If the client cannot be asked: refuse, or hold for a person at the admin page."""
    answer_timeout: Seconds = 300.0
    """Time for a person at the admin page. Then the exchange is refused, or goes on as `at_timeout` says."""
    at_timeout: Annotated[str, Choice(("refuse", "pass"))] = "refuse"
    """What happens to a held exchange at the end of `answer_timeout`."""
    max_bytes: Annotated[int, Size(1)] | None = None
    """Size of `params` or of the result, for `limit_size`."""
    seconds: Seconds | None = None
    """The pause of `delay`."""
    probability: Annotated[float, Fraction()] = 1.0
    """Share of exchanges that `delay` and `fail` are for."""

    def __attrs_post_init__(self) -> None:
        kinds = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            got = " and ".join(f"`{kind}`" for kind in kinds) or "none"
            raise InvalidValue(f"expected one of `python`, `webhook`, `server` and `builtin`, got {got}")
        if self.secret is not None and self.webhook is None:
            raise InvalidValue("`secret` goes with `webhook`")
        if never_seen := next(filter(_NEVER_SEEN.__contains__, self.methods), None):
            hint = f"; a listen is judged as `{SUBSCRIBE}` of each URI" if "listen" in never_seen else ""
            raise InvalidValue(f"no interceptor sees `{never_seen}`{hint}")
        if self.methods == (SUBSCRIBE,) and REQUEST not in self.stages:
            raise InvalidValue(f"`{SUBSCRIBE}` has no result; add `request` to `on`")
        if self.in_thread and self.python is None:
            raise InvalidValue("`in_thread` goes with `python`")
        for key, builtin in (("max_bytes", LIMIT_SIZE), ("seconds", DELAY)):
            if (getattr(self, key) is not None) != (self.builtin == builtin):
                raise InvalidValue(f'`{key}` goes with `builtin` "{builtin}", and with no other')
        if self.builtin in _NEVER_PASSED and self.on_failure == "pass":
            raise InvalidValue(f'`on_failure` of "{self.builtin}" is "refuse", or it would protect nothing')
        if self.builtin in _REQUEST_ONLY and set(self.on) - {REQUEST}:
            raise InvalidValue(f'"{self.builtin}" is for requests; remove `on`')

    @property
    def stages(self) -> tuple[str, ...]:
        """When it steps in."""
        is_early = self.builtin in _REQUEST_ONLY or self.builtin == HOLD
        return self.on or ((REQUEST,) if is_early else (REQUEST, RESULT))

    @property
    def patience(self) -> float:
        """The time for a verdict. `delay` takes its own time, too."""
        return self.timeout + (self.seconds or 0.0)

    @property
    def reads(self) -> bool:
        """Whether its verdict may depend on the annotations of the tool."""
        return self.builtin is None


def is_header(name: str, value: str) -> bool:
    """Return whether these can be sent as an HTTP header."""
    return bool(re.fullmatch(HEADER_NAME.pattern, name) and re.fullmatch(HEADER_VALUE.pattern, value))


def find_clashing_names(intercepts: Sequence[Intercept | None]) -> Iterator[tuple[int, str]]:
    """Yield (number, sentence) for each interceptor with the name of an earlier one."""
    names: set[str] = set()
    for number, intercept in enumerate(intercepts):
        if intercept is not None and intercept.name is not None:
            if intercept.name in names:
                yield number, "another interceptor has this name"
            names.add(intercept.name)
