"""Apply the access rules and views in force, and make the errors for what they refuse.

Promises: a call for something that a principal may not use, or that is not in its view, is answered like one
for something that does not exist, before any upstream is asked; the rules of one moment are one immutable
value. Refuses to know how a use is carried out.

A task may be used by those who may use its tool, so MadeTasks remembers which tool made which task.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import compress
from operator import and_
from types import MappingProxyType
from typing import Final, NamedTuple

import structlog
import trio

from mcpmux.errors import RpcError
from mcpmux.lru import Lru
from mcpmux.mux.access import DECISIONS_BYTES, DECISIONS_KEPT, NOTHING, Decisions, InForce, Judge
from mcpmux.mux.listing import Listing
from mcpmux.mux.naming import AS_THEY_ARE, Naming
from mcpmux.mux.override import KIND_OF, NO_OVERRIDES, BadArguments, NotJudged, check_arguments, fill_in
from mcpmux.mux.ownership import MadeTasks
from mcpmux.mux.pattern import matches, parse_glob
from mcpmux.mux.policy import Policy
from mcpmux.mux.rewrite import NAMED_BY
from mcpmux.mux.view import UPSTREAMS, BadNarrowing, Selection, globs_in, read_narrowing, views_of
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.codes import INVALID_PARAMS
from mcpmux.protocol.envelope import decode_fields, objects_in, raw, text_of
from mcpmux.protocol.principal import ANYONE, NARROWED, Principal
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.transports.inline import TURN_SECONDS, next_turn
from mcpmux.upstreams.lists import known_listing, learn_listing
from mcpmux.upstreams.upstream import Upstream

log = structlog.get_logger()

NARROWINGS_KEPT: Final = 256  # parsed queries; a hostile client may send new ones all day
NARROWINGS_BYTES: Final = 64 * 2**20  # of them and of their globs for each upstream
GLOB_BYTES: Final = 1024  # of a compiled glob for one upstream's items, about


class Shown(NamedTuple):
    """The part of the configuration that decides what all clients see.

    `views`: by name. `common`: the selection that applies in every view; None for everything. `naming`: the
    names of items for clients.
    """

    views: Mapping[str, Selection] = MappingProxyType({})
    common: Selection | None = None
    naming: Naming = AS_THEY_ARE


ALL_SHOWN: Final = Shown()


class AccessControl:
    """Decides who may use what, in which view. `policy` is None when everything is allowed.

    `is_open`: every client may use everything, under unchanged names. `views`: by name.
    """

    def __init__(self, policy: Policy | None = None, shown: Shown = ALL_SHOWN) -> None:
        self.tasks = MadeTasks()
        self.tool_of = self.tasks.tool_of
        self.policy: Policy | None = None
        self.views = ALL_SHOWN.views
        self._shown = ALL_SHOWN
        self._has_views = False  # stays true: a client may outlive the view that it is in
        self._not_judged: set[tuple[str, str]] = set()  # tools with overridden parameters, once logged
        self.adopt(policy, shown)

    def adopt(self, policy: Policy | None, shown: Shown) -> frozenset[str]:
        """Put rules and views into force. Return the names of the views in which something has changed."""
        old, views, common, overrides = self._shown, shown.views, shown.common, shown.naming.overrides
        names = {"", *old.views, *views}
        is_other = policy is not self.policy or common != old.common
        is_other = is_other or overrides.get("") != old.naming.overrides.get("")
        self._has_views = self._has_views or bool(views)
        self.is_open = not (policy or common or overrides or self._has_views)
        self.policy, self.views, self._shown = policy, views, shown
        whole = tuple(rules for rules in (policy, common) if rules is not None)
        self._in_force = {"": InForce(whole, None, overrides.get("", NO_OVERRIDES))}
        self._decisions: Decisions = Lru(DECISIONS_KEPT, DECISIONS_BYTES)
        self._open_judge = Judge(ANYONE, InForce(()), self._decisions)
        self._narrowings: Lru[str, InForce] = Lru(NARROWINGS_KEPT, NARROWINGS_BYTES)
        self._anyone = {name: ANYONE.within(name) for name, view in views.items() if view.admits(ANYONE)}
        learned = next((view.hints for view in old.views.values()), {})  # all views know the same
        for name, selection in views.items():
            for upstream, hints in learned.items():
                selection.learn(upstream, hints)
            self._in_force[name] = InForce((*whole, selection), selection, overrides.get(name, NO_OVERRIDES))
        return frozenset(name for name in names if is_other or old.views.get(name) != views.get(name))

    @property
    def naming(self) -> Naming:
        """The names that items have for clients."""
        return self._shown.naming

    def of(self, principal: Principal) -> Judge:
        """Return the judge of what a principal may see and use now."""
        # Most configurations have neither rules nor views: one judge serves all clients.
        if self.is_open and not principal.view:
            return self._open_judge
        in_force = self._in_force.get(principal.view) or self._narrowed(principal.view)
        return Judge(principal, in_force, self._decisions)

    def _narrowed(self, view: str) -> InForce:
        """Return the rules of a view that a client has narrowed; a view that has gone is empty."""
        if (in_force := self._narrowings.get(view)) is not None:
            return in_force
        name, _, narrowing = view.partition(NARROWED)
        whole = self._in_force.get(name)
        if not narrowing or whole is None:
            return InForce((NOTHING,))
        naming, views = self._shown.naming, list(views_of(narrowing))
        selections = [Selection(f"views.{view}", narrowed, naming, name) for narrowed in views]
        in_force = InForce((*whole.rules, *selections), whole.selection, whole.overrides)
        globs = sum(len(view.include) for view in views)
        size = globs * max(1, len(naming.namespace.spaces)) * GLOB_BYTES
        self._narrowings.keep(view, in_force, size)
        return in_force

    # Overrides of what upstreams say

    def filled_in(self, judge: Judge, upstream: Upstream, own: str, sent: Raw) -> Raw | None:
        """Return the arguments to send to an upstream's tool instead of `sent`; None to leave them unchanged.

        The tool must have been learned. Raises RpcError for arguments that its shown schema does not allow.
        """
        name = upstream.name
        parameters = judge.overrides.parameters(name, own)
        if not parameters:
            return None
        try:
            arguments = decode_fields(sent)
        except ValueError:
            raise RpcError(INVALID_PARAMS, 'Invalid params: "arguments" must be an object') from None
        try:
            check_arguments(arguments, upstream.listings[m.TOOLS_LIST].schema(own), parameters)
        except BadArguments as mistake:
            raise RpcError(INVALID_PARAMS, f"Invalid params: {mistake}") from None
        except NotJudged as reason:
            if (name, own) not in self._not_judged:
                self._not_judged.add((name, own))
                what = "arguments are not checked: the server will judge"
                log.warning(what, upstream=name, tool=own, reason=str(reason))
        return raw(fill_in(arguments, parameters))

    # Tools that views select by their annotations, or whose arguments are checked

    def knows_tools(self, judge: Judge, upstream: Upstream) -> bool:
        """Return whether an upstream's tools are known as far as a judge goes by them; take them over."""
        if not judge.goes_by_tools(upstream.name):
            return True
        if (listing := known_listing(upstream, m.TOOLS_LIST)) is None:
            return False
        self._learn(upstream, listing)
        return True

    async def learn_tools(self, upstream: Upstream, call: Call) -> None:
        """Learn an upstream's tools if what the client of a call may see depends on them. Raises RpcError."""
        if not self.knows_tools(self.of(call.principal), upstream):
            listing, _ = await learn_listing(upstream, m.TOOLS_LIST, call)
            self._learn(upstream, listing)

    def _learn(self, upstream: Upstream, listing: Listing) -> None:
        changed = [view for view in self.views.values() if view.hints.get(upstream.name) != listing.hints]
        if changed:
            # A view that selects by annotations may decide otherwise from now on.
            self._decisions.clear()
        for selection in changed:
            selection.learn(upstream.name, listing.hints)

    def enter(
        self, principal: Principal, view: str, query: str, upstreams: Collection[str]
    ) -> Principal | None:
        """Return the principal in a view, narrowed by the query of its URL; None if it may not use the view.

        `view`: "" for everything. `upstreams`: all configured names. Raises BadNarrowing for a bad query.
        """
        if principal is ANYONE and not query and (anyone := self._anyone.get(view)) is not None:
            return anyone
        selection = self.views.get(view)
        if view and (selection is None or not selection.admits(principal)):
            return None
        inside = principal.within(view)
        narrowing = read_narrowing(query) if query else ""
        if not narrowing:
            return inside
        # Only names that the client may see: an error must not confirm the others.
        seen = list(filter(self.of(inside).sees, upstreams))
        for glob in globs_in(narrowing).get(UPSTREAMS, ()):
            if not any(matches(parse_glob(glob), name) for name in seen):
                raise BadNarrowing(f"the query's upstreams: there is none called {glob} here")
        # A narrowed view is a view: the short cut for open access must not be taken any more.
        self._has_views, self.is_open = True, False
        return principal.within(f"{view}{NARROWED}{narrowing}")

    # Lists

    async def shown(self, call: Call, upstream: str, key: str, names: Sequence[str | None]) -> list[bool]:
        """Return for each item of an upstream's list whether it is shown. A task is shown if its tool is.

        `names`: of the items. Other tasks get their turn in between, as a list may have many URIs, and a URI
        many spellings to judge.
        """
        judge, method = self.of(call.principal), call.method
        if judge.is_open:
            return [True] * len(names)
        if method == m.TASKS_LIST:
            names = [self.tool_of(key, task_id) for task_id in names]
        shown: list[bool] = []
        until = trio.current_time() + TURN_SECONDS
        for name in names:
            shown.append(judge.may(upstream, method, name))
            if trio.current_time() > until:
                until = await next_turn()
        return shown

    async def sift_result(self, call: Call, upstream: str, key: str, result: Fields) -> Fields:
        """Return the only upstream's answer (changed in place), without list items that are not shown."""
        judge = self.of(call.principal)
        overrides = judge.overrides
        if judge.is_open and not overrides:
            return result
        kind = m.PAGED.get(call.method)
        if kind is not None:
            try:
                items = objects_in(result.get(kind.items, b"[]"))
            except ValueError:
                items = []
            names = [text_of(item.get(NAMED_BY[call.method])) for item in items]
            shown = await self.shown(call, upstream, key, names)
            if overrides and call.method in KIND_OF:
                shown = list(map(and_, shown, overrides.apply(upstream, KIND_OF[call.method], names, items)))
            result[kind.items] = raw(list(compress(items, shown)))
        return self.confined(result)

    def confined(self, result: Fields) -> Fields:
        """Return a result (changed in place), marked as private if there are rules for principals.

        A shared cache could otherwise give it to another principal.
        """
        # Without a policy all principals see the same, and the server's own scope holds.
        if self.policy is not None and "cacheScope" in result:
            result["cacheScope"] = raw("private")
        return result
