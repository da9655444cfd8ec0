"""Which upstream answers what: the core's one exchange, over all of them.

Promises: a routed request reaches exactly one upstream, under that upstream's own names; a list holds every
upstream's items; what is left out is told. Refuses to know transports, sessions and revisions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from msgspec import Raw

from mcpmux.errors import RpcError
from mcpmux.mux import rewrite, task_ids
from mcpmux.mux.identity import merge_capabilities, merge_instructions
from mcpmux.mux.namespace import Namespace
from mcpmux.protocol import method as m
from mcpmux.protocol.asking import elicitation_ids
from mcpmux.protocol.call import META, SERVER_INFO, Call, Event, Notify
from mcpmux.protocol.codes import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    UPSTREAM_TIMEOUT,
    URL_ELICITATION_REQUIRED,
)
from mcpmux.protocol.envelope import Fields, decode_fields, raw, text_of
from mcpmux.protocol.revisions import SUPPORTED
from mcpmux.protocol.tasks import TASK_ID
from mcpmux.runtime.calls import Client
from mcpmux.runtime.catalog import Catalog
from mcpmux.runtime.mailbox import Mailbox
from mcpmux.runtime.merger import Merger
from mcpmux.runtime.relay import Relay
from mcpmux.runtime.tasks.tasks import Tasks, task_not_found
from mcpmux.runtime.upstreams.fleet import Fleet
from mcpmux.runtime.upstreams.upstream import Upstream
from mcpmux.runtime.visits import arrange_visit

STARTUP_SECONDS = 10.0  # how long a client's first question waits for upstreams that are still starting


Introduction = tuple[dict[str, object], str | None]
Introduce = Callable[[], Awaitable[Introduction]]
"""Says (capabilities, instructions) of the whole."""


class Router:
    """All upstreams behind one `exchange`."""

    def __init__(
        self,
        fleet: Fleet,
        namespace: Namespace,
        merger: Merger,
        relay: Relay,
        tasks: Tasks,
        server_info: Raw,
        instructions: str | None,
    ) -> None:
        self._fleet = fleet
        self._namespace = namespace
        self._merger = merger
        self._relay = relay
        self._tasks = tasks
        self._catalog = Catalog(fleet)
        self._server_info = server_info
        self._instructions = instructions
        self._routes: dict[str, Callable[[Call, Notify], Awaitable[Fields]]] = {
            m.DISCOVER: self._discover,
            m.RESOURCES_READ: self._read,
            m.TOOLS_CALL: self._call_tool,
            m.PROMPTS_GET: self._get_prompt,
            m.COMPLETE: self._complete,
            **dict.fromkeys(m.PAGED, self._list),
            **dict.fromkeys(m.ABOUT_ONE_TASK, self._about_task),
        }

    def __repr__(self) -> str:
        return f"<Router {self._fleet}>"

    async def exchange(self, call: Call, notify: Notify) -> Fields:
        """Answer one call. Raises RpcError."""
        only = self._namespace.transparent
        if only is not None and call.method != m.DISCOVER:
            upstream = self._fleet.for_call(only, call)
            try:
                if call.method in m.ABOUT_TASKS:
                    result = await self._tasks.exchange(upstream, call, notify)
                else:
                    result = await upstream.exchange(call, notify)
            except RpcError as error:
                return await self._after_error(upstream, call, notify, error)
            return self._noted(upstream, call, result)
        route = self._routes.get(call.method)
        if route is None:
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {call.method}")
        return self._signed(await route(call, notify))

    def _signed(self, result: Fields) -> Fields:
        """The result as mcpmux's own: `_meta` names us as the server on this leg."""
        try:
            meta = decode_fields(result.get(META))
        except ValueError:
            meta = {}
        meta[SERVER_INFO] = self._server_info
        result[META] = raw(meta)
        return result

    async def introduce(self, *, legacy: bool = False) -> Introduction:
        """(capabilities, instructions) of the whole, after upstreams that are starting had their chance.

        `legacy`: servers of both eras may offer other things to a client of a legacy revision.
        """
        with trio.move_on_after(STARTUP_SECONDS):
            await self._fleet.settled(legacy=legacy)
        facts = self._fleet.facts(legacy=legacy)
        capabilities = merge_capabilities((fact for _, fact in facts), legacy=legacy)
        if self._namespace.transparent is not None:
            return capabilities, self._instructions or (facts[0][1].instructions if facts else None)
        return capabilities, merge_instructions(self._instructions, facts)

    def abandon(self, state: str) -> None:
        """The client of a call that waits for its answers has gone."""
        if self._tasks.waits.abandon(state):
            return
        for upstream in self._fleet.connected():
            if upstream.connection is not None and upstream.connection.abandon(state):
                return

    def join(self, client: Client) -> None:
        """A client has come that can be asked things outside of its calls."""
        self._fleet.join(client)

    def leave(self, client: object) -> None:
        """A client has gone: what was opened for it alone is closed."""
        self._fleet.leave(client)
        self._relay.personal.leave(client)

    def pass_on(self, method: str, params: Fields, client: object) -> None:
        """A legacy client says what mcpmux does not know: it is for the only server, if there is but one."""
        only = self._namespace.transparent
        if only is not None:
            call = Call(method, params, {}, client, None, True)
            self._fleet.for_call(only, call).tell_nowait(method, params)

    def roots_changed(self) -> None:
        """A client says that its roots have changed: every server that may have asked for them hears it."""
        for upstream in self._fleet.connected():
            upstream.tell_nowait(m.ROOTS_CHANGED)

    async def subscribe(self, mailbox: Mailbox, uri: str, call: Call) -> None:
        """From now on `mailbox`, of the client of `call`, hears of updates of `uri`.

        Raises RpcError, and everything is as before then.
        """
        said_raw = self._namespace.resolve_uri(uri) is None
        owner, own = await self._resolve_uri(uri, call)
        for upstream in self._fleet.tellers(owner, call):
            try:
                await self._subscribe_at(upstream, mailbox, own, said_raw)
                return
            except RpcError as error:
                refusal = error
                if error.code != METHOD_NOT_FOUND:
                    break
        raise refusal

    async def _subscribe_at(self, upstream: Upstream, mailbox: Mailbox, own: str, said_raw: bool) -> None:
        await upstream.expect("resources", "subscribe")
        new = self._relay.subscribe(mailbox, upstream.key, own, said_raw=said_raw)
        agreed = False
        try:
            with trio.move_on_after(upstream.config.list_timeout):
                await upstream.subscriber.ensure(own)
                agreed = True
        except RpcError as error:
            raise rewrite.expose_error(error, upstream.space) from None
        finally:
            if new and not agreed:
                self._relay.unsubscribe(mailbox, upstream.key, own)
        if not agreed:
            raise upstream.error(UPSTREAM_TIMEOUT, f"did not agree to tell about changes of {own} in time")

    async def unsubscribe(self, mailbox: Mailbox, uri: str, call: Call) -> None:
        """`mailbox` hears of `uri` no more. Raises RpcError when nobody can be meant."""
        owner, own = await self._resolve_uri(uri, call)
        for key in self._fleet.keys_of(owner, call):
            self._relay.unsubscribe(mailbox, key, own)

    async def _discover(self, _call: Call, _notify: Notify) -> Fields:
        capabilities, instructions = await self.introduce()
        result = {
            "resultType": raw("complete"),
            "supportedVersions": raw(SUPPORTED),
            "capabilities": raw(capabilities),
            "ttlMs": raw(0),
            "cacheScope": raw("private"),
        }
        if instructions is not None:
            result["instructions"] = raw(instructions)
        return result

    async def _list(self, call: Call, notify: Notify) -> Fields:
        return await self._merger.page(call, notify)

    async def _read(self, call: Call, notify: Notify) -> Fields:
        uri = _required_text(call, "uri")
        owner, own = await self._resolve_uri(uri, call)
        return await self._routed(call, owner, {**call.params, "uri": raw(own)}, notify)

    async def _call_tool(self, call: Call, notify: Notify) -> Fields:
        owner, own = await self._resolve_name(m.TOOLS_LIST, _required_text(call, "name"), call)
        params = {**call.params, "name": raw(own)}
        if "arguments" in params:
            params["arguments"] = rewrite.resolve_arguments(params["arguments"], owner, self._namespace)
        return await self._routed(call, owner, params, notify)

    async def _get_prompt(self, call: Call, notify: Notify) -> Fields:
        owner, own = await self._resolve_name(m.PROMPTS_LIST, _required_text(call, "name"), call)
        return await self._routed(call, owner, {**call.params, "name": raw(own)}, notify)

    async def _complete(self, call: Call, notify: Notify) -> Fields:
        try:
            ref = decode_fields(call.params["ref"])
        except (KeyError, ValueError):
            raise RpcError(INVALID_PARAMS, 'Invalid params: "ref" must be an object') from None
        kind, uri, name = (text_of(ref.get(key)) for key in ("type", "uri", "name"))
        if kind == "ref/resource" and uri is not None:
            owner, ref["uri"] = _with_raw(await self._resolve_uri(uri, call))
        elif kind == "ref/prompt" and name is not None:
            owner, ref["name"] = _with_raw(await self._resolve_name(m.PROMPTS_LIST, name, call))
        else:
            raise RpcError(INVALID_PARAMS, 'Invalid params: "ref" must be a ref/prompt or a ref/resource')
        return await self._routed(call, owner, {**call.params, "ref": raw(ref)}, notify)

    async def _routed(self, call: Call, owner: str, params: Fields, notify: Notify) -> Fields:
        """Ask `owner` and put its answer into the words that clients know."""
        upstream = self._fleet.for_call(owner, call)
        space = upstream.space

        async def expose(event: Event) -> None:
            await notify(Event(event.method, rewrite.expose_event(event.method, event.params, space)))

        call = call.with_params(params)
        try:
            if call.method in m.ABOUT_TASKS:
                result = await self._tasks.exchange(upstream, call, expose)
            else:
                result = await upstream.exchange(call, expose)
        except RpcError as error:
            try:
                result = await self._after_error(upstream, call, expose, error)
            except RpcError as final:
                raise rewrite.expose_error(final, space) from None
        return rewrite.expose_result(call.method, self._noted(upstream, call, result), space)

    async def _after_error(self, upstream: Upstream, call: Call, notify: Notify, error: RpcError) -> Fields:
        """What follows an upstream's `error`, which is raised unless it wants a URL visited."""
        if error.code != URL_ELICITATION_REQUIRED:
            raise error
        return await arrange_visit(self._relay.personal, upstream, call, notify, error)

    def _noted(self, upstream: Upstream, call: Call, result: Fields) -> Fields:
        """The result; a legacy client that it sends to URLs will be told when these visits are completed."""
        if "inputRequests" in result and call.legacy:
            for elicitation_id in elicitation_ids(result):
                self._relay.personal.own_elicitation(upstream.key, elicitation_id, call.client)
        return result

    async def _about_task(self, call: Call, notify: Notify) -> Fields:
        found = self._namespace.resolve_task(_required_text(call, TASK_ID))
        if found is None:
            raise task_not_found()
        owner, own = found

        def resolve(task_id: str) -> str:
            named = self._namespace.resolve_task(task_id)
            return named[1] if named is not None and named[0] == owner else task_id

        params = {**task_ids.resolve_answers(call.params, resolve), TASK_ID: raw(own)}
        return await self._routed(call, owner, params, notify)

    async def _resolve_uri(self, uri: str, call: Call) -> tuple[str, str]:
        found = self._namespace.resolve_uri(uri)
        if found is not None:
            return found
        candidates = await self._catalog.owners_of(uri, call)
        if len(candidates) == 1:
            return candidates[0], uri
        if not candidates:
            raise RpcError(INVALID_PARAMS, f"Resource not found: no upstream owns {uri}", {"uri": uri})
        exposed = [self._namespace.spaces[name].expose_uri(uri) for name in candidates]
        choice = " or ".join(exposed)
        raise RpcError(
            INVALID_PARAMS,
            f"Resource not found: {uri} belongs to several upstreams: ask for {choice}",
            {"uri": uri, "candidates": exposed},
        )

    async def _resolve_name(self, list_method: str, name: str, call: Call) -> tuple[str, str]:
        found = self._namespace.resolve_name(name)
        if found is not None and self._namespace.is_shortened(name):
            names = await self._catalog.names(list_method, found[0], call)
            own = self._namespace.match_name(name, found[0], names)
            found = (found[0], own) if own is not None else None
        if found is None:
            kind = m.LISTS[list_method].items.removesuffix("s")
            raise RpcError(INVALID_PARAMS, f"Unknown {kind}: {name}", {"name": name})
        return found


def _required_text(call: Call, key: str) -> str:
    text = call.text(key)
    if text is None:
        raise RpcError(INVALID_PARAMS, f'Invalid params: "{key}" must be a string')
    return text


def _with_raw(resolved: tuple[str, str]) -> tuple[str, Raw]:
    return resolved[0], raw(resolved[1])
