"""Route each call to its upstream: one exchange over all upstreams.

Promises: a routed request reaches exactly one upstream, under that upstream's own names, and all names in the
answer, notifications and errors included, are translated into those that clients know; a list holds every
upstream's items, and names the upstreams that are left out; a subscription is confirmed only after its
upstream has agreed to it, and no client gets updates of a URI that the access rules do not let it use.
Refuses to know transports, sessions and revisions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import partial

from mcpmux.channels.questions import Client
from mcpmux.config.views import RESOURCES, TEMPLATES
from mcpmux.errors import RpcError
from mcpmux.mux import rewrite
from mcpmux.mux.access import NOUNS, as_refused, check_spelling, no_item, no_method, no_resource, no_task
from mcpmux.mux.merge import merge_capabilities, merge_instructions
from mcpmux.mux.override import KIND_OF
from mcpmux.mux.policy import NO_RULE, SOME, Policy
from mcpmux.mux.rewrite import Marks, Namespace, Signature
from mcpmux.protocol import method as m
from mcpmux.protocol.call import META, Call, Event, Exchange, Notify, target_in
from mcpmux.protocol.envelope import EMPTY_OBJECT, encode, raw
from mcpmux.protocol.era import upgrade_code
from mcpmux.protocol.handshake import INSTANCES, INSTANCES_LIMIT
from mcpmux.protocol.input_requests import STATE
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.revisions import SUPPORTED
from mcpmux.protocol.tasks import TASK_ID
from mcpmux.runtime.access_control import AccessControl, Shown
from mcpmux.runtime.client_outbox import ClientOutbox
from mcpmux.runtime.interception import AnswerCall, Interception
from mcpmux.runtime.merger import Merger, mention
from mcpmux.runtime.notification_hub import NotificationHub, upstream_of
from mcpmux.runtime.resolver import Resolver
from mcpmux.runtime.round_trips import RoundTrips, UrlVisits
from mcpmux.runtime.sessions import MadeTask
from mcpmux.runtime.subscription_request import SubscriptionRequest
from mcpmux.runtime.tasks import Tasks
from mcpmux.runtime.tool_search import ToolSearch
from mcpmux.transports.inline import in_task
from mcpmux.upstreams.limiter import RateCounter
from mcpmux.upstreams.registry import PRIVATE, UpstreamRegistry
from mcpmux.upstreams.upstream import Upstream

Settle = Callable[[], Awaitable[None]]


class Router:
    """All upstreams behind one `exchange`. `present_itself` must be called first."""

    def __init__(
        self,
        registry: UpstreamRegistry,
        namespace: Namespace,
        merger: Merger,
        hub: NotificationHub,
        tasks: Tasks,
        access: AccessControl,
        seal_key: bytes,
        rates: RateCounter,
        marks: Marks,
    ) -> None:
        """`seal_key` binds the states of servers to the principals of their clients.

        `rates` limits the requests of clients. `marks`: the prefix of states and task ids of modern clients,
        which leads their calls back to this process. `settle`, an attribute, is awaited before a client gets
        the answer to a call that may have changed something: other processes must drop their caches first.
        `interception`, None without interceptors, is another one for each configuration.
        """
        self.interception: Interception | None = None
        self.settle: Settle | None = None
        self._rates = rates
        self._registry = registry
        self.access = access
        self.resolver = Resolver(registry, namespace, access, merger)
        self._merger = merger
        self._hub = hub
        self._tasks = tasks
        self._visits = UrlVisits(hub.personal)
        self.round_trips = RoundTrips(seal_key, marks, self.resolver, access)
        self.search = ToolSearch(access, self._use, self._list, lambda result: self._signature.put_on(result))
        self._routes: dict[str, Exchange] = {
            m.DISCOVER: self._discover,
            m.RESOURCES_READ: self._read,
            m.TOOLS_CALL: self._use,
            m.PROMPTS_GET: self._use,
            m.COMPLETE: self._complete,
            **dict.fromkeys(m.PAGED, self._list),
            **dict.fromkeys(m.ABOUT_ONE_TASK, self._about_task),
        }

    def present_itself(self, server_info: Raw, instructions: str | None) -> None:
        """Set the server info, as JSON, and the instructions of mcpmux itself."""
        self.server_info, self.instructions = server_info, instructions
        self._signature = Signature(server_info)

    def exchange(self, call: Call, notify: Notify, is_counted: bool = False) -> Awaitable[Fields]:
        """Answer one call, after unsealing its state and task id and checking the spelling of its members.

        Raises RpcError, at once or when it is awaited. `is_counted`: it is counted, and will be settled.
        """
        # Plain functions as far as the route: each coroutine would be resumed once more for every answer.
        if not is_counted:
            settle = None if call.method in m.READ_ONLY else self.settle
            if settle is not None or self._rates.counts_requests:
                return self._count_and_settle(call, notify, settle)
        # The session of a legacy client keeps its states and asks the questions itself.
        if not call.legacy and (STATE in call.params or TASK_ID in call.params):
            call = self.round_trips.taken_back(call)
        is_open = self.access.is_open
        # Before anything reads the members: a server may read another spelling than rules or interceptors.
        if self.interception is not None or not (is_open or self.access.of(call.principal).is_open):
            check_spelling(call)
        if not is_open and self.search.is_about(call):
            return self.search.exchange(call, notify)
        # The only upstream may know methods that mcpmux does not, and its lists need no merging.
        only, route = self.resolver.namespace.transparent, self._routes.get(call.method)
        if only is not None and (route is None or call.method in m.PAGED):
            return self._pass_on(only, call, notify)
        if route is None:
            raise no_method(call.method)
        return route(call, notify)

    async def _count_and_settle(self, call: Call, notify: Notify, settle: Settle | None) -> Fields:
        await self.count(call)
        try:
            result = await self.exchange(call, notify, is_counted=True)
        except BaseException as error:  # a call that failed, or was cancelled, may have changed something too
            if settle is not None:
                await settle()
            raise error  # not a bare `raise`: mypyc loses the current exception over an await
        if settle is not None:
            await settle()
        return result

    async def count(self, call: Call) -> None:
        """Count a request of a client. Raises Busy when it has too many."""
        if self._rates.counts_requests:
            await self._rates.begin(call)

    def _stepped(
        self, upstream: str | None, own: str | None, call: Call, notify: Notify, work: AnswerCall
    ) -> Awaitable[Fields]:
        """Answer a call by `work`, between the interceptors that it is for.

        `upstream`: None for several. `own`: see `Interception`.
        """
        interception = self.interception
        chain = interception.chain_for(call, upstream) if interception is not None else None
        if interception is None or chain is None:
            return work(call, notify)
        session = self._registry.for_call(upstream, call) if upstream is not None else None
        return interception.exchange(chain, session, own, call, notify, work)

    async def _list(self, call: Call, notify: Notify) -> Fields:
        return self._signature.put_on(await self._stepped(None, None, call, notify, self._merger.page))

    async def _pass_on(self, only: str, call: Call, notify: Notify, *, is_stepped: bool = False) -> Fields:
        """Answer a list, or a call of a method that mcpmux does not know, in the words of the only upstream.

        A list of one upstream need not be merged, so its pages and cursors stay as they are.
        """
        judge, kind = self.access.of(call.principal), m.PAGED.get(call.method)
        if kind is None and (rule := judge.refused_by(only, call.method, None)) is not None:
            raise as_refused(no_method(call.method), rule)
        # An empty list, not an error: a client must not find out that there is something to refuse.
        if kind is not None and not judge.visible(call.method, [only]):
            empty = {"resultType": raw("complete"), kind.items: raw([])}
            return {**empty, "ttlMs": raw(0), "cacheScope": raw("private")}
        if self.interception is not None and not is_stepped:
            work = partial(self._pass_on, only, is_stepped=True)
            return await self._stepped(only, None, call, notify, work)
        upstream = self._registry.for_call(only, call)
        # Before the list is sifted: items may be judged by the annotations of tools.
        if call.method in (m.TOOLS_LIST, m.TASKS_LIST):
            await self.access.learn_tools(upstream, call)
        if upstream.memory is not None and call.method in m.LISTS:
            result = await upstream.memory.list(self._ask, upstream, call, notify)
        else:
            result = await self._ask(upstream, call, notify)
        return await self.access.sift_result(call, only, upstream.key, result)

    async def _ask(self, upstream: Upstream, call: Call, notify: Notify) -> Fields:
        """Send a call with an upstream's own names to it. Return its answer with clients' names, signed.

        The answer of the only upstream, whose names are unchanged, stays as it is.
        """

        async def expose(event: Event) -> None:
            if not upstream.space.transparent:
                event = Event(event.method, rewrite.expose_event(event.method, event.params, upstream.space))
            await notify(event)

        try:
            if call.method in m.ABOUT_TASKS and not (
                call.method == m.TOOLS_CALL and self._tasks.makes_none(upstream, call)
            ):
                result = await self._tasks.exchange(upstream, call, expose)
            else:
                result = await upstream.exchange(call, expose)
        except RpcError as error:
            try:
                result = await self._visits.after_error(upstream, call, expose, error)
            except RpcError as final:
                raise await self._in_clients_words(final, upstream, call) from None
        # The server's later `notifications/elicitation/complete` is for this client.
        if call.legacy and "inputRequests" in result:
            self._visits.note(upstream, call, result)
        space = upstream.space  # of now: the configuration may have changed meanwhile
        if not space.transparent:
            result = rewrite.expose_result(call.method, result, space)
        # After the names: nothing inside a sealed id can be rewritten any more.
        if STATE in result or TASK_ID in result or "inputRequests" in result:
            result = self.round_trips.given_out(call, upstream, result)
        return result if space.transparent else self._signature.put_on(result)

    async def _in_clients_words(self, error: RpcError, upstream: Upstream, call: Call) -> RpcError:
        """Return an upstream's error with clients' names. `call`: with the upstream's own names."""
        modern = upstream.status.is_modern
        if modern or not (call.legacy or upstream.facts is None):
            error = upgrade_code(error, modern=modern)
        if upstream.space.transparent:
            return error
        named = rewrite.named_in(call.method, call.params)
        if named is None:
            return rewrite.expose_error(error, upstream.space)
        member, own = named
        if member == "uri":
            shown = upstream.space.expose_uri(own)
        else:
            shown = upstream.space.expose_name(
                self.access.of(call.principal).shown_name(call.method, upstream.name, own)
            )
        exposed = rewrite.expose_error(error, upstream.space, own, shown)
        # Calls that share the exchange of a read get this error, too: they are of clients that see the same.
        of_uris = RESOURCES if call.method == m.RESOURCES_READ else TEMPLATES
        kind = KIND_OF.get(call.method, "") if member == "name" else of_uris
        return await self.resolver.visible.with_hint(exposed, shown, call, (kind,))

    async def _refuse(self, refusal: RpcError, named: str, call: Call, kind: str) -> Fields:
        """Raise a refusal that names the nearest item that the client sees."""
        raise await self.resolver.visible.with_hint(refusal, named, call, (kind,))

    async def introduce(
        self, *, legacy: bool = False, principal: Principal = ANYONE
    ) -> tuple[dict[str, object], str | None]:
        """Wait for starting upstreams. Return (capabilities, instructions) of what `principal` may use.

        `legacy`: for a client of a legacy revision, which servers of both eras may offer other things.
        """
        await in_task()
        await self._registry.settled(legacy=legacy)
        judge = self.access.of(principal)
        facts = judge.narrow(self._registry.facts(legacy=legacy))
        capabilities = merge_capabilities((fact for _, fact in facts), legacy=legacy)
        if judge.is_searched:  # the search tools are there even if no upstream has tools
            capabilities.setdefault("tools", {"listChanged": True})
        if self.resolver.namespace.transparent is not None:
            return capabilities, self.instructions or (facts[0][1].instructions if facts else None)
        return capabilities, merge_instructions(self.instructions, facts)

    def instances(self) -> Raw:
        """Return the `_meta` by which a mcpmux finds out that it is among those behind it."""
        others = (instance for _, facts in self._registry.facts(legacy=False) for instance in facts.instances)
        return raw({INSTANCES: list(dict.fromkeys((self._registry.instance, *others)))[:INSTANCES_LIMIT]})

    def may_hear(self, principal: Principal, change: str) -> bool:
        """Return whether a principal may be notified of changes of a list. `change`: the method."""
        return self.access.of(principal).may_hear(change, self._registry)

    def adopt(self, policy: Policy | None, shown: Shown) -> None:
        """Put access rules and views into force; see `AccessControl.adopt`."""
        changed = self.access.adopt(policy, shown)
        self._merger.forget()
        self._hub.rules_changed(self._registry, changed)

    def enter(self, principal: Principal, view: str, query: str = "") -> Principal | None:
        """Return the principal in a view; None when it may not use it. Raises BadNarrowing."""
        return self.access.enter(principal, view, query, self._registry)

    def abandon(self, state: str) -> None:
        """Give up the parked call with that state, whose client has gone."""
        if self._tasks.abandon(state) or (self.interception is not None and self.interception.abandon(state)):
            return
        for upstream in self._registry.connected():
            connection = upstream.status.connection
            if connection is not None and connection.abandon(state):
                return

    def join(self, client: Client) -> None:
        """Register a client that accepts requests outside of its calls. `leave` must follow."""
        self._registry.join(client)

    def leave(self, client: object) -> None:
        """Forget a client that has gone: close its private sessions, and give up waiting for its answers."""
        self._tasks.leave(client)
        if self.interception is not None:
            self.interception.leave(client)
        for upstream in self._registry.connected():
            if (connection := upstream.status.connection) is not None:
                connection.channel.questions.leave(client)
        self._registry.leave(client)
        self._hub.personal.leave(client)

    def pass_on(self, method: str, params: Fields, client: object, principal: Principal = ANYONE) -> None:
        """Pass a legacy client's unknown notification on to the only upstream, if its names are unchanged.

        With several upstreams it is dropped, as nothing shows which one is meant.
        """
        only = self.resolver.namespace.transparent
        if only is not None and self.access.of(principal).may(only, method, None):
            call = Call(method, params, {}, client, None, True)
            self._registry.for_call(only, call).tell_nowait(method, params)

    def roots_changed(self) -> None:
        """Notify every connected upstream that a client's roots have changed."""
        for upstream in self._registry.connected():
            upstream.tell_nowait(m.ROOTS_CHANGED)

    async def _discover(self, call: Call, _notify: Notify) -> Fields:
        capabilities, instructions = await self.introduce(principal=call.principal)
        result = {
            "resultType": raw("complete"),
            "supportedVersions": raw(SUPPORTED),
            "capabilities": raw(capabilities),
            META: self.instances(),
            "ttlMs": raw(0),  # upstreams come and go without a notification that this has changed
            "cacheScope": raw("private"),
        }
        if instructions is not None:
            result["instructions"] = raw(instructions)
        return self._signature.put_on(result)

    def _read(
        self, call: Call, notify: Notify, found: tuple[str, str] | None = None, is_stepped: bool = False
    ) -> Awaitable[Fields]:
        """Answer a read. `found`: the upstream and its own URI, judged already. `is_stepped`: intercepted."""
        uri = call.text("uri") or call.required("uri")
        if found is not None:
            owner, own = found
        else:
            # Without a coroutine for the common case; with a policy, `_find_and_read` judges the URI.
            resolved = self.resolver.namespace.resolve_uri(uri) if self.access.policy is None else None
            if resolved is None:
                return self._find_and_read(uri, call, notify)
            owner, own = resolved  # as `Resolver.resolve_uri` does it
            if not self.access.is_open:
                rule = self.access.of(call.principal).refused_by(owner, m.RESOURCES_READ, own)
                if rule is not None:
                    return self._refuse(as_refused(no_resource(uri), rule), uri, call, RESOURCES)
        if self.interception is not None and not is_stepped:
            work = partial(self._read, found=(owner, own), is_stepped=True)
            return self._stepped(owner, own, call, notify, work)
        if own != uri:  # else the client's bytes stay
            params = call.params.copy()
            params["uri"] = Raw(encode(own))
            call = call.with_params(params)
        upstream = self._registry.for_call(owner, call)
        if upstream.memory is not None:
            return upstream.memory.read(self._ask, upstream, call, own, notify)
        return self._ask(upstream, call, notify)

    async def _find_and_read(self, uri: str, call: Call, notify: Notify) -> Fields:
        owner, own, missing = await self.resolver.resolve_uri(uri, call, m.RESOURCES_READ)
        answer = await self._read(call, notify, (owner, own))
        return self.access.confined(mention(answer, self._registry, missing))

    def _use(
        self, call: Call, notify: Notify, found: tuple[str, str] | None = None, is_stepped: bool = False
    ) -> Awaitable[Fields]:
        """Answer the call of a tool, or the request for a prompt. The parameters are those of `_read`."""
        name = call.text("name") or call.required("name")
        namespace, resolved = self.resolver.namespace, found
        if resolved is None and self.access.policy is None:
            resolved = namespace.resolve_name(name)
            # A shortened name ends in a hash: only the upstream's list shows what it stands for.
            if len(name) == namespace.name_limit and namespace.is_shortened(name):
                resolved = None
        if resolved is None:
            return self._find_and_use(name, call, notify)
        owner, own = resolved
        if found is None and not self.access.is_open:
            judge = self.access.of(call.principal)
            if not judge.is_plain:
                renamed = judge.own_name(call.method, owner, own)
                if renamed is None:
                    return self._refuse(no_item(NOUNS[call.method], name), name, call, KIND_OF[call.method])
                own = renamed
                # `for_call` may open a private session: not for a client that may not see the upstream.
                if judge.may(owner, call.method, SOME) and not self.access.knows_tools(
                    judge, self._registry.for_call(owner, call)
                ):
                    return self._find_and_use(name, call, notify)
            rule = judge.refused_by(owner, call.method, own)
            if rule is not None:
                refusal = as_refused(no_item(NOUNS[call.method], name), rule)
                return self._refuse(refusal, name, call, KIND_OF[call.method])
        if self.interception is not None and not is_stepped:
            work = partial(self._use, found=(owner, own), is_stepped=True)
            return self._stepped(owner, own, call, notify, work)
        upstream, params = self._registry.for_call(owner, call), call.params.copy()
        if own != name:
            params["name"] = Raw(encode(own))
        # A server knows its own URIs only. Those of other upstreams stay as the client wrote them.
        if "arguments" in params and not upstream.space.transparent:
            params["arguments"] = rewrite.resolve_arguments(params["arguments"], owner, namespace)
        if call.method == m.TOOLS_CALL and not self.access.is_open:
            judge = self.access.of(call.principal)
            filled = self.access.filled_in(judge, upstream, own, params.get("arguments", EMPTY_OBJECT))
            if filled is not None:
                params["arguments"] = filled
        return self._ask(upstream, call.with_params(params), notify)

    async def _find_and_use(self, name: str, call: Call, notify: Notify) -> Fields:
        owner, own, missing = await self.resolver.resolve_name(name, call, call.method)
        return mention(await self._use(call, notify, (owner, own)), self._registry, missing)

    async def _complete(self, call: Call, notify: Notify) -> Fields:
        only, judge = self.resolver.namespace.transparent, self.access.of(call.principal)
        # Without rules and other names the reference stays as the client spelled it.
        if only is not None and judge.is_open and not judge.overrides:
            upstream = self._registry.for_call(only, call)
            own = target_in(call.params)
            return await self._stepped(only, own, call, notify, partial(self._ask, upstream))
        ref, key, named = judge.read_ref(call)
        if key == "uri":
            owner, own, _ = await self.resolver.resolve_uri(named, call, m.COMPLETE)
        else:
            owner, own, _ = await self.resolver.resolve_name(named, call, m.COMPLETE)
        upstream, own_ref = self._registry.for_call(owner, call), raw({**ref, key: raw(own)})

        def ask(call: Call, notify: Notify) -> Awaitable[Fields]:
            # Only now: interceptors see the reference as the client wrote it.
            return self._ask(upstream, call.with_params({**call.params, "ref": own_ref}), notify)

        return await self._stepped(owner, own, call, notify, ask)

    async def _about_task(self, call: Call, notify: Notify) -> Fields:
        namespace = self.resolver.namespace
        resolved = namespace.resolve_task(call.required(TASK_ID))
        if resolved is None:
            raise no_task()
        owner, own = resolved
        judge = self.access.of(call.principal)
        if not judge.may(owner, m.TOOLS_CALL, SOME):
            raise as_refused(no_task(), NO_RULE)
        upstream = self._registry.for_call(owner, call)
        # A task is judged like a call of its tool, by the rules of now. All refusals read the same.
        tool = self.access.tool_of(upstream.key, own)
        await self.access.learn_tools(upstream, call)
        rule = judge.refused_by(owner, m.TOOLS_CALL, tool)
        if rule is not None:
            raise as_refused(no_task(), rule)
        work = partial(self._ask_about_task, upstream, own)
        return await self._stepped(owner, tool, call, notify, work)

    def _ask_about_task(self, upstream: Upstream, own: str, call: Call, notify: Notify) -> Awaitable[Fields]:
        namespace, owner = self.resolver.namespace, upstream.name

        def resolve(task_id: str) -> str:
            named = namespace.resolve_task(task_id)
            return named[1] if named is not None and named[0] == owner else task_id

        if not upstream.space.transparent:
            call = call.with_params({**rewrite.resolve_answers(call.params, resolve), TASK_ID: raw(own)})
        return self._ask(upstream, call, notify)

    # Subscriptions, and what clients of another process had

    async def subscribe(self, outbox: ClientOutbox, uri: str, call: Call) -> None:
        """Subscribe `outbox`, of the client of `call`, to updates of `uri`. Raises RpcError."""
        await in_task()
        await self._rates.begin(call)
        for refusal in (await self.subscribe_all(outbox, (uri,), call)).values():
            raise refusal

    def subscribe_all(
        self, outbox: ClientOutbox, uris: Collection[str], call: Call
    ) -> Awaitable[dict[str, RpcError]]:
        """Subscribe to `uris` as `subscribe` does to one. Return the errors of those that are refused."""
        request = SubscriptionRequest(self._registry, self.resolver, self.access, self._hub, outbox, call)
        return request.answer(uris, self.interception)

    def go_on_listening(
        self, outbox: ClientOutbox, key: str, own: str, call: Call, *, said_raw: bool
    ) -> None:
        """Continue a subscription of another process. `key`: of the session with the upstream.

        The client is notified of one change, as it may have missed some. An upstream that refuses is asked
        again later.
        """
        name = upstream_of(key)
        if name in self._registry:
            upstream = self._registry[name] if key == name else self._registry.for_call(name, call)
            self._hub.subscribe(outbox, upstream.key, own, said_raw=said_raw)
            upstream.subscriber.take_over(frozenset((own,)))

    def go_on_with_task(self, client: Client, made: MadeTask) -> None:
        """Continue a task that a client made in another process, unless that was in a private session."""
        # A private session ended with its process, and its tasks with it.
        name, upstream = upstream_of(made.key), self._registry.by_key(made.key)
        if name in self._registry and PRIVATE not in made.key:
            space = upstream.space if upstream is not None else self._registry[name].space
            token = Raw(made.token) if made.token is not None else None
            self.access.tasks.note(made.key, made.task_id, client.principal.key, made.tool)
            self._hub.personal.own_task(made.key, space, made.task_id, client, token)

    def remind_of_lists(self, outbox: ClientOutbox) -> None:
        """Notify a client of another process of a change of every list, as it may have missed some."""
        judge = self.access.of(outbox.principal)
        offered = {name for _, facts in self._registry.facts(legacy=True) for name in facts.capabilities}
        for capability, change in m.LIST_CHANGES.items():
            if capability in offered and judge.may_hear(change, self._registry):
                outbox.put(Event(change, {}))

    async def unsubscribe(self, outbox: ClientOutbox, uri: str, call: Call) -> None:
        """End a subscription of `outbox` to `uri`. Raises RpcError when no upstream can be meant."""
        owner, own, _ = await self.resolver.resolve_uri(uri, call, m.RESOURCES_SUBSCRIBE)
        for key in self._registry.keys_of(owner, call):
            self._hub.unsubscribe(outbox, key, own)
