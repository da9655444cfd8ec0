"""The access rules and views in force, and the errors for what they refuse.

Promises: what a principal may not use, or what is not in its view, is answered like something that does not
exist, before any upstream is asked about it; the rules of one moment are one immutable value. Refuses to know
how a use is carried out.

A task belongs to the use of its tool, so it is remembered which tool made which task (`MadeTasks`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import compress
from operator import and_
from types import MappingProxyType
from typing import Final, NamedTuple

import structlog
import trio

from mcpmux.errors import RpcError
from mcpmux.lru import Lru
from mcpmux.mux.access import (
    NOTHING,
    NOUNS,
    InForce,
    Judge,
    as_refused,
    no_item,
    no_method,
    no_resource,
    no_task,
)
from mcpmux.mux.naming import AS_THEY_ARE, Naming
from mcpmux.mux.narrowing import NARROWED, UPSTREAMS, BadNarrowing, globs_in, read_narrowing, views_of
from mcpmux.mux.override import KIND_OF
from mcpmux.mux.ownership import MadeTasks
from mcpmux.mux.parameters import BadArguments, NotJudged, check_arguments, fill_in
from mcpmux.mux.pattern import matches, parse_glob
from mcpmux.mux.policy import Policy
from mcpmux.mux.rewrite import NAMED_BY, Space
from mcpmux.mux.spelling import Target
from mcpmux.mux.view import Hints, Selection, both
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.codes import INVALID_PARAMS
from mcpmux.protocol.envelope import decode_fields, objects_in, raw, text_of, value_of
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.tasks import TASK_ID
from mcpmux.transports.inline import in_task

log = structlog.get_logger()

_JUDGED: Final = {key.casefold(): key for key in ("uri", "name", "ref", TASK_ID)}
_JUDGED_OF_REF: Final = {key: key for key in ("type", "uri", "name")}
"""Members that rules are about. Some servers read them in any case of letters, and take the last one."""

_USUAL: Final = frozenset({"uri", "name", "ref", TASK_ID, "type", "arguments", "argument", "cursor", "_meta"})
"""Members that are what they look like."""

TURN_SECONDS: Final = 0.005  # that judging a list may take in one go
NARROWINGS_KEPT: Final = 256  # made ready; a hostile client may send new ones all day
NARROWINGS_BYTES: Final = 64 * 2**20  # of them and of their globs for each upstream
GLOB_BYTES: Final = 1024  # that a glob takes, ready to be held against an upstream's items, about
DECISIONS_BYTES: Final = 16 * 2**10  # of the decisions in one of them


class Shown(NamedTuple):
    """What clients are shown, whoever they are: `views` by name, and under which names (`naming`).

    `common`: what is selected in every view; None for everything.
    """

    views: Mapping[str, Selection] = MappingProxyType({})
    common: Selection | None = None
    naming: Naming = AS_THEY_ARE


EVERYTHING: Final = Shown()


class AccessControl:
    """Who may use what, in which view. `policy` is None when everything is allowed.

    `is_open`: everybody may use everything, under the names that it has. `views`: by name.
    """

    def __init__(self, policy: Policy | None = None, shown: Shown = EVERYTHING) -> None:
        self.tasks = MadeTasks()
        self.tool_of = self.tasks.tool_of
        self.policy: Policy | None = None
        self.views = EVERYTHING.views
        self._shown = EVERYTHING
        self._has_views = False  # whether there may be clients in views, which these may outlive
        self._learned: dict[str, tuple[Hints, float]] = {}  # by upstream, and until when they are good
        self._schemas: dict[str, dict[str, Raw]] = {}  # of tools whose parameters are overridden
        self._not_judged: set[tuple[str, str]] = set()  # tools with overridden parameters, once logged
        self.forgotten = 0  # how often lists of tools have changed
        self.adopt(policy, shown)

    def adopt(self, policy: Policy | None, shown: Shown) -> frozenset[str]:
        """These are in force from now on. The names of the views in which others were before."""
        before, (views, common, naming), overrides = self._shown, shown, shown.naming.overrides
        names = {"", *before.views, *views}
        is_other = policy is not self.policy or common != before.common
        is_other = is_other or overrides.get("") != before.naming.overrides.get("")
        self._has_views = self._has_views or bool(views)
        self.is_open = not (policy or common or overrides or self._has_views)
        self.policy, self.views, self._shown = policy, views, shown
        if naming.overrides != before.naming.overrides:
            self.forget_tools(None)  # for the schemas of others
        whole = both(policy, common)
        self._in_force = {"": InForce(whole, None, overrides.get(""))}
        self._narrowings: Lru[str, InForce] = Lru(NARROWINGS_KEPT, NARROWINGS_BYTES)
        self._anyone = {name: ANYONE.within(name) for name, each in views.items() if each.admits(ANYONE)}
        for name, selection in views.items():
            for upstream, (hints, _) in self._learned.items():
                selection.learn(upstream, hints)
            self._in_force[name] = InForce(both(whole, selection), selection, overrides.get(name))
        return frozenset(name for name in names if is_other or before.views.get(name) != views.get(name))

    @property
    def naming(self) -> Naming:
        """The names that things have for clients."""
        return self._shown.naming

    def of(self, principal: Principal) -> Judge:
        """Return the judge of what a principal may see and use now."""
        return Judge(principal, self._in_force.get(principal.view) or self._narrowed(principal.view))

    def _narrowed(self, view: str) -> InForce:
        """What holds in a view that a client has narrowed; nothing is there if the view has gone."""
        if (found := self._narrowings.get(view)) is not None:
            return found
        name, _, narrowing = view.partition(NARROWED)
        whole = self._in_force.get(name)
        if not narrowing or whole is None:
            return InForce(NOTHING)
        rules, naming = whole.rules, self._shown.naming
        globs = 0
        for each in views_of(narrowing):
            globs += len(each.include)
            rules = both(rules, Selection(f"views.{view}", each, DECISIONS_BYTES, naming, name))
        found = InForce(rules, whole.selection, whole.overrides)
        size = globs * max(1, len(naming.namespace.spaces)) * GLOB_BYTES + 2 * DECISIONS_BYTES
        self._narrowings.keep(view, found, size)
        return found

    # What clients are told in place of what upstreams say

    def filled_in(self, judge: Judge, upstream: str, own: str, sent: Raw) -> Raw | None:
        """Return the arguments that an upstream's tool gets for those that were `sent`; None for the same.

        The tool has been learned. Raises RpcError for arguments that it does not take as it is shown.
        """
        overrides = judge.overrides
        parameters = overrides.parameters(upstream, own) if overrides is not None else {}
        if not parameters:
            return None
        try:
            arguments = decode_fields(sent)
        except ValueError:
            raise RpcError(INVALID_PARAMS, 'Invalid params: "arguments" must be an object') from None
        schema = value_of(self._schemas.get(upstream, {}).get(own))
        try:
            check_arguments(arguments, schema if isinstance(schema, dict) else {}, parameters)
        except BadArguments as mistake:
            raise RpcError(INVALID_PARAMS, f"Invalid params: {mistake}") from None
        except NotJudged as reason:
            if (upstream, own) not in self._not_judged:
                self._not_judged.add((upstream, own))
                what = "arguments are not checked: the server will judge"
                log.warning(what, upstream=upstream, tool=own, reason=str(reason))
        return raw(fill_in(arguments, parameters))

    def overridden(
        self, call: Call, space: Space, names: Sequence[str | None], items: Sequence[Raw]
    ) -> tuple[Sequence[str | None], Sequence[Raw]]:
        """Names and items of an upstream's list, as the client of a call is told of them.

        `names`: the upstream's own; `items`: as clients would see them.
        """
        overrides, kind = self.of(call.principal).overrides, KIND_OF.get(call.method)
        if overrides is None or kind is None:
            return names, items
        fields = [decode_fields(item) for item in items]
        shown = overrides.apply(space.upstream, kind, names, fields, space.expose_name)
        return list(compress(names, shown)), [raw(item) for item in compress(fields, shown)]

    # Tools that views select by their annotations

    def has_to_learn(self, judge: Judge, upstream: str, clock: Callable[[], float]) -> bool:
        """Return whether the tools of an upstream have to be known before a view decides about them.

        `clock`: tells what time it is, as in `learn`.
        """
        selection, overrides = judge.selection, judge.overrides
        goes_by_hints = selection is not None and selection.asks_hints(upstream)
        if not goes_by_hints and (overrides is None or not overrides.has_parameters(upstream)):
            return False
        return upstream not in self._learned or self._learned[upstream][1] <= clock()

    def learn(self, upstream: str, hints: Hints, schemas: Mapping[str, Raw], until: float) -> None:
        """What is known of an upstream's tools, and until when that is good unless it is forgotten.

        `schemas`: input schemas by name.
        """
        self._learned[upstream] = hints, until
        self._schemas[upstream] = {
            own: schema
            for own, schema in schemas.items()
            if any(each.parameters(upstream, own) for each in self._shown.naming.overrides.values())
        }
        for selection in self.views.values():
            selection.learn(upstream, hints)

    def forget_tools(self, upstream: str | None) -> None:
        """The tools of an upstream (None: of all) may have changed: to be learned again at the next use."""
        self.forgotten += 1
        for name in [upstream] if upstream is not None else list(self._learned):
            if name in self._learned:
                self._learned[name] = self._learned[name][0], -math.inf

    def enter(
        self, principal: Principal, view: str, query: str, upstreams: Collection[str]
    ) -> Principal | None:
        """Somebody in a view, "" for the one with everything, as the query of its URL narrows that.

        None when there is no such view for it. Raises BadNarrowing; `upstreams`: the configured ones.
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
        seen = list(filter(self.of(inside).sees, upstreams))
        for glob in globs_in(narrowing).get(UPSTREAMS, ()):
            if not any(matches(parse_glob(glob), name) for name in seen):
                raise BadNarrowing(f"the query's upstreams: there is none called {glob} here")
        self._has_views, self.is_open = True, False
        return principal.within(f"{view}{NARROWED}{narrowing}")

    # Lists

    async def shown(self, call: Call, upstream: str, key: str, names: Sequence[str | None]) -> list[bool]:
        """Return which items of an upstream's list are shown, by their names. A task is shown as its tool is.

        Others get their turn in between: a list can have many URIs with many readings.
        """
        rules, method = self.of(call.principal).rules, call.method
        if rules is None:
            return [True] * len(names)
        if method == m.TASKS_LIST:
            names = [self.tool_of(key, task_id) for task_id in names]
        shown: list[bool] = []
        until = trio.current_time() + TURN_SECONDS
        for name in names:
            shown.append(rules.shows(call.principal, upstream, method, name))
            if trio.current_time() > until:
                await in_task()
                await trio.lowlevel.checkpoint()
                until = trio.current_time() + TURN_SECONDS
        return shown

    async def sift_result(self, call: Call, upstream: str, key: str, result: Fields) -> Fields:
        """An upstream's own answer to a list (changed in place), or to anything else."""
        judge = self.of(call.principal)
        overrides = judge.overrides
        if overrides is None and judge.rules is None:
            return result
        kind = m.PAGED.get(call.method)
        if kind is not None:
            try:
                items = objects_in(result.get(kind.items, b"[]"))
            except ValueError:
                items = []
            names = [text_of(item.get(NAMED_BY[call.method])) for item in items]
            shown = await self.shown(call, upstream, key, names)
            if overrides is not None and call.method in KIND_OF:
                shown = list(map(and_, shown, overrides.apply(upstream, KIND_OF[call.method], names, items)))
            result[kind.items] = raw(list(compress(items, shown)))
        return self.confined(result)

    def confined(self, result: Fields) -> Fields:
        """A result that is this principal's alone, where rules tell principals apart (changed in place).

        No cache may give it to another.
        """
        if self.policy is not None and "cacheScope" in result:
            result["cacheScope"] = raw("private")
        return result

    # Uses

    def check_spelling(self, call: Call) -> None:
        """Raises RpcError for a member that some server may take for another one, which is the one judged."""
        _check_keys(call.params, _JUDGED)

    def read_ref(self, call: Call) -> tuple[Fields, str, str]:
        """What a completion is about: its `ref`, the member that names it, and the name. Raises RpcError."""
        try:
            ref = decode_fields(call.params["ref"])
        except (KeyError, ValueError):
            raise RpcError(INVALID_PARAMS, 'Invalid params: "ref" must be an object') from None
        is_judged = self.of(call.principal).rules is not None
        if is_judged:
            _check_keys(ref, _JUDGED_OF_REF)
        key = {"ref/resource": "uri", "ref/prompt": "name"}.get(text_of(ref.get("type")) or "", "")
        named = text_of(ref.get(key))
        if named is None:
            raise RpcError(INVALID_PARAMS, 'Invalid params: "ref" must be a ref/prompt or a ref/resource')
        other = "name" if key == "uri" else "uri"
        if other in ref and is_judged:  # the server may complete that one
            kind = text_of(ref["type"])
            raise RpcError(INVALID_PARAMS, f'Invalid params: a {kind} has a "{key}" and no "{other}"')
        return ref, key, named

    def admit(self, call: Call, upstream: str, key: str) -> Fields | None:
        """Return the answer to a call to the only upstream there is, if that need not see it.

        Raises Refused.
        """
        judge = self.of(call.principal)
        if judge.rules is None:
            return None
        use = call.method
        target: str | Target | None = None
        refusal: Callable[[], RpcError] = partial(no_method, use)
        if use in m.PAGED:
            if judge.visible(use, [upstream]):
                return None
            empty = {"resultType": raw("complete"), m.PAGED[use].items: raw([])}
            return {**empty, "ttlMs": raw(0), "cacheScope": raw("private")}
        if use == m.RESOURCES_READ:
            target = call.text("uri") or ""
            refusal = partial(no_resource, target)
        elif use in NOUNS and use != m.COMPLETE:
            target = call.text("name") or ""
            refusal = partial(no_item, NOUNS[use], target)
        elif use in m.ABOUT_ONE_TASK:
            use, target, refusal = m.TOOLS_CALL, self.tool_of(key, call.text(TASK_ID)), no_task
        elif use == m.COMPLETE:
            _, member, named = self.read_ref(call)
            target, refusal = named, partial(no_item, NOUNS[use], named)
            if member == "uri":
                target, refusal = Target(named, is_template=True), partial(no_resource, named)
        rule = judge.refused_by(upstream, use, target)
        if rule is not None:
            raise as_refused(refusal(), rule)
        return None


def _check_keys(members: Fields, judged: Mapping[str, str]) -> None:
    for key in members:
        if key in _USUAL:
            continue
        meant = judged.get(key.casefold(), key)
        if key != meant:
            raise RpcError(INVALID_PARAMS, f'Invalid params: {key!r} is not known; is "{meant}" meant?')
