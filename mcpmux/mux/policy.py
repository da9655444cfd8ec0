"""Decide which principal may use what. Pure, and immutable: other rules are another Policy.

The law

    A use is allowed when at least one `allow` rule fits it and no `deny` rule does.

The order of rules has no effect. Without any rules there is no Policy (None) and everything is allowed; with
any rule, a use that no rule allows is denied.

  * A rule fits when each of its members fits: a principal's name, scopes (all of them), the upstream,
    the method, the target. An absent member fits. A rule that names principals fits no unknown client.
  * The target is a URI or name as the upstream itself has it, or as clients see it (see `naming`).
  * A URI can be written in many ways (see `pattern`): an `allow` fits when its glob fits every reading of
    the URI, a `deny` when it fits any.
  * What is unknown of a use counts against it: an `allow` that names targets does not fit a use without a
    known target, a `deny` does, with any targets.

Lists follow. They show an item exactly when it may be used: a resource that may be read, a tool that may be
called, a prompt that may be got. A template is shown unless no URI that it can stand for may be read, as far
as its literal text shows: a client that may read a URI sees each template for it. Completions reveal what
exists, so a template's are given only when everything that it stands for is allowed. A task belongs to the
use of its tool.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from mcpmux.config import AccessRule
from mcpmux.config.views import KINDS, PROMPTS, RESOURCES, TEMPLATES, TOOLS
from mcpmux.lru import Lru
from mcpmux.mux.naming import ANY_VIEW, AS_THEY_ARE, OF_URIS, Naming, is_among
from mcpmux.mux.override import KIND_OF, Names
from mcpmux.mux.pattern import (
    STAR,
    Target,
    TargetGlob,
    matches,
    may_meet,
    parse_glob,
    template_glob,
)
from mcpmux.protocol import method as m
from mcpmux.protocol.principal import NARROWED, Principal

USES: Final = {
    "read": m.RESOURCES_READ,
    "subscribe": m.RESOURCES_SUBSCRIBE,
    "call": m.TOOLS_CALL,
    "get": m.PROMPTS_GET,
    "complete": m.COMPLETE,
}
"""The names of uses in rules, and their methods."""

ANY_OTHER: Final = "*"
"""Stands for every method that mcpmux does not know: rules about all methods fit it."""

NO_RULE: Final = "access"
"""The rule that is named when no rule allows."""

SOME: Final = Target("*")
"""Stands for any one of all targets: a use of it is allowed when it may be allowed with some target."""

USED_BY: Final = {
    m.RESOURCES_LIST: m.RESOURCES_READ,
    m.TEMPLATES_LIST: m.RESOURCES_READ,
    m.TOOLS_LIST: m.TOOLS_CALL,
    m.PROMPTS_LIST: m.PROMPTS_GET,
    m.TASKS_LIST: m.TOOLS_CALL,
}
"""The method by which the items of each list are used."""

CAPABILITY_USES: Final = {
    "resources": (m.RESOURCES_READ, m.RESOURCES_SUBSCRIBE),
    "tools": (m.TOOLS_CALL,),
    "tasks": (m.TOOLS_CALL,),
    "prompts": (m.PROMPTS_GET,),
    "completions": (m.COMPLETE,),
}
"""The methods that each capability is for."""

NAMES_URIS: Final = frozenset({m.RESOURCES_READ, m.RESOURCES_SUBSCRIBE})

KINDS_OF_USE: Final = {
    m.RESOURCES_READ: (RESOURCES,),
    m.RESOURCES_SUBSCRIBE: (RESOURCES,),
    m.TOOLS_CALL: (TOOLS,),
    m.PROMPTS_GET: (PROMPTS,),
    m.COMPLETE: (PROMPTS, TEMPLATES),
}
"""The kinds of things that each method uses; the first one is meant unless the use names another."""

MEMORY_BYTES: Final = 4 * 2**20  # of remembered rules
MEMORY_LIMIT: Final = 4096  # (principal, upstream, method) whose rules are remembered


class Rule:
    """A rule, ready to be applied: `allow` or deny. `is_about_all`: it names no target."""

    def __init__(self, rule: AccessRule, place: str, naming: Naming = AS_THEY_ARE) -> None:
        """`place`: its path in the configuration, the name of a rule without one."""
        self.name = rule.name or place
        self.allow = rule.effect == "allow"
        self._principals = tuple(map(parse_glob, rule.principals))
        self._scopes = frozenset(rule.scopes)
        self._upstreams = tuple(map(parse_glob, rule.upstreams))
        self._methods = tuple(parse_glob(USES.get(name, name)) for name in rule.methods)
        self._targets, self._naming = rule.targets, naming
        self._globs: dict[tuple[str, str, str], list[TargetGlob]] = {}  # by upstream, kind and view
        self.is_about_all = not self._targets

    def misfits(self, principal: Principal, upstream: str, method: str) -> list[str]:
        """Return which of its members do not fit, for any target; none when it is about this use."""
        # An unknown client has no name, which `*` would fit.
        fits = {
            "principals": not self._principals
            or (bool(principal) and is_among(self._principals, principal.name)),
            "scopes": self._scopes <= principal.scopes,
            "upstreams": is_among(self._upstreams, upstream),
            "methods": is_among(self._methods, method),
        }
        return [member for member, is_fit in fits.items() if not is_fit]

    # For a rule without misfits

    def fits(self, target: Target | None, upstream: str, method: str, view: str = "") -> bool:
        """Return whether it is about the target in a view: an `allow` for sure, a `deny` perhaps."""
        if self.is_about_all:
            return True
        if target is SOME:
            return self.allow
        # An unknown target counts against the use.
        if target is None:
            return not self.allow
        if method == m.TEMPLATES_LIST:
            # A client that may read a URI sees each template for it: one is hidden only if all that it stands
            # for is denied.
            places = self.globs(upstream, RESOURCES)
            expansions = template_glob(target.text)
            if self.allow:
                return any(may_meet(place.glob, expansions) for place in places)
            # Each expression becomes a mark that no literal holds: only a star of the rule can match it.
            return any(matches(place.glob, STAR.join(expansions)) for place in places)
        kind = RESOURCES if target.is_uri else KIND_OF.get(method, "")
        globs = self.globs(upstream, kind, view)
        return any(target.is_in(glob) if self.allow else target.may_be_in(glob) for glob in globs)

    def may_fit(self, upstream: str, method: str, view: str) -> bool:
        """Return whether it may be about any thing of an upstream, and not only about things of others."""
        kinds = KINDS_OF_USE.get(method, KINDS)
        return self.is_about_all or any(self.globs(upstream, kind, view) for kind in kinds)

    def globs(self, upstream: str, kind: str, view: str = "") -> list[TargetGlob]:
        """Return what its targets fit of an upstream's things of a kind, in the upstream's own words."""
        # Only an `allow` about names depends on the view, by its overrides; all else is kept once for all.
        place = upstream, kind, view.partition(NARROWED)[0] if self.allow and kind not in OF_URIS else ""
        if place not in self._globs:
            # Clients cannot add to the keys without bound, but a configuration with many views can.
            if len(self._globs) >= MEMORY_LIMIT:
                self._globs.clear()
            self._globs[place] = [
                glob
                for text in self._targets
                for glob in (
                    self._naming.certain(text, upstream, kind, self._upstreams, place[2])
                    if self.allow
                    else self._naming.possible(text, upstream, kind, self._upstreams)
                )
            ]
        return self._globs[place]


class Decision(NamedTuple):
    """Whether a use is allowed, and the name of the rule that decided it."""

    allowed: bool
    rule: str


class Rules(Protocol):
    """Decisions about uses and lists."""

    def decide(
        self, principal: Principal, upstream: str, method: str, target: str | Target | None
    ) -> Decision:
        """Decide whether `principal` may do `method` with `target`, which is in its upstream's own words.

        None stands for an unknown target, SOME for any one of all targets. For the method of a list: whether
        it shows an item, given by its URI, template or name.
        """


def names_uri(method: str) -> bool:
    """Return whether a method uses, or lists, things with a URI."""
    return USED_BY.get(method, method) in NAMES_URIS


def as_target(method: str, target: str | Target | None) -> Target | None:
    """Return the text of a target as the kind of thing that `method` uses or lists."""
    return Target(target, is_uri=names_uri(method)) if isinstance(target, str) else target


class Policy:
    """Access rules, with a memory of the relevant ones. See the law above."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self._known: Lru[tuple[Principal, str, str], tuple[list[Rule], list[Rule]]] = Lru(
            MEMORY_LIMIT, MEMORY_BYTES
        )

    def decide(
        self, principal: Principal, upstream: str, method: str, target: str | Target | None
    ) -> Decision:
        """See Rules."""
        # Those that fit, leaving the target aside; clients use many targets of few upstreams.
        use = USED_BY.get(method, method)
        key = (principal, upstream, use)
        relevant = self._known.get(key)
        if relevant is None:
            fitting = [rule for rule in self.rules if not rule.misfits(principal, upstream, use)]
            allows = [rule for rule in fitting if rule.allow and rule.may_fit(upstream, use, principal.view)]
            relevant = allows, [rule for rule in fitting if not rule.allow]
            self._known.keep(key, relevant, 8 * len(fitting))
        allows, denies = relevant
        object_: Target | None = None
        # Any `deny` that fits wins, so they come first; then one `allow` is enough.
        for rule in (*denies, *allows) if allows else ():
            if object_ is None and not rule.is_about_all:
                object_ = as_target(method, target)
            if rule.fits(object_, upstream, method, principal.view):
                return Decision(rule.allow, rule.name)
        return Decision(False, NO_RULE)


