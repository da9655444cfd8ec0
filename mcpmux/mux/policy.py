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
from functools import cached_property
from typing import Final, NamedTuple

from mcpmux.config import AccessRule
from mcpmux.mux.pattern import Glob, matches, may_meet, parse_glob, template_glob
from mcpmux.mux.spelling import STAR, Way, is_clear, read, readings_of, without_tail
from mcpmux.protocol import method as m
from mcpmux.protocol.principal import Principal

# One access rule, ready to be applied, and the target that it is applied to. Pure.

USES: Final = {
    "read": m.RESOURCES_READ,
    "subscribe": m.RESOURCES_SUBSCRIBE,
    "call": m.TOOLS_CALL,
    "get": m.PROMPTS_GET,
    "complete": m.COMPLETE,
}
"""What rules call a use → its method."""


class Target:
    """What a use is about: a URI, which has several readings, or a name, which has one."""

    def __init__(self, text: str, *, is_uri: bool) -> None:
        self.text = text
        self.is_uri = is_uri

    @cached_property
    def readings(self) -> list[tuple[Way | None, str]]:
        """Every way to read it, with what it is then."""
        if not self.is_uri or not self.is_clear:
            return [(None, self.text)]
        return list(dict.fromkeys(readings_of(self.text)))

    @cached_property
    def broadly(self) -> frozenset[str]:
        """Everything that it can be taken for."""
        texts = {text for _, text in self.readings}
        return frozenset(texts | {without_tail(text) for text in texts} if self.is_uri else texts)

    @cached_property
    def is_clear(self) -> bool:
        """Whether all its readings are known."""
        return not self.is_uri or is_clear(self.text)


class Template:
    """A URI template that is to be completed, read in the same ways as URIs."""

    def __init__(self, text: str) -> None:
        self._marked = STAR.join(template_glob(text))
        self.is_clear = is_clear(self._marked)

    @cached_property
    def readings(self) -> list[tuple[Way | None, Glob]]:
        """Every way to read it, with what it then stands for."""
        return [(way, tuple(text.split(STAR))) for way, text in dict.fromkeys(readings_of(self._marked))]


class TargetGlob:
    """A glob for targets, read in the same ways as the URIs that it is held against."""

    def __init__(self, text: str) -> None:
        self.glob = parse_glob(text)
        self._marked = text.replace("*", STAR)
        self._by_way: dict[Way | None, Glob] = {None: self.glob}

    @cached_property
    def _broadly(self) -> frozenset[Glob]:
        """Everything that the glob can be taken for."""
        return frozenset(tuple(text.split(STAR)) for _, text in readings_of(self._marked))

    def _read(self, way: Way | None) -> Glob:
        """The glob in one way; there are few to remember."""
        glob = self._by_way.get(way)
        if glob is None:
            glob = self._by_way[way] = tuple(read(self._marked, way).split(STAR))
        return glob

    def __repr__(self) -> str:
        return f"TargetGlob({'*'.join(self.glob)!r})"

    def is_every(self, target: Target) -> bool:
        """Whether it fits every reading of a target."""
        return target.is_clear and all(matches(self._read(way), text) for way, text in target.readings)

    def covers(self, template: Template) -> bool:
        """Whether it stands for everything that a template stands for, in every reading of both."""
        return template.is_clear and all(_contains(self._read(way), glob) for way, glob in template.readings)

    def meets(self, template: Template) -> bool:
        """Whether it may stand for something that a template stands for, in some reading of either."""
        return not template.is_clear or any(
            may_meet(ours, glob) for _, glob in template.readings for ours in self._broadly
        )

    def is_any(self, target: Target) -> bool:
        """Whether it fits, or may fit, something that the target can be taken for."""
        if not target.is_clear:
            return True
        globs = self._broadly if target.is_uri else (self.glob,)
        return any(matches(glob, text) for text in target.broadly for glob in globs)


