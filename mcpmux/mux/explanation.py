"""Why an access rule decides as it does, for people. Pure."""

from __future__ import annotations

from typing import NamedTuple

from mcpmux.mux.policy import NAMES_URIS, Decision, Policy
from mcpmux.mux.rule import Rule, Target, Template
from mcpmux.protocol.principal import Principal


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
