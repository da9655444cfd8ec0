"""Find the upstream that a client means by a URI or a name.

Promises: a name with a prefix belongs to that prefix's upstream, even if others list it; a name without one
belongs to the only upstream that has it, and if several have it the refusal names them all; no client learns
of an item that it may not use.

Apps call tools by names without a prefix, over and over. So the owner of such a name is remembered until a
list of tools changes, for TOOLS_KNOWN_SECONDS at most.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio

from mcpmux.config.views import PROMPTS, RESOURCES, TEMPLATES, TOOLS
from mcpmux.errors import RpcError
from mcpmux.lru import Lru
from mcpmux.mux.access import NOUNS, as_refused, no_item, no_resource, one_of
from mcpmux.mux.pattern import Target
from mcpmux.mux.policy import NO_RULE, SOME
from mcpmux.mux.rewrite import Namespace, Space
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.principal import Principal
from mcpmux.runtime.access_control import AccessControl
from mcpmux.runtime.merger import (
    NAMES_BYTES,
    NAMES_KEPT,
    TOOLS_KNOWN_SECONDS,
    Catalog,
    Merger,
    Owners,
    Reasons,
    incomplete,
    learn_tools,
)
from mcpmux.runtime.visible_names import VisibleNames
from mcpmux.transports.inline import in_task
from mcpmux.upstreams.registry import UpstreamRegistry


class Resolver:
    """Resolves URIs and names. `namespace` is replaced as a whole when the set of upstreams changes."""

    def __init__(
        self, registry: UpstreamRegistry, namespace: Namespace, access: AccessControl, merger: Merger
    ) -> None:
        self.namespace = namespace
        self._registry, self._access, self._merger = registry, access, merger
        self._catalog = Catalog(registry)
        self.visible = VisibleNames(registry, access)
        # The only owner of a tool, by its name: (upstream, until when that holds, changes of lists before).
        self._owners: Lru[tuple[Principal, str], tuple[str, float, int]] = Lru(NAMES_KEPT, NAMES_BYTES)

    def forget(self) -> None:
        """Forget what was found, as other names may be shown from now on."""
        self._catalog.forget()
        self._owners.clear()

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
        found = self.namespace.resolve_uri(uri)
        own = uri if found is None else found[1]
        target = Target(own, is_template=True) if use == m.COMPLETE else own
        if found is not None:
            rule = judge.refused_by(found[0], use, target)
            if rule is not None:
                raise as_refused(no_resource(uri), rule)
            return (*found, {})
        # Only upstreams of which the client may use the URI: the others are not even asked.
        asked = [each for each in self._registry if judge.may(each, use, target)]
        owners = await self._catalog.owners_of(uri, call, asked)
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
        found = namespace.resolve_name(name)
        if found is None:
            if use == m.TOOLS_CALL:
                await self._learn_all(call)
            owns = {each: judge.own_name(use, each, name) for each in self._registry}
            asked = [each for each, own in owns.items() if own is not None and judge.may(each, use, own)]
            key, changes = (call.principal, name), access.forgotten
            owner, until, before = self._owners.get(key, ("", 0.0, 0))
            if use == m.TOOLS_CALL and owner in asked and before == changes and trio.current_time() < until:
                return owner, owns[owner] or name, {}
            find = partial(judge.own_name, use)
            owners = await self._catalog.owners_of(name, call, asked, listed, find)
            owner = self._sole(owners, name, no_item(NOUNS[use], name), Space.expose_name)
            # A missing upstream may own it too: then the next call must ask again.
            if use == m.TOOLS_CALL and not owners.missing:
                self._owners[key] = owner, trio.current_time() + TOOLS_KNOWN_SECONDS, changes
            return owner, owns[owner] or name, owners.missing
        if not judge.may(found[0], use, SOME):
            raise as_refused(no_item(NOUNS[use], name), NO_RULE)
        if namespace.is_shortened(name):
            match = partial(self._match_name, name, found[0], call)
            own = await self._catalog.find_name(listed, found[0], name, call, match)
        else:
            own = judge.own_name(use, *found)
        if own is None:
            raise no_item(NOUNS[use], name)
        found = found[0], own
        if use == m.TOOLS_CALL:
            await learn_tools(access, self._registry.for_call(found[0], call), call)
        rule = judge.refused_by(found[0], use, found[1])
        if rule is not None:
            raise as_refused(no_item(NOUNS[use], name), rule)
        return (*found, {})

    def _match_name(self, name: str, owner: str, call: Call, candidates: list[str]) -> str | None:
        """Return the upstream's own name among `candidates` that is exposed as `name`, or None."""
        judge = self._access.of(call.principal)
        shown = [judge.shown_name(call.method, owner, own) for own in candidates]
        found = self.namespace.match_name(name, owner, shown)
        return None if found is None else judge.own_name(call.method, owner, found)

    async def _learn_all(self, call: Call) -> None:
        """Learn the tools of all upstreams for which the view of a call decides by annotations."""
        judge = self._access.of(call.principal)
        names = [name for name in self._registry if self._access.has_to_learn(judge, name, trio.current_time)]

        async def learn(name: str) -> None:
            with suppress(RpcError):  # an upstream that cannot be learned is left out by the view
                await learn_tools(self._access, self._registry.for_call(name, call), call)

        if names:
            await in_task()
            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(learn, name)
