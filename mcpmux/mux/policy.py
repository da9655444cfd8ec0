"""Who may use what. Pure, and immutable: other rules are another Policy.

The law

    A use is allowed when at least one `allow` rule fits it and no `deny` rule does.

The order of rules means nothing. Without any rules there is no Policy (None) and everything is allowed; with
one rule whatever no rule allows is denied.

  * A rule fits when each thing that it names fits: a principal's name, scopes (all of them), the upstream,
    the method, the target. What it does not name fits. A rule that names principals fits no unknown client.
  * The target is a URI or name as the upstream itself has it. A URI can be written in many ways (see
    `spelling`): an `allow` fits when its glob fits every reading of the URI, a `deny` when it fits any.
  * What is unknown of a use counts against it: an `allow` that names targets does not fit a use without a
    known target, a `deny` does, whatever targets it names.

Lists follow. They show an item exactly when it may be used: a resource that may be read, a tool that may be
called, a prompt that may be got. A template is shown unless no URI that it can stand for may be read, as far
as its literal text tells (`may_use_template`): whoever may read a URI sees each template that it comes from.
Completions tell what exists, so a template's are given only when whatever it stands for is allowed
(`may_complete`). A task belongs to the use of its tool.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from mcpmux.config import AccessRule
from mcpmux.mux.pattern import Glob, matches, may_meet, parse_glob, template_glob
from mcpmux.mux.spelling import STAR, Target, TargetGlob
from mcpmux.protocol import method as m
from mcpmux.protocol.principal import Principal

USES: Final = {
    "read": m.RESOURCES_READ,
    "subscribe": m.RESOURCES_SUBSCRIBE,
    "call": m.TOOLS_CALL,
    "get": m.PROMPTS_GET,
    "complete": m.COMPLETE,
}
"""What rules call a use → its method."""

ANY_OTHER: Final = "*"
"""Stands for every method that mcpmux does not know: rules about all methods fit it."""

NO_RULE: Final = "access"
"""What refuses when no rule allows."""

USED_BY: Final = {
    m.RESOURCES_LIST: m.RESOURCES_READ,
    m.TEMPLATES_LIST: m.RESOURCES_READ,
    m.TOOLS_LIST: m.TOOLS_CALL,
    m.PROMPTS_LIST: m.PROMPTS_GET,
    m.TASKS_LIST: m.TOOLS_CALL,
}
"""List method → what its items are used by."""

CAPABILITY_USES: Final = {
    "resources": (m.RESOURCES_READ, m.RESOURCES_SUBSCRIBE),
    "tools": (m.TOOLS_CALL,),
    "tasks": (m.TOOLS_CALL,),
    "prompts": (m.PROMPTS_GET,),
    "completions": (m.COMPLETE,),
}
"""Capability → what it is for."""

NAMES_URIS: Final = frozenset({m.RESOURCES_READ, m.RESOURCES_SUBSCRIBE})

MEMORY_LIMIT: Final = 4096  # (principal, upstream, method) whose rules are remembered


class Rule:
    """A rule, ready to be applied. It allows if `allow`, else denies; `is_about_all`: it names no target."""

    def __init__(self, rule: AccessRule, place: str) -> None:
        """`place`: in the configuration, the name of a rule without one."""
        self.name = rule.name or place
        self.allow = rule.effect == "allow"
        self._principals = tuple(map(parse_glob, rule.principals))
        self._scopes = frozenset(rule.scopes)
        self._upstreams = tuple(map(parse_glob, rule.upstreams))
        self._methods = tuple(parse_glob(USES.get(name, name)) for name in rule.methods)
        self._targets = tuple(map(TargetGlob, rule.targets))
        self.is_about_all = not self._targets

    def misfits(self, principal: Principal, upstream: str, method: str) -> list[str]:
        """Which of its members do not fit, whatever the target; none when it is about this use."""
        fits = {
            "principals": not self._principals
            or (bool(principal) and _fits(self._principals, principal.name)),
            "scopes": self._scopes <= principal.scopes,
            "upstreams": _fits(self._upstreams, upstream),
            "methods": _fits(self._methods, method),
        }
        return [member for member, is_fit in fits.items() if not is_fit]

    # Of a rule that fits otherwise

    def fits(self, target: Target | None) -> bool:
        """Whether it is about the target: an `allow` for sure, a `deny` perhaps."""
        if self.is_about_all or target is None:
            return self.is_about_all or not self.allow
        return any(target.is_in(glob) if self.allow else target.may_be_in(glob) for glob in self._targets)

    def may_allow(self, glob: Glob) -> bool:
        """Whether it may fit something that `glob` stands for, as that is written."""
        return self.is_about_all or any(may_meet(each.glob, glob) for each in self._targets)

    def covers(self, glob: Glob) -> bool:
        """Whether it fits everything that `glob` stands for, as that is written."""
        # A mark that no literal holds stands for each star: only a star can take it in.
        return self.is_about_all or any(matches(each.glob, STAR.join(glob)) for each in self._targets)


def _fits(globs: tuple[Glob, ...], text: str) -> bool:
    return not globs or any(matches(glob, text) for glob in globs)


class Decision(NamedTuple):
    """Whether a use is allowed, and the name of the rule that decided it."""

    allowed: bool
    rule: str


class Rules(Protocol):
    """What may be used, by whom. Policy says what each does."""

    def decide(
        self, principal: Principal, upstream: str, method: str, target: str | Target | None
    ) -> Decision: ...
    def may_use(self, principal: Principal, upstream: str, *methods: str) -> bool: ...
    def shows(self, principal: Principal, upstream: str, list_method: str, item: str | None) -> bool: ...


def sees(rules: Rules, principal: Principal, upstream: str) -> bool:
    """Whether `principal` may use an upstream for anything, so that it may know that there is one."""
    return rules.may_use(principal, upstream, *USES.values(), ANY_OTHER)


def offers(rules: Rules, principal: Principal, upstream: str, capability: str) -> bool:
    """Whether a capability of an upstream is of any use to `principal`."""
    uses = CAPABILITY_USES.get(capability)
    return sees(rules, principal, upstream) if uses is None else rules.may_use(principal, upstream, *uses)


class Policy:
    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self._relevant = lru_cache(MEMORY_LIMIT)(self._find_relevant)

    def _find_relevant(
        self, principal: Principal, upstream: str, method: str
    ) -> tuple[list[Rule], list[Rule]]:
        """(those that allow, those that deny) of the rules that fit but for the target."""
        fitting = [rule for rule in self.rules if not rule.misfits(principal, upstream, method)]
        return [rule for rule in fitting if rule.allow], [rule for rule in fitting if not rule.allow]

    def decide(
        self, principal: Principal, upstream: str, method: str, target: str | Target | None
    ) -> Decision:
        """Whether `principal` may do `method` with `target`, in the upstream's own words; None: unknown."""
        allows, denies = self._relevant(principal, upstream, method)
        if not allows and not isinstance(target, Target):
            return Decision(False, NO_RULE)
        asked = Target(target, is_uri=method in NAMES_URIS) if isinstance(target, str) else target
        for rule in (*denies, *allows):
            if rule.fits(asked):
                return Decision(rule.allow, rule.name)
        return Decision(False, NO_RULE)

    def allows(self, principal: Principal, upstream: str, method: str, target: str | None) -> bool:
        return self.decide(principal, upstream, method, target).allowed

    def may_use(self, principal: Principal, upstream: str, *methods: str) -> bool:
        """Whether some target may be allowed for one of `methods`."""
        for method in methods:
            allows, denies = self._relevant(principal, upstream, method)
            if allows and not any(rule.is_about_all for rule in denies):
                return True
        return False

    def may_use_template(self, principal: Principal, upstream: str, template: str) -> bool:
        """Whether a URI that a template can stand for may be allowed to be read."""
        allows, denies = self._relevant(principal, upstream, m.RESOURCES_READ)
        glob = template_glob(template)
        return any(rule.may_allow(glob) for rule in allows) and not any(rule.covers(glob) for rule in denies)

    def may_complete(self, principal: Principal, upstream: str, template: str) -> Decision:
        """Whether everything that a template can stand for is allowed to be told."""
        return self.decide(principal, upstream, m.COMPLETE, Target(template, is_template=True))

    def shows(self, principal: Principal, upstream: str, list_method: str, item: str | None) -> bool:
        """Whether a list shows an item, named by its URI, template or name; None: it has none."""
        if list_method == m.TEMPLATES_LIST and item is not None:
            return self.may_use_template(principal, upstream, item)
        return self.allows(principal, upstream, USED_BY[list_method], item)