class Rule:
    """A rule. `allow`: it allows; else it denies."""

    def __init__(self, rule: AccessRule, name: str) -> None:
        self.name = name
        self.source = rule
        self.allow = rule.effect == "allow"
        self._principals = tuple(map(parse_glob, rule.principals))
        self._scopes = frozenset(rule.scopes)
        self._upstreams = tuple(map(parse_glob, rule.upstreams))
        self._methods = tuple(parse_glob(USES.get(name, name)) for name in rule.methods)
        self._targets = tuple(map(TargetGlob, rule.targets))

    @classmethod
    def of(cls, rule: AccessRule, place: str) -> Rule:
        """The rule that stands at `place` of the configuration."""
        return cls(rule, rule.name or place)

    def __repr__(self) -> str:
        return f"<Rule {self.name}>"

    @property
    def is_about_all(self) -> bool:
        """Whether it names no target."""
        return not self._targets

    def fits(self, principal: Principal, upstream: str, method: str) -> bool:
        """Whether it is about this, whatever the target."""
        return (
            self.fits_principal(principal)
            and self._scopes <= principal.scopes
            and _fits(self._upstreams, upstream)
            and _fits(self._methods, method)
        )

    def fits_principal(self, principal: Principal) -> bool:
        """Whether it names the principal, or nobody."""
        return not self._principals or (bool(principal) and _fits(self._principals, principal.name))

    def misfits(self, principal: Principal, upstream: str, method: str) -> list[str]:
        """Which of its members do not fit, for people."""
        found = [] if self.fits_principal(principal) else ["principals"]
        found += [] if self._scopes <= principal.scopes else ["scopes"]
        found += [] if _fits(self._upstreams, upstream) else ["upstreams"]
        return found + ([] if _fits(self._methods, method) else ["methods"])

    # Of a rule that fits otherwise

    def allows(self, target: Target | None) -> bool:
        """Whether it allows the target for sure."""
        if not self._targets:
            return True
        return target is not None and any(glob.is_every(target) for glob in self._targets)

    def denies(self, target: Target | None) -> bool:
        """Whether it may deny the target."""
        return not self._targets or target is None or any(glob.is_any(target) for glob in self._targets)

    def may_allow(self, glob: Glob) -> bool:
        """Whether it may allow something that `glob` stands for."""
        return not self._targets or any(may_meet(each.glob, glob) for each in self._targets)

    def may_deny(self, template: Template) -> bool:
        """Whether it may deny something that a template stands for."""
        return not self._targets or any(each.meets(template) for each in self._targets)

    def allows_all(self, template: Template) -> bool:
        """Whether it allows everything that a template stands for."""
        return not self._targets or any(each.covers(template) for each in self._targets)

    def covers(self, glob: Glob) -> bool:
        """Whether it fits everything that `glob` stands for, as that is written."""
        return not self._targets or any(_contains(each.glob, glob) for each in self._targets)


def _fits(globs: tuple[Glob, ...], text: str) -> bool:
    return not globs or any(matches(glob, text) for glob in globs)


def _contains(outer: Glob, inner: Glob) -> bool:
    """Whether `outer` stands for everything that `inner` stands for.

    A mark that no literal of `outer` holds stands for each star of `inner`: only a star can take it in.
    """
    return matches(outer, STAR.join(inner))


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

# (principal, upstream, method) whose rules are remembered; then they are found anew.
MEMORY_LIMIT: Final = 4096


class Decision(NamedTuple):
    """Whether a use is allowed, and the name of the rule that decided it."""

    allowed: bool
    rule: str


class _Relevant(NamedTuple):
    """The rules that fit but for the target, which is still to be asked about."""

    allows: tuple[Rule, ...]
    denies: tuple[Rule, ...]


