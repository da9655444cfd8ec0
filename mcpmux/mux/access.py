"""What one client may see and use in its view: the one judge. Pure.

Rules and the selection of a view decide together, as one `Rules`. What they refuse is answered like something
that does not exist.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from mcpmux.errors import Refused, RpcError
from mcpmux.mux.override import KIND_OF, Overrides
from mcpmux.mux.policy import CAPABILITY_USES, USED_BY, Policy, Rules, offers, sees
from mcpmux.mux.spelling import Target
from mcpmux.mux.view import Selection
from mcpmux.protocol import method as m
from mcpmux.protocol.codes import INVALID_PARAMS, METHOD_NOT_FOUND
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.principal import Principal

Facts = list[tuple[str, ServerFacts]]
_CAPABILITY_OF_CHANGE: Final = {method: capability for capability, method in m.LIST_CHANGES.items()}

NOUNS: Final = {m.TOOLS_CALL: "tool", m.PROMPTS_GET: "prompt", m.COMPLETE: "prompt"}
"""What the names in requests stand for."""

NOTHING: Final = Policy(())
"""For a view that is not there any more."""


class InForce:
    """What holds in a view, "" included: `rules` (None: everything is allowed), and what is shown otherwise.

    `selection`: the view itself, however its client narrows it. `is_plain`: nothing has to be known of tools,
    and all have their own names. `is_searched`: tools are searched instead of listed.
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
        """Return what holds for a principal: nothing is left of a view that is not for it any more."""
        if self.is_bound and self.selection is not None and not self.selection.admits(principal):
            return NOTHING
        return self.rules


class Judge:
    """What `principal` may see and use in its view. `rules`: None when that is everything."""

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

        `target`: a URI or name as the upstream itself has it; None when it is unknown.
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
        """Return the upstreams of which `target`, which names none, may be used if they own it."""
        if self.rules is None:
            return upstreams
        return [name for name in upstreams if self.refused_by(name, use, target) is None]

    # What it is shown

    def sees(self, upstream: str) -> bool:
        """Return whether the principal may know that there is an upstream."""
        return self.rules is None or sees(self.rules, self.principal, upstream)

    def visible(self, list_method: str, upstreams: Iterable[str]) -> list[str]:
        """Return the upstreams that are asked for a list."""
        use = USED_BY[list_method]
        return [name for name in upstreams if self.may_use(name, use)]

    def narrow(self, facts: Facts) -> Facts:
        """Return what servers said about themselves, as far as it is of any use to the principal."""
        rules = self.rules
        if rules is None:
            return facts
        return [
            (name, _narrowed(rules, self.principal, name, fact)) for name, fact in facts if self.sees(name)
        ]

    def may_hear(self, change: str, upstreams: Collection[str] | None) -> bool:
        """Return whether the change of a list of one of `upstreams` (None: any) may be told."""
        rules = self.rules
        if rules is None or upstreams is None or (change == m.TOOLS_CHANGED and self.is_searched):
            return True
        capability = _CAPABILITY_OF_CHANGE[change]
        return any(offers(rules, self.principal, name, capability) for name in upstreams)

    def sees_change(self, change: str, upstreams: Collection[str] | None) -> bool:
        """Return whether the principal sees a change of a list of one of `upstreams` (None: any).

        Where tools are searched their list stays the same.
        """
        if change == m.TOOLS_CHANGED and self.is_searched:
            return False
        return self.may_hear(change, upstreams)

    # Names

    def own_name(self, method: str, upstream: str, shown: str) -> str | None:
        """Return the upstream's name for the tool or prompt that the principal knows by a name.

        None for the name of something that has another one.
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
    resources = offered.get("resources")
    if isinstance(resources, dict) and not rules.may_use(principal, upstream, m.RESOURCES_SUBSCRIBE):
        offered["resources"] = {name: option for name, option in resources.items() if name != "subscribe"}
    return msgspec.structs.replace(facts, capabilities=offered)


# Refusals: what a principal may not use is answered like what is not there.


def as_refused(error: RpcError, rule: str) -> Refused:
    """The error as what mcpmux itself does not let happen."""
    return Refused(error.code, error.message, rule, error.data)


def no_resource(uri: str) -> RpcError:
    """-32602: nobody has that resource, as far as its reader may know."""
    return RpcError(INVALID_PARAMS, f"Resource not found: no upstream owns {uri}", {"uri": uri})


def one_of(refusal: RpcError, wanted: str, exposed: list[str]) -> RpcError:
    """What several upstreams own; `refusal`: if nobody did. `exposed`: how that of each is asked for."""
    what = refusal.message.partition(":")[0]
    return RpcError(
        refusal.code,
        f"{what}: {wanted} belongs to several upstreams: ask for {' or '.join(exposed)}",
        {**refusal.data, "candidates": exposed},
    )


def no_item(kind: str, name: str) -> RpcError:
    """-32602: there is no tool or prompt of that name, as far as its user may know."""
    return RpcError(INVALID_PARAMS, f"Unknown {kind}: {name}", {"name": name})


def no_task() -> RpcError:
    """-32602: this client has no such task."""
    return RpcError(INVALID_PARAMS, "Task not found")


def lost_task() -> RpcError:
    """-32602: the process of mcpmux has gone that had the task, in its session with the task's server."""
    message = (
        "Task not found: the replica that had it has gone; it may have been carried out; "
        "to start it again, call its tool"
    )
    return RpcError(INVALID_PARAMS, message, {"state": "lost", "mayHaveBeenCarriedOut": True})


def no_method(method: str) -> RpcError:
    """-32601: nobody knows that method, as far as its user may know."""
    return RpcError(METHOD_NOT_FOUND, f"Method not found: {method}")
