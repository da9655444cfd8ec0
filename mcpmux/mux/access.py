"""Decide what one client may see and use in its view. Pure.

Access rules and the selections of a view decide together: what one of them refuses is refused. A refusal is
the same error that a missing thing gets, so that a client cannot find out what exists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import compress
from typing import Final

import msgspec

from mcpmux.errors import Refused, RpcError
from mcpmux.lru import Lru
from mcpmux.mux.override import KIND_OF, NO_OVERRIDES, Overrides
from mcpmux.mux.pattern import Target, is_plain
from mcpmux.mux.policy import ANY_OTHER, CAPABILITY_USES, SOME, USED_BY, USES, Policy, Rules, names_uri
from mcpmux.mux.rewrite import Space
from mcpmux.mux.view import Selection
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.codes import INVALID_PARAMS, METHOD_NOT_FOUND
from mcpmux.protocol.envelope import decode_fields, members_of, raw, text_of
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.principal import Principal
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.tasks import TASK_ID

Facts = list[tuple[str, ServerFacts]]

NOUNS: Final = {m.TOOLS_CALL: "tool", m.PROMPTS_GET: "prompt", m.COMPLETE: "prompt"}
"""The kind of thing that a request's name stands for, by method."""

_JUDGED: Final = {key.casefold(): key for key in ("uri", "name", "ref", TASK_ID, "arguments", "argument")}
_JUDGED_OF_REF: Final = {key: key for key in ("type", "uri", "name")}
"""Members that rules and interceptors judge."""

_USUAL: Final = frozenset({"uri", "name", "ref", TASK_ID, "type", "arguments", "argument", "cursor", "_meta"})
"""Members that cannot be mistaken for another one."""

NOTHING: Final = Policy(())
"""Allows no use: for a view that does not admit the principal any more."""


DECISIONS_KEPT: Final = 8192  # a hostile client may ask for new things all day
DECISIONS_BYTES: Final = 4 * 2**20

Decisions = Lru[tuple[Principal, str, str, str], str]
"""The rule that refuses a use, "" for none, by principal, upstream, method and target.

A change of the rules in force, or of the known tools, makes all of them invalid.
"""


class InForce:
    """The rules and names that hold in a view, "" included. No `rules` allow everything.

    `selection`: the view itself, however its client narrows it. `is_plain`: decisions need no knowledge of
    tools, and all tools have their own names. `is_searched`: tools are searched instead of listed.
    """

    __slots__ = ("is_plain", "is_searched", "overrides", "rules", "selection")

    def __init__(
        self,
        rules: Sequence[Rules],
        selection: Selection | None = None,
        overrides: Overrides = NO_OVERRIDES,
    ) -> None:
        self.rules = rules
        self.is_plain = not overrides and (selection is None or not selection.goes_by_hints)
        self.is_searched = selection is not None and selection.is_searched
        self.selection = selection
        self.overrides = overrides