class Policy:
    """All rules in force."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self._memory: dict[tuple[Principal, str, str], _Relevant] = {}

    def __repr__(self) -> str:
        return f"<Policy of {len(self.rules)} rules>"

    def _relevant(self, principal: Principal, upstream: str, method: str) -> _Relevant:
        key = (principal, upstream, method)
        found = self._memory.get(key)
        if found is None:
            if len(self._memory) >= MEMORY_LIMIT:
                self._memory.clear()
            fitting = [rule for rule in self.rules if rule.fits(principal, upstream, method)]
            found = self._memory[key] = _Relevant(
                tuple(rule for rule in fitting if rule.allow),
                tuple(rule for rule in fitting if not rule.allow),
            )
        return found

    def decide(self, principal: Principal, upstream: str, method: str, target: str | None) -> Decision:
        """Whether `principal` may do `method` with `target`, in the upstream's own words; None: unknown."""
        relevant = self._relevant(principal, upstream, method)
        if not relevant.allows:
            return Decision(False, NO_RULE)
        asked = None if target is None else Target(target, is_uri=method in NAMES_URIS)
        for rule in relevant.denies:
            if rule.denies(asked):
                return Decision(False, rule.name)
        for rule in relevant.allows:
            if rule.allows(asked):
                return Decision(True, rule.name)
        return Decision(False, NO_RULE)

    def allows(self, principal: Principal, upstream: str, method: str, target: str | None) -> bool:
        """Whether `principal` may do `method` with `target`; see `decide`."""
        return self.decide(principal, upstream, method, target).allowed

    def may_use(self, principal: Principal, upstream: str, *methods: str) -> bool:
        """Whether some target may be allowed for one of `methods`."""
        for method in methods:
            relevant = self._relevant(principal, upstream, method)
            if relevant.allows and not any(rule.is_about_all for rule in relevant.denies):
                return True
        return False

    def sees(self, principal: Principal, upstream: str) -> bool:
        """Whether `principal` may use an upstream for anything, so that it may know that there is one."""
        return self.may_use(principal, upstream, *_EVERY_USE, _ANY_OTHER)

    def offers(self, principal: Principal, upstream: str, capability: str) -> bool:
        """Whether a capability of an upstream is of any use to `principal`."""
        uses = CAPABILITY_USES.get(capability)
        return self.sees(principal, upstream) if uses is None else self.may_use(principal, upstream, *uses)

    def may_use_template(self, principal: Principal, upstream: str, template: str) -> bool:
        """Whether a URI that a template can stand for may be allowed to be read."""
        relevant = self._relevant(principal, upstream, m.RESOURCES_READ)
        glob = template_glob(template)
        return any(rule.may_allow(glob) for rule in relevant.allows) and not any(
            rule.covers(glob) for rule in relevant.denies
        )

    def may_complete(self, principal: Principal, upstream: str, template: str) -> Decision:
        """Whether everything that a template can stand for is allowed to be told."""
        relevant = self._relevant(principal, upstream, m.COMPLETE)
        meant = Template(template)
        for rule in relevant.denies:
            if rule.may_deny(meant):
                return Decision(False, rule.name)
        for rule in relevant.allows:
            if rule.allows_all(meant):
                return Decision(True, rule.name)
        return Decision(False, NO_RULE)

    def shows(self, principal: Principal, upstream: str, list_method: str, item: str | None) -> bool:
        """Whether a list shows an item, named by its URI, template or name; None: it has none."""
        if list_method == m.TEMPLATES_LIST and item is not None:
            return self.may_use_template(principal, upstream, item)
        return self.allows(principal, upstream, USED_BY[list_method], item)


_EVERY_USE: Final = (m.RESOURCES_READ, m.RESOURCES_SUBSCRIBE, m.TOOLS_CALL, m.PROMPTS_GET, m.COMPLETE)
_ANY_OTHER: Final = "*"
"""Stands for every method that mcpmux does not know: rules about all methods fit it."""


def policy_of(rules: Collection[AccessRule]) -> Policy | None:
    """The policy that a configuration says; None when it has no rules."""
    if not rules:
        return None
    return Policy([Rule.of(rule, f"access[{number}]") for number, rule in enumerate(rules)])


# Why an access rule decides as it does, for people. Pure.


class Reason(NamedTuple):
    """What one rule says of a use. `misfits`: which of its members do not fit; without any it fits."""

    rule: str
    effect: str
    misfits: tuple[str, ...]


class Explanation(NamedTuple):
    """The decision about one use, and what every rule says of it."""

    decision: Decision
    reasons: tuple[Reason, ...]
    readings: tuple[str, ...]
    """What a server may take the target for, besides what it looks like."""


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
    reasons = []
    for rule in policy.rules:
        misfits = rule.misfits(principal, upstream, method)
        if not _fits_target(rule, asked, is_template):
            misfits.append("targets")
        reasons.append(Reason(rule.name, "allow" if rule.allow else "deny", tuple(misfits)))
    others = sorted({text for _, text in asked.readings} - {target})
    return Explanation(decision, tuple(reasons), tuple(others))


def _fits_target(rule: Rule, target: Target, is_template: bool) -> bool:
    if is_template:
        template = Template(target.text)
        return rule.allows_all(template) if rule.allow else rule.may_deny(template)
    return rule.allows(target) if rule.allow else rule.denies(target)
