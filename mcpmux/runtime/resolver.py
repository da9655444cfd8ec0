"""Find the upstream that a client means by a URI or a name, and the names that a client sees.

Promises: a name with a prefix belongs to that prefix's upstream, even if others list it; a name without one
belongs to the only upstream that has it, and if several have it the refusal names them all; no client learns
of an item that its principal may not use, or that is not in its view; a hint never delays an answer for
longer than HINT_SECONDS, and a hint that fails is left out.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import compress
from typing import Final, NamedTuple, TypeVar

import structlog
import trio

from mcpmux.channels.tap import EXCHANGE
from mcpmux.config.report import CANDIDATES_LIMIT, suggestion
from mcpmux.config.views import KINDS, PROMPTS, RESOURCES, TEMPLATES, TOOLS
from mcpmux.errors import Refused, RpcError
from mcpmux.mux.access import NOUNS, as_refused, no_item, no_resource, one_of
from mcpmux.mux.override import Names
from mcpmux.mux.pattern import Target, matches, matches_template, parse_glob
from mcpmux.mux.policy import NO_RULE, SOME
from mcpmux.mux.rewrite import Namespace, Space
from mcpmux.mux.view import KIND_OF_LIST, UPSTREAMS, BadNarrowing, globs_in
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.codes import INVALID_PARAMS, METHOD_NOT_FOUND, UPSTREAM_UNAVAILABLE
from mcpmux.protocol.envelope import members_of
from mcpmux.protocol.principal import NARROWED, Principal
from mcpmux.runtime.access_control import AccessControl
from mcpmux.runtime.merger import Merger, Reasons, describe, incomplete
from mcpmux.transports.inline import TURN_SECONDS, in_task, next_turn, together
from mcpmux.upstreams.lists import names_of
from mcpmux.upstreams.registry import UpstreamRegistry
from mcpmux.upstreams.upstream import Upstream

log = structlog.get_logger()

HINT_SECONDS: Final = 2.0  # for all lists together; a refusal without a hint is better than a late one
JUDGE_SECONDS: Final = 2.0  # for all lists together; host apps wait some ten seconds for a first answer
UNKNOWN_SECONDS: Final = 60.0  # until a query is judged again after an upstream has not answered
# Queries of principals that are remembered; a hostile client may send new ones all day.
JUDGED_LIMIT: Final = 256

FEW_NAMES: Final = 100  # a search in more takes longer than starting a thread for it
SEARCHES_LIMIT: Final = 1  # threads: Python runs one at a time, and hints may be late

T = TypeVar("T")

_LIST_OF: Final = {KIND_OF_LIST[method]: method for method in m.LISTS}
_NOT_FOUND: Final = frozenset({INVALID_PARAMS, METHOD_NOT_FOUND, -32002})


class Owners(NamedTuple):
    """The owners of a URI or a name. `missing`: the upstreams that could not be asked, with the reason.

    `all_meant`: no upstream was left out because of access rules.
    """

    names: list[str]
    missing: dict[str, str]
    all_meant: bool


OwnName = Callable[[str, str], str | None]
"""Return an upstream's own name (upstream, name for clients) of an item; None if it has no such item."""


def _as_it_is(_upstream: str, name: str) -> str | None:
    return name


async def _is_of_template(upstream: Upstream, templates: Collection[str], uri: str) -> bool:
    """Return whether a URI is one of an upstream's templates, or matches one.

    Other tasks get their turn in between. Raises RpcError after `list_timeout`.
    """
    # For a completion it is a template, which need not match itself (`a{?q}`).
    if uri in templates:
        return True
    now = trio.current_time()
    until, seconds = now + TURN_SECONDS, upstream.config.list_timeout
    for template in templates:
        if matches_template(template, uri):
            return True
        if trio.current_time() > until:
            until = await next_turn()
            if until > now + seconds:
                reason = f"has templates that take longer than its list_timeout, {seconds:g} s, to match"
                raise upstream.status.error(UPSTREAM_UNAVAILABLE, reason)
    return False


