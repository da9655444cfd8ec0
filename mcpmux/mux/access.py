"""Decide what one client may see and use in its view. Pure.

Access rules and the selection of a view decide together, as one `Rules`. A refusal is the same error that a
missing thing gets, so that a client cannot find out what exists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from mcpmux.errors import Refused, RpcError
from mcpmux.mux.override import KIND_OF, Overrides
from mcpmux.mux.pattern import Target
from mcpmux.mux.policy import CAPABILITY_USES, USED_BY, Policy, Rules, offers, sees
from mcpmux.mux.view import Selection
from mcpmux.protocol import method as m
from mcpmux.protocol.codes import INVALID_PARAMS, METHOD_NOT_FOUND
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.principal import Principal

Facts = list[tuple[str, ServerFacts]]
_CAPABILITY_OF_CHANGE: Final = {method: capability for capability, method in m.LIST_CHANGES.items()}

NOUNS: Final = {m.TOOLS_CALL: "tool", m.PROMPTS_GET: "prompt", m.COMPLETE: "prompt"}
"""The kind of thing that a request's name stands for, by method."""

NOTHING: Final = Policy(())
"""Allows no use: for a view that does not admit the principal any more."""


class InForce:
    """The rules and names that hold in a view, "" included. `rules` is None when everything is allowed.

    `selection`: the view itself, however its client narrows it. `is_plain`: decisions need no knowledge of
    tools, and all tools have their own names. `is_searched`: tools are searched instead of listed.
    """

    __slots__ = ("is_bound", "is_plain", "is_searched", "overrides", "rules", "selection")

    def __init__(
        self, rules: Rules | None, selection: Selection | None = None, overrides: Overrides | None = None
    ) -> None:
        self.rules = rules
        self.is_bound = selection is not None and selection.is_bound
        self.is_plain = overrides is None and (selection is None or not selection.goes_by_hints)
        self.is_searched = selection is not None and selection.is_searched
        self.selection = selection
        self.overrides = overrides

    def rules_for(self, principal: Principal) -> Rules | None:
        """Return the rules for a principal: NOTHING when the view does not admit it."""
        if self.is_bound and self.selection is not None and not self.selection.admits(principal):
            return NOTHING
        return self.rules


class Judge:
    """What `principal` may see and use in its view. `rules` is None when that is everything."""

    __slots__ = ("is_plain", "is_searched", "overrides", "principal", "rules", "selection")

    def __init__(self, principal: Principal, in_force: InForce) -> None:
        self.principal = principal
        self.rules = in_force.rules_for(principal)
        self.selection = in_force.selection
        self.overrides = in_force.overrides
        self.is_plain = in_force.is_plain
        self.is_searched = in_force.is_searched

    # Uses

    def refused_by(self, upstream: str, method: str, target: str | Target | None) -> str | None:
        """Return the name of the rule by which a use is refused; None when it is allowed.

        `target`: a URI or name in the upstream's own words; None when it is unknown.
        """
        if self.rules is None:
            return None
        allowed, rule = self.rules.decide(self.principal, upstream, method, target)
        return None if allowed else rule

    def may(self, upstream: str, method: str, target: str | None) -> bool:
        """Return whether a use is allowed."""
        return self.refused_by(upstream, method, target) is None

    def may_use(self, upstream: str, use: str) -> bool:
        """Return whether a use of an upstream may be allowed for some target."""
        return self.rules is None or self.rules.may_use(self.principal, upstream, use)

    def candidates(self, upstreams: Collection[str], use: str, target: str | Target) -> Collection[str]:
        """Return the upstreams where `target`, which has no prefix, may be used if they own it."""
        if self.rules is None:
            return upstreams
        return [name for name in upstreams if self.refused_by(name, use, target) is None]

    # What it is shown

    def sees(self, upstream: str) -> bool:
        """Return whether the principal may know that there is an upstream."""
        return self.rules is None or sees(self.rules, self.principal, upstream)

    def visible(self, list_method: str, upstreams: Iterable[str]) -> list[str]:
        """Return the upstreams to ask for a list."""
        use = USED_BY[list_method]
        return [name for name in upstreams if self.may_use(name, use)]

    def narrow(self, facts: Facts) -> Facts:
        """Return the servers' facts, reduced to the servers and capabilities that the principal may use."""
        rules = self.rules
        if rules is None:
            return facts
        return [
            (name, _narrowed(rules, self.principal, name, fact)) for name, fact in facts if self.sees(name)
        ]

    def may_hear(self, change: str, upstreams: Collection[str] | None) -> bool:
        """Return whether the client may listen to a list of `upstreams` (None: of any)."""
        rules = self.rules
        # A searched view always has its two tools, so their list may be listened to, though it is constant.
        if rules is None or upstreams is None or (change == m.TOOLS_CHANGED and self.is_searched):
            return True
        capability = _CAPABILITY_OF_CHANGE[change]
        return any(offers(rules, self.principal, name, capability) for name in upstreams)

    def sees_change(self, change: str, upstreams: Collection[str] | None) -> bool:
        """Return whether a list that the principal sees changes with one of `upstreams` (None: any).

        Where tools are searched, their list stays the same.
        """
        if change == m.TOOLS_CHANGED and self.is_searched:
            return False
        return self.may_hear(change, upstreams)

    # Names

    def own_name(self, method: str, upstream: str, shown: str) -> str | None:
        """Return the upstream's own name for the tool or prompt that the principal knows as `shown`.

        Return None when `shown` is the original name of a renamed one.
        """
        overrides = self.overrides
        return shown if overrides is None else overrides.own_name(upstream, KIND_OF[method], shown)

    def shown_name(self, method: str, upstream: str, own: str) -> str:
        """Return the name under which the principal knows an upstream's tool or prompt."""
        overrides = self.overrides
        return own if overrides is None else overrides.shown_name(upstream, KIND_OF[method], own)


