"""Who may use what: rules that allow and rules that deny. What they mean together is told in `mux/policy`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Annotated, TypeAlias
from urllib.parse import unquote

from attrs import field, frozen

from mcpmux.config.report import Unfit, closest, unfit
from mcpmux.config.scalars import NAME_PATTERN, Choice, Text, about

USES = ("read", "subscribe", "call", "get", "complete")
"""What is done: with resources (read, subscribe), tools (call), prompts (get); completions (complete)."""

_METHOD = r"[A-Za-z][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_.*-]+)+|\*"
_LIST = re.compile(r"(?:resources|resources/templates|tools|prompts|tasks)/list|list")
_TASK = re.compile(r"tasks(?:/.*)?")
_DOT_SEGMENT = re.compile(r"(?:^|[/\\])\.{1,2}(?:[/\\?#]|$)")
_ROUNDS = 3  # of decoding, as many as when a rule is applied


class UseName(Text, frozen=True):
    """What may be done: one of USES, or a method, in which * stands for any text."""

    expected: str = 'one of "read", "subscribe", "call", "get", "complete", or a method such as "tools/call"'
    pattern: str = "|".join(USES) + "|" + _METHOD

    def read(self, value: object) -> str:
        if not isinstance(value, str):
            raise unfit("text", value)
        if _LIST.fullmatch(value):
            raise Unfit('lists show what may be used, so they need no rule: name "read", "call" or "get"')
        if _TASK.fullmatch(value):
            raise Unfit('a task is allowed to whoever may call its tool: name "call"')
        close = None if value in USES else closest(value, USES, 0.7)
        if close is not None:
            raise Unfit(f'expected {self.expected}; did you mean "{close}"?')
        name: str = super().read(value)
        return name


class TargetGlob(Text, frozen=True):
    """A URI or name as the upstream has it; * stands for any text."""

    expected: str = "a URI or name as the upstream itself has it, in which * stands for any text"
    pattern: str = r"[^\x00-\x1f\x7f\ue000]+"

    def read(self, value: object) -> str:
        glob: str = super().read(value)
        plain = glob
        for _ in range(_ROUNDS):
            plain = unquote(plain)
        if ":" in plain and _DOT_SEGMENT.search(plain):
            raise Unfit("expected a path without `.` and `..` in it: write where it leads to")
        return glob


PrincipalGlob: TypeAlias = Annotated[
    str, Text("the name of a principal, in which * stands for any text", r"[^\x00-\x20\x7f]{1,512}")
]
ScopeName: TypeAlias = Annotated[
    str, Text("a scope: printable text without spaces and quotes", r"[\x21\x23-\x5b\x5d-\x7e]{1,256}")
]
UpstreamGlob: TypeAlias = Annotated[
    str, Text("the name of an upstream, in which * stands for any text", r"[a-z*][a-z0-9.*-]{0,63}")
]
RuleName: TypeAlias = Annotated[str, Text("a name of letters, digits, and . _ -", r"[A-Za-z0-9._-]{1,64}")]


@frozen(kw_only=True)
class AccessRule:
    """One rule. What it does not name, it does not ask for."""

    effect: Annotated[str, Choice(("allow", "deny"))] = field(
        metadata=about("`deny` counts more than any `allow`, wherever it stands.")
    )
    name: RuleName | None = field(
        default=None, metadata=about("What the audit log calls it; default: its place, as `access[0]`.")
    )
    principals: tuple[PrincipalGlob, ...] = field(
        default=(),
        metadata=about(
            'Who: names, in which * stands for any text. Default: everybody; "*": whoever showed who it is.'
        ),
    )
    scopes: tuple[ScopeName, ...] = field(
        default=(), metadata=about("Scopes that the principal must have, all of them.")
    )
    upstreams: tuple[UpstreamGlob, ...] = field(
        default=(), metadata=about("Names of upstreams; * stands for any text. Default: all.")
    )
    methods: tuple[Annotated[str, UseName()], ...] = field(
        default=(),
        metadata=about(
            "What is done: `read`, `subscribe`, `call`, `get`, `complete`, or methods by name. Default: all."
        ),
    )
    targets: tuple[Annotated[str, TargetGlob()], ...] = field(
        default=(),
        metadata=about(
            "URIs and names as the upstream itself has them, without prefix; * stands for any text. "
            "Default: all."
        ),
    )

    def __attrs_post_init__(self) -> None:
        """Raises Unfit for a rule that allows everything to everybody, which is what no rule does."""
        asks = self.principals or self.scopes or self.upstreams or self.methods or self.targets
        if self.effect == "deny" and not asks:
            raise Unfit("expected at least one of `principals`, `scopes`, `upstreams`, `methods`, `targets`")


def find_unknown_upstreams(rules: Sequence[AccessRule], names: Collection[str]) -> Iterator[tuple[int, str]]:
    """Every (number of the rule, mistake): names that no upstream has. A misspelt `deny` denies nothing."""
    for number, rule in enumerate(rules):
        for name in rule.upstreams:
            if "*" in name or name in names or not re.fullmatch(NAME_PATTERN, name):
                continue
            close = closest(name, names)
            hint = "" if close is None else f"; did you mean `{close}`?"
            yield number, f"`upstreams`: there is no upstream of one of these names{hint}"