class Resolver:
    """Resolves URIs and names. `namespace` is replaced as a whole when the set of upstreams changes."""

    def __init__(
        self, registry: UpstreamRegistry, namespace: Namespace, access: AccessControl, merger: Merger
    ) -> None:
        self.namespace = namespace
        self._registry, self._access, self._merger = registry, access, merger
        self.visible = VisibleNames(registry, access)

    async def resolve_uri(self, uri: str, call: Call, use: str) -> tuple[str, str, Reasons]:
        """Return (upstream, its own URI, upstreams that may own it too but could not be asked).

        `uri`: a URI, or a template for a completion. `use`: the method that it is for. Raises RpcError.
        """
        judge = self._access.of(call.principal)
        resolved = self.namespace.resolve_uri(uri)
        own = uri if resolved is None else resolved[1]
        target = Target(own, is_template=True) if use == m.COMPLETE else own
        try:
            if resolved is not None:
                rule = judge.refused_by(resolved[0], use, target)
                if rule is not None:
                    raise as_refused(no_resource(uri), rule)
                return (*resolved, {})
            # Only upstreams of which the client may use the URI: the others are not even asked.
            candidates = [name for name in self._registry if judge.may(name, use, target)]
            owners = await self._owners_of(uri, call, candidates)
            return self._sole(owners, uri, no_resource(uri), Space.expose_uri), uri, owners.missing
        except RpcError as error:
            kinds = (TEMPLATES,) if use == m.COMPLETE else (RESOURCES,)
            raise await self.visible.with_hint(error, uri, call, kinds) from None

    def _sole(
        self, owners: Owners, wanted: str, refusal: RpcError, expose: Callable[[Space, str], str]
    ) -> str:
        """Return the only owner of a name or URI without a prefix. Raises RpcError for none or several.

        `refusal`: the error for none. `expose` returns the name with an upstream's prefix.
        """
        candidates, missing, all_meant = owners
        # With one candidate a missing upstream is only mentioned in the answer, unless merging is strict.
        if missing and len(candidates) < 2 and (not candidates or self._merger.merging.strict):
            left_out = describe(self._registry, missing)
            raise incomplete(f"It is not known who owns {wanted}", left_out, **refusal.data)
        if len(candidates) == 1:
            return candidates[0]
        if not candidates:
            # The client gets the same error; only the records tell a refusal from a mistake.
            raise refusal if all_meant else as_refused(refusal, NO_RULE)
        spaces = self.namespace.spaces
        raise one_of(refusal, wanted, [expose(spaces[name], wanted) for name in candidates])

    async def resolve_name(self, name: str, call: Call, use: str) -> tuple[str, str, Reasons]:
        """Return the same as `resolve_uri`, for the name of a tool or a prompt."""
        try:
            return await self._resolve_name(name, call, use)
        except RpcError as error:
            kinds = (TOOLS,) if use == m.TOOLS_CALL else (PROMPTS,)
            raise await self.visible.with_hint(error, name, call, kinds) from None

    async def _resolve_name(self, name: str, call: Call, use: str) -> tuple[str, str, Reasons]:
        namespace, access = self.namespace, self._access
        judge = access.of(call.principal)
        listed = m.TOOLS_LIST if use == m.TOOLS_CALL else m.PROMPTS_LIST
        resolved = namespace.resolve_name(name)
        if resolved is None:
            # Before the judge is asked, as a view may select tools by their annotations.
            if use == m.TOOLS_CALL:
                await self._learn_all(call)
            owns = {upstream: judge.own_name(use, upstream, name) for upstream in self._registry}
            candidates = [
                upstream
                for upstream, own in owns.items()
                if own is not None and judge.may(upstream, use, own)
            ]
            owners = await self._owners_of(name, call, candidates, listed, partial(judge.own_name, use))
            owner = self._sole(owners, name, no_item(NOUNS[use], name), Space.expose_name)
            return owner, owns[owner] or name, owners.missing
        # First: `for_call`, below, may open a session with an upstream that the client must not reach.
        if not judge.may(resolved[0], use, SOME):
            raise as_refused(no_item(NOUNS[use], name), NO_RULE)
        if namespace.is_shortened(name):
            own = await self._long_name(name, resolved[0], listed, call)
        else:
            own = judge.own_name(use, *resolved)
        if own is None:
            raise no_item(NOUNS[use], name)
        resolved = resolved[0], own
        if use == m.TOOLS_CALL:
            await access.learn_tools(self._registry.for_call(resolved[0], call), call)
        rule = judge.refused_by(resolved[0], use, resolved[1])
        if rule is not None:
            raise as_refused(no_item(NOUNS[use], name), rule)
        return (*resolved, {})

    async def _long_name(
        self, name: str, owner: str, list_method: str, call: Call, *, anew: bool = False
    ) -> str | None:
        """Return the upstream's own name that is exposed as `name`, a shortened one; None if it has none."""
        judge, upstream = self._access.of(call.principal), self._registry.for_call(owner, call)
        names, again = await names_of(upstream, list_method, call, anew=anew)
        shown = [judge.shown_name(call.method, owner, own) for own in names]
        found = self.namespace.match_name(name, owner, shown)
        if found is None:
            # The name may be newer than the remembered list: ask once more.
            return await self._long_name(name, owner, list_method, call, anew=True) if again else None
        return judge.own_name(call.method, owner, found)

    async def _owners_of(
        self,
        text: str,
        call: Call,
        asked: Collection[str],
        list_method: str = m.RESOURCES_LIST,
        own_name: OwnName = _as_it_is,
        *,
        anew: bool = False,
    ) -> Owners:
        """Return those of `asked` that list a URI or name; if none does, those with a template for the URI.

        `own_name` translates the name for each upstream. `anew`: what is remembered of their lists is not
        enough, as it had no owner. An upstream that does not answer in time is `missing`, and no owner.
        """
        listed: set[str] = set()
        templated: set[str] = set()
        missing: dict[str, str] = {}
        again = False

        async def claim(upstream: Upstream) -> None:
            nonlocal again
            try:
                names, remembered = await names_of(upstream, list_method, call, anew=anew)
                again = again or remembered
                if own_name(upstream.name, text) in names:
                    listed.add(upstream.name)
                elif list_method == m.RESOURCES_LIST:  # it may be one of a template
                    names, remembered = await names_of(upstream, m.TEMPLATES_LIST, call, anew=anew)
                    again = again or remembered
                    if await _is_of_template(upstream, names, text):
                        templated.add(upstream.name)
            except RpcError as error:
                missing[upstream.name] = error.message

        sessions = [self._registry.for_call(name, call) for name in asked]
        await together([claim(session) for session in sessions])
        owners = listed or templated
        # Something new is in no remembered list: ask once more before refusing.
        if again and not owners:
            return await self._owners_of(text, call, asked, list_method, own_name, anew=True)
        return Owners([name for name in asked if name in owners], missing, len(asked) == len(self._registry))

    async def _learn_all(self, call: Call) -> None:
        """Learn the tools of all upstreams for which the view of a call decides by annotations."""
        judge, access = self._access.of(call.principal), self._access
        if judge.is_plain:
            return
        judged = [self._registry.for_call(name, call) for name in self._registry if judge.goes_by_tools(name)]
        unknown = [upstream for upstream in judged if not access.knows_tools(judge, upstream)]

        async def learn(upstream: Upstream) -> None:
            with suppress(RpcError):  # an upstream that cannot be learned is left out by the view
                await access.learn_tools(upstream, call)

        await together([learn(upstream) for upstream in unknown])


