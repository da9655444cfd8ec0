"""Find the upstream that a client means by a URI or a name.

Promises: a name with a prefix belongs to that prefix's upstream, even if others list it; a name without one
belongs to the only upstream that has it, and if several have it the refusal names them all; no client learns
of an item that it may not use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from mcpmux.config.views import PROMPTS, RESOURCES, TEMPLATES, TOOLS
from mcpmux.errors import RpcError
from mcpmux.mux.access import NOUNS, as_refused, no_item, no_resource, one_of
from mcpmux.mux.pattern import Target, matches_template
from mcpmux.mux.policy import NO_RULE, SOME
from mcpmux.mux.rewrite import Namespace, Space
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.runtime.access_control import AccessControl
from mcpmux.runtime.merger import Merger, Reasons, incomplete
from mcpmux.runtime.visible_names import VisibleNames
from mcpmux.transports.inline import together
from mcpmux.upstreams.lists import names_of
from mcpmux.upstreams.registry import UpstreamRegistry
from mcpmux.upstreams.upstream import Upstream


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
        try:
            return await self._resolve_uri(uri, call, use)
        except RpcError as error:
            kinds = (TEMPLATES,) if use == m.COMPLETE else (RESOURCES,)
            raise await self.visible.with_hint(error, uri, call, kinds) from None

    async def _resolve_uri(self, uri: str, call: Call, use: str) -> tuple[str, str, Reasons]:
        judge = self._access.of(call.principal)
        resolved = self.namespace.resolve_uri(uri)
        own = uri if resolved is None else resolved[1]
        target = Target(own, is_template=True) if use == m.COMPLETE else own
        if resolved is not None:
            rule = judge.refused_by(resolved[0], use, target)
            if rule is not None:
                raise as_refused(no_resource(uri), rule)
            return (*resolved, {})
        # Only upstreams of which the client may use the URI: the others are not even asked.
        candidates = [name for name in self._registry if judge.may(name, use, target)]
        owners = await self._owners_of(uri, call, candidates)
        owner = self._sole(owners, uri, no_resource(uri), Space.expose_uri)
        return owner, uri, owners.missing

    def _sole(
        self, owners: Owners, wanted: str, refusal: RpcError, expose: Callable[[Space, str], str]
    ) -> str:
        """Return the only owner of a name or URI without a prefix. Raises RpcError for none or several.

        `refusal`: the error for none. `expose` returns the name with an upstream's prefix.
        """
        candidates, missing, all_meant = owners
        # With one candidate a missing upstream is only mentioned in the answer, unless merging is strict.
        if missing and len(candidates) < 2 and (not candidates or self._merger.merging.strict):
            raise incomplete(f"It is not known who owns {wanted}", self._registry, missing, **refusal.data)
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
                    if any(matches_template(template, text) for template in names):
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