def _narrowed(rules: Rules, principal: Principal, upstream: str, facts: ServerFacts) -> ServerFacts:
    offered = {
        name: options
        for name, options in facts.capabilities.items()
        if name not in CAPABILITY_USES or offers(rules, principal, upstream, name)
    }
    # `subscribe` is an option of `resources` and no capability, so `offers` has not covered it.
    resources = offered.get("resources")
    if isinstance(resources, dict) and not rules.may_use(principal, upstream, m.RESOURCES_SUBSCRIBE):
        offered["resources"] = {name: option for name, option in resources.items() if name != "subscribe"}
    return msgspec.structs.replace(facts, capabilities=offered)


# Refusals: the same errors for what a principal may not use and for what does not exist.


def as_refused(error: RpcError, rule: str) -> Refused:
    """Return the error as a refusal by mcpmux itself, with the rule that refused."""
    return Refused(error.code, error.message, rule, error.data)


def no_resource(uri: str) -> RpcError:
    """Return -32602: no upstream has that resource, as far as its reader may know."""
    return RpcError(INVALID_PARAMS, f"Resource not found: no upstream owns {uri}", {"uri": uri})


def one_of(refusal: RpcError, wanted: str, exposed: list[str]) -> RpcError:
    """Return the error for a thing that several upstreams own.

    `refusal`: the error if no upstream owned it. `exposed`: the names by which to ask for each one.
    """
    what = refusal.message.partition(":")[0]
    return RpcError(
        refusal.code,
        f"{what}: {wanted} belongs to several upstreams: ask for {' or '.join(exposed)}",
        {**refusal.data, "candidates": exposed},
    )


def no_item(kind: str, name: str) -> RpcError:
    """Return -32602: there is no tool or prompt of that name, as far as its user may know."""
    return RpcError(INVALID_PARAMS, f"Unknown {kind}: {name}", {"name": name})


def no_task() -> RpcError:
    """Return -32602: this client has no such task."""
    return RpcError(INVALID_PARAMS, "Task not found")


def lost_task() -> RpcError:
    """Return -32602: the mcpmux process that held the task, in its session with the server, has ended."""
    message = (
        "Task not found: the replica that had it has gone; it may have been carried out; "
        "to start it again, call its tool"
    )
    return RpcError(INVALID_PARAMS, message, {"state": "lost", "mayHaveBeenCarriedOut": True})


def no_method(method: str) -> RpcError:
    """Return -32601: no upstream knows that method, as far as its user may know."""
    return RpcError(METHOD_NOT_FOUND, f"Method not found: {method}")