class Judge:
    """What `principal` may see and use in its view. `is_open`: that is everything."""

    __slots__ = (
        "_decisions",
        "_rules",
        "is_open",
        "is_plain",
        "is_searched",
        "overrides",
        "principal",
        "selection",
    )

    def __init__(self, principal: Principal, in_force: InForce, decisions: Decisions) -> None:
        self.principal = principal
        self.selection = in_force.selection
        is_admitted = self.selection is None or self.selection.admits(principal)
        self._rules = in_force.rules if is_admitted else (NOTHING,)
        self._decisions = decisions
        self.is_open = not self._rules
        self.overrides = in_force.overrides
        self.is_plain = in_force.is_plain
        self.is_searched = in_force.is_searched

    def refused_by(self, upstream: str, method: str, target: str | Target | None) -> str | None:
        """Return the name of the rule by which a use is refused; None when it is allowed. See Rules.decide.

        For the method of a list: whether the list shows an item.
        """
        if self.is_open:
            return None
        if not isinstance(target, str):
            return self._refused_by(upstream, method, target)
        # Where an unknown target is allowed every target is: its readings need not be found.
        if self._refused_by(upstream, method, None) is None:
            return None
        # To decide about a URI with one reading takes less time than to remember the decision.
        if names_uri(method) and is_plain(target):
            return self._refused_by(upstream, method, target)
        # A URI with several readings takes a tenth of a millisecond to judge, and so does a name in a view
        # that selects a hundred; both come again with each list and each use.
        key = self.principal, upstream, method, target
        rule = self._decisions.get(key)
        if rule is None:
            rule = self._decisions[key] = self._refused_by(upstream, method, target) or ""
        return rule or None

    def _refused_by(self, upstream: str, method: str, target: str | Target | None) -> str | None:
        for rules in self._rules:
            allowed, rule = rules.decide(self.principal, upstream, method, target)
            if not allowed:
                return rule
        return None

    def may(self, upstream: str, method: str, target: str | Target | None) -> bool:
        """Return whether a use is allowed, or an item of a list shown; with SOME, whether any one may be."""
        return self.refused_by(upstream, method, target) is None

    def goes_by_tools(self, upstream: str) -> bool:
        """Return whether an upstream's tools must be known to decide about them, or to check arguments."""
        selection = self.selection
        is_asking = selection is not None and selection.asks_hints(upstream)
        return is_asking or self.overrides.has_parameters(upstream)

    def sees(self, upstream: str) -> bool:
        """Return whether the principal may use an upstream for anything, so that it may know of it."""
        return any(self.may(upstream, use, SOME) for use in (*USES.values(), ANY_OTHER))

    def offers(self, upstream: str, capability: str) -> bool:
        """Return whether a capability of an upstream is of any use to the principal."""
        uses = CAPABILITY_USES.get(capability)
        return self.sees(upstream) if uses is None else any(self.may(upstream, use, SOME) for use in uses)

    def visible(self, list_method: str, upstreams: Iterable[str]) -> list[str]:
        """Return the upstreams to ask for a list."""
        use = USED_BY[list_method]
        return [name for name in upstreams if self.is_open or self.may(name, use, SOME)]

    def narrow(self, facts: Facts) -> Facts:
        """Return the servers' facts, reduced to the servers and capabilities that the principal may use."""
        if self.is_open:
            return facts
        narrowed: Facts = []
        for upstream, fact in facts:
            if not self.sees(upstream):
                continue
            offered = {
                name: options
                for name, options in fact.capabilities.items()
                if name not in CAPABILITY_USES or self.offers(upstream, name)
            }
            # `subscribe` is an option of `resources` and no capability, so `offers` has not covered it.
            resources = offered.get("resources")
            if isinstance(resources, dict) and not self.may(upstream, m.RESOURCES_SUBSCRIBE, SOME):
                options = {name: option for name, option in resources.items() if name != "subscribe"}
                offered["resources"] = options
            narrowed.append((upstream, msgspec.structs.replace(fact, capabilities=offered)))
        return narrowed

    def may_hear(self, change: str, upstreams: Collection[str] | None) -> bool:
        """Return whether the client may listen to a list of `upstreams` (None: of any)."""
        # A searched view always has its two tools, so their list may be listened to, though it is constant.
        if self.is_open or upstreams is None or (change == m.TOOLS_CHANGED and self.is_searched):
            return True
        capability = m.CAPABILITY_OF_CHANGE[change]
        return any(self.offers(name, capability) for name in upstreams)

    def sees_change(self, change: str, upstreams: Collection[str] | None) -> bool:
        """Return whether a list that the principal sees changes with one of `upstreams` (None: any)."""
        # Where tools are searched, their list stays the same.
        if change == m.TOOLS_CHANGED and self.is_searched:
            return False
        return self.may_hear(change, upstreams)

    # Members of calls

    def read_ref(self, call: Call) -> tuple[Fields, str, str]:
        """Return (`ref`, the member of it that has the name, the name) of a completion. Raises RpcError."""
        try:
            ref = decode_fields(call.params["ref"])
        except (KeyError, ValueError):
            raise RpcError(INVALID_PARAMS, 'Invalid params: "ref" must be an object') from None
        key = _named_by(ref)
        named = text_of(ref.get(key))
        if named is None:
            raise RpcError(INVALID_PARAMS, 'Invalid params: "ref" must be a ref/prompt or a ref/resource')
        return ref, key, named

    # Names

    def own_name(self, method: str, upstream: str, shown: str) -> str | None:
        """Return the upstream's own name for the tool or prompt that the principal knows as `shown`.

        Return None when `shown` is the original name of a renamed one.
        """
        return self.overrides.own_name(upstream, KIND_OF[method], shown)

    def overridden(
        self, method: str, space: Space, names: Sequence[str | None], items: Sequence[Raw]
    ) -> tuple[Sequence[str | None], Sequence[Raw]]:
        """Return names and items of an upstream's list with the overrides for the principal.

        `names`: the upstream's own. `items`: as clients would see them without overrides.
        """
        overrides, kind = self.overrides, KIND_OF.get(method)
        if not overrides or kind is None:
            return names, items
        fields = [decode_fields(item) for item in items]
        shown = overrides.apply(space.upstream, kind, names, fields, space.expose_name)
        return list(compress(names, shown)), [raw(item) for item in compress(fields, shown)]

    def shown_name(self, method: str, upstream: str, own: str) -> str:
        """Return the name under which the principal knows an upstream's tool or prompt."""
        return self.overrides.shown_name(upstream, KIND_OF[method], own)


def check_spelling(call: Call) -> None:
    """Check that no server can take a member of a call for one that is judged. Raises RpcError."""
    _check_keys(call.params, _JUDGED)
    if call.method == m.COMPLETE:
        ref = members_of(call.params.get("ref"))
        _check_keys(ref, _JUDGED_OF_REF)
        key = _named_by(ref)
        other = "name" if key == "uri" else "uri"
        if key and other in ref:  # the server may complete that one
            kind = text_of(ref["type"])
            raise RpcError(INVALID_PARAMS, f'Invalid params: a {kind} has a "{key}" and no "{other}"')


def _named_by(ref: Fields) -> str:
    """Return the member of a reference that has its name, "" for a reference of no known type."""
    return {"ref/resource": "uri", "ref/prompt": "name"}.get(text_of(ref.get("type")) or "", "")


def _check_keys(members: Fields, judged: Mapping[str, str]) -> None:
    for key in members:
        if key in _USUAL:
            continue
        # Some servers ignore the case of members, and take the last one.
        name = judged.get(key.casefold(), key)
        if key != name:
            raise RpcError(INVALID_PARAMS, f'Invalid params: {key!r} is not known; is "{name}" meant?')


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