def policy_of(rules: Collection[AccessRule]) -> Policy | None:
    """The policy that a configuration says; None when it has no rules."""
    if not rules:
        return None
    return Policy([Rule(rule, f"access[{number}]") for number, rule in enumerate(rules)])


class Reason(NamedTuple):
    """What one rule says of a use. `misfits`: which of its members do not fit; without any it fits."""

    rule: str
    effect: str
    misfits: tuple[str, ...]


class Explanation(NamedTuple):
    """The decision about one use, and what every rule says of it, for people.

    `readings`: what a server may take the target for, besides what it looks like.
    """

    decision: Decision
    reasons: tuple[Reason, ...]
    readings: tuple[str, ...]


def explain(
    policy: Policy,
    principal: Principal,
    upstream: str,
    method: str,
    target: str,
    *,
    is_template: bool = False,
) -> Explanation:
    """The decision about a use, with the reasons; `target` in the upstream's own words."""
    decision = (
        policy.may_complete(principal, upstream, target)
        if is_template
        else policy.decide(principal, upstream, method, target)
    )
    asked = Target(target, is_uri=method in NAMES_URIS)
    meant = Target(target, is_template=True) if is_template else asked
    reasons = []
    for rule in policy.rules:
        misfits = rule.misfits(principal, upstream, method) + ([] if rule.fits(meant) else ["targets"])
        reasons.append(Reason(rule.name, "allow" if rule.allow else "deny", tuple(misfits)))
    others = sorted({text for _, text in asked.readings} - {target})
    return Explanation(decision, tuple(reasons), tuple(others))