def policy_of(rules: Collection[AccessRule], naming: Naming = AS_THEY_ARE) -> Policy | None:
    """Return the policy of a configuration; None when it has no rules."""
    if not rules:
        return None
    return Policy([Rule(rule, f"access[{number}]", naming) for number, rule in enumerate(rules)])


def find_idle_targets(
    rules: Collection[AccessRule], upstreams: Collection[str], names: Names, naming: Naming
) -> Iterator[str]:
    """Yield a sentence for each target of a rule that fits no listed thing."""
    for number, rule in enumerate(rules):
        kinds, among = kinds_of(rule), list(map(parse_glob, rule.upstreams))
        fits = naming.certain if rule.effect == "allow" else naming.possible
        for text in rule.targets if kinds else ():
            yield from naming.find_idle(
                f"access[{number}].targets", text, kinds, among, upstreams, names, fits, ANY_VIEW
            )


def kinds_of(rule: AccessRule) -> list[str]:
    """Return the kinds that a rule's targets can be of; none when its methods use no listed things."""
    methods = [parse_glob(USES.get(name, name)) for name in rule.methods]
    uses = [use for use in KINDS_OF_USE if not methods or any(matches(glob, use) for glob in methods)]
    return list(dict.fromkeys(kind for use in uses for kind in KINDS_OF_USE[use]))


class Reason(NamedTuple):
    """The verdict of one rule about a use. `misfits`: its members that do not fit; empty if it fits."""

    rule: str
    effect: str
    misfits: tuple[str, ...]


class Explanation(NamedTuple):
    """The decision about one use, and every rule's verdict, for people.

    `readings`: other texts that a server may read the target as.
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
    """Return the decision about a use, with the reasons; `target` in the upstream's own words."""
    named = Target(target, is_uri=method in NAMES_URIS)
    judged = Target(target, is_template=True) if is_template else named
    decision = policy.decide(principal, upstream, method, judged)
    reasons = []
    for rule in policy.rules:
        misfits = rule.misfits(principal, upstream, method) + (
            [] if rule.fits(judged, upstream, method, principal.view) else ["targets"]
        )
        reasons.append(Reason(rule.name, "allow" if rule.allow else "deny", tuple(misfits)))
    others = sorted({text for _, text in named.readings} - {target})
    return Explanation(decision, tuple(reasons), tuple(others))