async def search(find: Callable[[], T], names: Names, limiter: trio.CapacityLimiter | None = None) -> T:
    """Call `find`, which searches in `names`, and return its result; in a thread if there are many names.

    Cancelling this abandons the thread and its result, so `find` must not change anything.
    """
    if sum(len(texts) for listed in names.values() for texts in listed.values()) <= FEW_NAMES:
        return find()
    return await trio.to_thread.run_sync(find, abandon_on_cancel=True, limiter=limiter)


class VisibleNames:
    """Searches the upstreams' names as far as the principal of a call sees them."""

    def __init__(self, registry: UpstreamRegistry, access: AccessControl) -> None:
        self._registry, self._access = registry, access
        self._searches = trio.CapacityLimiter(SEARCHES_LIMIT)
        # Until when the verdict on a query holds: for ever once all upstreams have answered, so that a later
        # change of lists does not end a session.
        self._judged: dict[Principal, float] = {}

    # Hints

    async def with_hint(self, error: RpcError, text: str, call: Call, kinds: Collection[str]) -> RpcError:
        """Return the error; if it means that `text` does not exist, with the nearest visible name added."""
        if error.code not in _NOT_FOUND or text not in error.message or "did you mean" in error.message:
            return error
        if "candidates" in members_of(error.data):  # it names what is meant already
            return error
        await in_task()
        near = None
        with trio.move_on_after(HINT_SECONDS):
            owner = next(filter(None, (self._access.naming.owner_of(text, kind) for kind in kinds)), None)
            upstreams = self._registry if owner is None else [owner]
            names, _ = await self._look(call, kinds, upstreams, connected=True)
            view = call.principal.view_name
            find = partial(self._access.naming.nearest, text, kinds, names, view, with_own=False)
            near = await search(find, names, self._searches)
        if near is None or near == text:
            return error
        message = error.message + suggestion(near)
        if isinstance(error, Refused):
            return Refused(error.code, message, error.rule, error.data)
        return RpcError(error.code, message, error.data)

    async def _look(
        self, call: Call, kinds: Collection[str], upstreams: Iterable[str], *, connected: bool
    ) -> tuple[Names, bool]:
        """Return (the names that upstreams list and the client of a call sees, whether all have answered).

        `connected`: for a hint: upstreams without a connection and names past CANDIDATES_LIMIT are left out.
        """
        by_name: dict[str, dict[str, Sequence[str]]] = {}
        is_whole = True

        async def look(name: str, kind: str) -> None:
            nonlocal is_whole
            EXCHANGE.set(0)  # these requests are mcpmux's own, not part of the refused exchange
            list_call = call.on_behalf(_LIST_OF[kind], {})
            try:
                upstream = self._registry.for_call(name, list_call)
                if connected and upstream.status.connection is None:
                    return
                names, _ = await names_of(upstream, list_call.method, list_call)
                texts = list(names)[: CANDIDATES_LIMIT if connected else None]
                if list_call.method == m.TOOLS_LIST:
                    await self._access.learn_tools(upstream, list_call)
                shown = await self._access.shown(list_call, name, upstream.key, texts)
                by_name.setdefault(name, {})[kind] = list(compress(texts, shown))
            except RpcError:
                is_whole = False

        async with trio.open_nursery() as nursery:
            for kind in kinds:
                for name in self._access.of(call.principal).visible(_LIST_OF[kind], upstreams):
                    nursery.start_soon(look, name, kind)
        return by_name, is_whole

    # Queries

    def judging(self, principal: Principal) -> Awaitable[list[str]] | None:
        """Return an awaitable that checks whether the query in a principal's view selects any item.

        None if that is known. Awaiting it returns a sentence for each part that selects no item, and raises
        BadNarrowing if no part selects any.
        """
        if NARROWED not in principal.view or self._judged.get(principal, 0.0) > trio.current_time():
            return None
        return self._judge(principal)

    async def _judge(self, principal: Principal) -> list[str]:
        await in_task()
        view, _, narrowing = principal.view.partition(NARROWED)
        globs = globs_in(narrowing)
        kinds = [kind for kind in KINDS if kind in globs]
        among = list(map(parse_glob, globs.get(UPSTREAMS, ())))
        call = Call(m.TOOLS_LIST, {}, {}, principal=principal.within(view))
        looked_at = [*kinds, TEMPLATES] if RESOURCES in kinds and TEMPLATES not in kinds else kinds
        parts = [(kind, glob) for kind in kinds for glob in globs[kind]]
        idle, sentences, is_whole = list[tuple[str, str]](), list[str](), False

        def find(names: Names) -> tuple[list[tuple[str, str]], list[str]]:
            naming, idle, sentences = self._access.naming, list[tuple[str, str]](), list[str]()
            for kind, glob in parts:
                if glob == "*" or naming.is_listed(glob, [kind], (), names, naming.certain, view):
                    continue
                idle.append((kind, glob))
                count = sum(len(listed.get(kind, ())) for listed in names.values())
                hint = suggestion(naming.nearest(glob, [kind], names, view))
                sentences.append(f"none of {count} {kind} is `{glob}`{hint}")
            return idle, sentences

        with trio.move_on_after(JUDGE_SECONDS):  # a server that is still starting may take longer
            names, have_all_answered = await self._look(call, looked_at, self._registry, connected=False)
            names = {
                name: listed
                for name, listed in names.items()
                if not among or any(matches(glob, name) for glob in among)
            }
            if have_all_answered:
                idle, sentences = await search(partial(find, names), names, self._searches)
                is_whole = True
        if idle and len(idle) == len(parts):
            raise BadNarrowing(f"the query selects nothing: {'; '.join(sentences)}")
        for sentence in sentences:
            log.warning("a part of a client's query selects nothing", problem=sentence, view=principal.view)
        if len(self._judged) >= JUDGED_LIMIT:
            self._judged.clear()
        self._judged[principal] = math.inf if is_whole else trio.current_time() + UNKNOWN_SECONDS
        return sentences
