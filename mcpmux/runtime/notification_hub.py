"""Changes from the upstreams to the clients that listen.

Promises: an update reaches exactly the subscribers of its URI or of one above it, under the URI that each
of them used; a list change reaches everybody who may hear it, many within one window as one; nobody hears of
what the access rules do not let it use; putting never waits, so a slow client holds up nobody. Updates are
told one after the other, in a pass each, with a turn of the scheduler in between: one that comes again before
its pass is one with it, so a burst costs no more than what the clients can be told.

What a server says to one client only (how its task does, that its user has been where it sent them) reaches
the client that made the task, or was sent to the URL, and nobody else. What comes before its task is known
waits for it, within a bound. Clients that keep no session with us (2026-07-28) are not told: they ask.

Refuses to know how a client is reached and how an upstream is asked: clients are outboxes, upstreams are
names with a set of wanted URIs.

Source: `basic/utilities/tasks` and `client/elicitation`, 2025-11-25, for what is personal.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

import structlog
import trio

from mcpmux.channels.tap import Leg
from mcpmux.errors import RpcError
from mcpmux.lru import Lru, weigh
from mcpmux.mux import rewrite
from mcpmux.mux.narrowing import NARROWED
from mcpmux.mux.ownership import Ownership
from mcpmux.mux.rewrite import Space
from mcpmux.mux.subscriptions import Subscriptions
from mcpmux.protocol import method as m
from mcpmux.protocol.call import PROGRESS_TOKEN, Event
from mcpmux.protocol.codes import BUSY
from mcpmux.protocol.envelope import Notification, decode_fields, raw, text_of
from mcpmux.protocol.input_requests import STATE, WITHDRAWN, read_response
from mcpmux.protocol.principal import ANYONE, Principal
from mcpmux.protocol.raw_json import SHORT_CHARS, Fields, Raw
from mcpmux.protocol.tasks import TASK_ID, related_task
from mcpmux.runtime.access_control import AccessControl
from mcpmux.runtime.client_outbox import ClientOutbox

log = structlog.get_logger()

LIST_CHANGES: Final = frozenset(m.LIST_CHANGES.values())
ANYTHING: Final = "dev.mcpmux/anything"
"""Among an outbox's kinds: its client may hear what nobody knows. A modern one hears what it asked for."""
EVERYTHING: Final = LIST_CHANGES | {ANYTHING}  # one for all sessions, as there may be many

SUBSCRIPTION_LIMIT: Final = 10_000  # URIs of one client: bounds its outbox, which holds one event for each
SUBSCRIBED_BYTES: Final = 4 * 2**20  # of these URIs, which can be as long as messages
ALL_SUBSCRIBED_BYTES: Final = 64 * 2**20  # of all clients: one may have hundreds of listens
LITTLE_BYTES: Final = 64 * 1024  # of the URIs of a client that may always subscribe

# Updates that wait for their pass; with more, whoever brings one waits for it himself.
WAITING_LIMIT: Final = 1000

RETURN_SECONDS: Final = 60.0  # for clients to come back that have lost the process that served them
NOTICE_SECONDS: Final = 10.0  # at least, until it is noticed here that it has gone

PERSONAL: Final = frozenset({m.TASK_STATUS, m.ELICITATION_COMPLETE, m.PROGRESS})
UNCLAIMED_LIMIT: Final = 64  # statuses of tasks whose making has not been answered yet
UNCLAIMED_BYTES: Final = 16 * 2**20  # of them
COMPLETED_LIMIT: Final = 1000  # completed elicitations that are remembered for a client that comes back later
TOLD_LIMIT: Final = 1000  # subjects of changes that are remembered for people
REMEMBERED_BYTES: Final = 4 * 2**20  # of either of these

ResourceKey = tuple[str, str]


class Told(NamedTuple):
    """A change that clients were told of: when, in trio's time, and how many they were."""

    at: float
    clients: int


@dataclass(eq=False)
class OpenQuestion:
    """What a client is asked for a call that waits for it. `scope` ends the asking.

    `error`: the call has ended with it meanwhile, and nothing can go on.
    """

    scope: trio.CancelScope
    error: RpcError | None = None


class Personal:
    """Who owns what among the clients, and how they are told. `questions`: by the state of the call."""

    def __init__(self) -> None:
        self.questions: dict[str, OpenQuestion] = {}
        self.tasks: Ownership[Raw | None] = Ownership()
        self._elicitations: Ownership[None] = Ownership()
        self._outboxes: dict[object, ClientOutbox] = {}
        self._unclaimed: Lru[ResourceKey, Event] = Lru(UNCLAIMED_LIMIT, UNCLAIMED_BYTES)
        self._completed: Lru[ResourceKey, bool] = Lru(COMPLETED_LIMIT, REMEMBERED_BYTES)
        self._completion = trio.Event()

    def end_question(self, state: str, error: RpcError | None = None) -> None:
        """Ask a client nothing more for the call with that state; nothing happens when it is not asked."""
        question = self.questions.get(state)
        if question is not None:
            question.error = error
            question.scope.cancel(reason="what was asked is not wanted any more")

    def join(self, client: object, outbox: ClientOutbox) -> None:
        """A client that can be told things. `leave` must follow."""
        self._outboxes[client] = outbox

    def outbox_of_task(self, upstream: str, task_id: str) -> ClientOutbox | None:
        """Where the client of a task is told things, None when there is none."""
        found = self.tasks.find(upstream, task_id)
        return self._outboxes.get(found[0]) if found is not None else None

    def leave(self, client: object) -> None:
        """A client has gone."""
        self._outboxes.pop(client, None)
        self.tasks.leave(client)
        self._elicitations.leave(client)

    def own_task(self, upstream: str, space: Space, task_id: str, client: object, token: Raw | None) -> None:
        """`client` has made a task of an upstream; `token`: its progress token."""
        if client is None:
            return
        self.tasks.add(upstream, task_id, client, token)
        if (early := self._unclaimed.pop((upstream, task_id))) is not None:
            self._put(client, Event(early.method, rewrite.expose_task(early.params, space)))

    def own_elicitation(self, upstream: str, elicitation_id: str, client: object) -> None:
        """`client` has been told to send its user to a URL."""
        if client is not None:
            self._elicitations.add(upstream, elicitation_id, client, None)

    def hear(self, upstream: str, method: str, params: Fields, space: Space) -> None:
        """An upstream says something that is for one client: `method` is in PERSONAL."""
        if method == m.ELICITATION_COMPLETE:
            elicitation_id = text_of(params.get("elicitationId")) or ""
            owner = self._elicitations.find(upstream, elicitation_id)
            if owner is not None:
                self._put(owner[0], Event(method, params))
            self._completed[upstream, elicitation_id] = True
            self._completion.set()
            self._completion = trio.Event()
            return
        task_id = (text_of(params.get(TASK_ID)) if method == m.TASK_STATUS else related_task(params)) or ""
        found = self.tasks.find(upstream, task_id)
        if method == m.PROGRESS:  # of a task: it goes on under the token of the call that made it
            if found is not None and found[1] is not None:
                said = {**rewrite.expose_related(params, space), PROGRESS_TOKEN: found[1]}
                self._put(found[0], Event(method, said))
        elif found is not None:
            self._put(found[0], Event(method, rewrite.expose_task(params, space)))
        else:
            self._unclaimed.keep((upstream, task_id), Event(method, params), weigh(params))

    async def completed(self, upstream: str, elicitation_ids: frozenset[str]) -> None:
        """Wait until the upstream has said that each of these is completed. The caller owns the deadline."""
        wanted = {(upstream, elicitation_id) for elicitation_id in elicitation_ids}
        while not all(each in self._completed for each in wanted):
            await self._completion.wait()

    def _put(self, client: object, event: Event) -> None:
        outbox = self._outboxes.get(client)
        if outbox is not None:
            outbox.put(event)


class NotificationHub:
    """Knows every listening client by its outbox. `run` has to run."""

    def __init__(
        self,
        space_of: Callable[[str], Space | None],
        window: float,
        on_wanted: Callable[[str], None],
        access: AccessControl | None = None,
    ) -> None:
        """`space_of` gives the space of an upstream, None when it has gone.

        `window`: seconds in which list changes are gathered before they are told. `on_wanted` is called with
        an upstream's name when what is wanted of it has changed, `on_list_change` at once with an upstream's
        name and the notification's method when it says itself that a list has. `settle` is awaited before
        clients are told: other processes have to forget what they remember.
        """
        self.subscriptions: Subscriptions[ClientOutbox] = Subscriptions()
        self._access = access if access is not None else AccessControl()
        self._space_of = space_of
        self.window = window
        self._on_wanted = on_wanted
        self.personal = Personal()
        self.told: Lru[ResourceKey, Told] = Lru(TOLD_LIMIT, REMEMBERED_BYTES)
        """The last change of a subscribed URI, by the session's key, or of a list, by "" and its method."""
        self._listeners: set[ClientOutbox] = set()
        self._changed: dict[str, set[str] | None] = {}  # by whose doing; None: nobody's in particular
        self._change = trio.Event()
        self.lists_changed = trio.Event()  # set and replaced whenever clients may have other lists
        self._updates: dict[tuple[str, str], float] = {}  # (session's key, own URI) -> when it was last said
        self._update = trio.Event()
        self._closed = False
        self._returning_until = -math.inf
        self.on_list_change: Callable[[str, str], None] | None = None
        self.settle: Callable[[], Awaitable[None]] | None = None
        self.passes_all = False  # whether the clients speak to one server alone, which is passed through

    def __repr__(self) -> str:
        return f"<NotificationHub {len(self._listeners)} listeners, {self.subscriptions!r}>"

    @property
    def listening(self) -> int:
        """How many clients listen."""
        return sum(not outbox.is_replica for outbox in self._listeners)

    def listening_to(self, kind: str) -> Iterator[ClientOutbox]:
        """The clients that may hear of changes of a kind of list."""
        return (outbox for outbox in self._listeners if kind in outbox.kinds)

    def join(
        self,
        kinds: frozenset[str],
        principal: Principal = ANYONE,
        *,
        is_granted: bool = False,
        client: object = None,
        leg: Leg | None = None,
    ) -> ClientOutbox:
        """An outbox for a new client that may hear `kinds` of list changes. `leave` must follow."""
        outbox = ClientOutbox(kinds, principal, is_granted=is_granted, client=client, leg=leg)
        self._add(outbox)
        return outbox

    def join_replica(self) -> ClientOutbox:
        """An outbox for another replica, which asks here for all its clients. `leave` must follow."""
        outbox = ClientOutbox(frozenset(), is_replica=True)
        self._add(outbox)
        return outbox

    def rely_on(self, outbox: ClientOutbox, before: ClientOutbox | None) -> None:
        """Another replica relies on its outbox from now on, in place of `before`.

        What was told before is told in that one, which comes to its end; without one it is not for it.
        """
        outbox.drop(m.RESOURCE_UPDATED)
        outbox.since = before.since if before is not None else trio.current_time()
        if before is not None:
            self.leave(before)
            before.close()

    def _add(self, outbox: ClientOutbox) -> None:
        self._listeners.add(outbox)
        if self._closed:
            outbox.close()

    def greet(self, outbox: ClientOutbox) -> None:
        """A listen has begun, and its client knows what it will hear of. See `others_lost`."""
        outbox.since = trio.current_time()
        if outbox.since < self._returning_until:
            self._remind_of_all(outbox)

    def others_lost(self, seconds: float = NOTICE_SECONDS) -> None:
        """Another process has gone, so long ago at most. Its clients listen here by now, or soon.

        As nobody knows who they are, all hear that what they listen to may have changed.
        """
        now = trio.current_time()
        self._returning_until = now + RETURN_SECONDS
        for outbox in self._listeners:
            if outbox.since > now - max(seconds, NOTICE_SECONDS) and not outbox.is_replica:
                self._remind_of_all(outbox)

    def _remind_of_all(self, outbox: ClientOutbox) -> None:
        self.remind(outbox)
        for kind in outbox.kinds & LIST_CHANGES:
            outbox.put(Event(kind, {}))

    def close(self) -> None:
        """We are stopping: every client's outbox comes to its end."""
        self._tell_all()
        self._closed = True
        for outbox in self._listeners:
            outbox.close()

    def leave(self, outbox: ClientOutbox) -> None:
        """The client has gone: nothing of its interest stays behind."""
        self._listeners.discard(outbox)
        if outbox.merged:
            log.info("a slow client has gone", changes_told_together=outbox.merged)
        for upstream in self.subscriptions.remove_all(outbox):
            self._on_wanted(upstream)

    def subscribe(self, outbox: ClientOutbox, upstream: str, uri: str, *, said_raw: bool) -> bool:
        """The client wants to hear of an upstream's `uri`; `said_raw`: it used that URI without a prefix.

        False when it does so already. Raises RpcError when it listens to more than anybody needs.
        """
        held = self.subscriptions.count(outbox)
        if held >= SUBSCRIPTION_LIMIT and not outbox.is_replica:
            raise RpcError(BUSY, f"Busy: more than {SUBSCRIPTION_LIMIT} subscriptions of one client")
        taken = self.subscriptions.bytes_of(outbox) + weigh(uri)
        if taken > SUBSCRIBED_BYTES and not outbox.is_replica:
            most = f"{SUBSCRIBED_BYTES >> 20} MiB"
            raise RpcError(BUSY, f"Busy: the URIs of one client's subscriptions take more than {most}")
        all_taken = self.subscriptions.all_bytes + weigh(uri)
        if taken > LITTLE_BYTES and all_taken > ALL_SUBSCRIBED_BYTES and not outbox.is_replica:
            most = f"{ALL_SUBSCRIBED_BYTES >> 20} MiB"
            raise RpcError(BUSY, f"Busy: the URIs of all clients' subscriptions take more than {most}")
        if self.subscriptions.add(outbox, upstream, uri, said_raw=said_raw):
            self._on_wanted(upstream)
        return self.subscriptions.count(outbox) > held

    def client_listening(self, upstream: str, uri: str) -> object:
        """A client that listens to `uri` and can be asked things; None when there is none."""
        audience = self.subscriptions.audience(upstream, uri)
        return next((outbox.client for outbox in audience if outbox.client is not None), None)

    def unsubscribe(self, outbox: ClientOutbox, upstream: str, uri: str) -> None:
        """The client does not want to hear of `uri` any more; nothing happens when it never did."""
        if self.subscriptions.remove(outbox, upstream, uri):
            self._on_wanted(upstream)

    def move_interest(self, upstream: str, other: str) -> frozenset[str]:
        """The session with key `upstream` has gone and `other` takes over; the URIs that this is about."""
        waiting, self._updates = self._updates, {}
        for (owner, uri), said in waiting.items():
            self._updates[other if owner == upstream else owner, uri] = said
        return self.subscriptions.move(upstream, other)

    def forget(self, upstream: str) -> None:
        """Nothing has the URIs any more under which clients know those of an upstream."""
        self._tell_all(upstream)
        self.subscriptions.forget(upstream)
        self._on_wanted(upstream)

    def hear(self, upstream: str, notification: Notification) -> None:
        """An upstream says that something has changed."""
        method, name = notification.method, upstream_of(upstream)
        if method in LIST_CHANGES:
            self.tell_list_change(method, name)
            if self.on_list_change is not None:
                self.on_list_change(name, method)
            return
        try:
            params = decode_fields(notification.params)
        except ValueError:
            return
        if method == m.RESOURCE_UPDATED:
            if (uri := text_of(params.get("uri"))) is not None:
                self.tell_update(upstream, uri)
        elif method == WITHDRAWN:
            found = read_response(raw(params))
            error = found if isinstance(found, RpcError) else None
            self.personal.end_question(text_of(params.get(STATE)) or "", error)
        elif method in PERSONAL:
            space = self._space_of(upstream)
            if space is not None and self._may_hear_of_task(upstream, params):
                self.personal.hear(upstream, method, params, space)
        elif self.passes_all:
            # Of an extension perhaps: for the clients of the only server there is.
            event = Event(method, params)
            for outbox in self._listeners:
                if ANYTHING in outbox.kinds and self._access.of(outbox.principal).may(name, method, None):
                    outbox.put(event, is_known=False)
        else:
            log.debug("upstream notification dropped", method=method, upstream=upstream)

    def _may_hear_of_task(self, upstream: str, params: Fields) -> bool:
        """Whether the client of the task that a notification is about, if it is, may still use its tool."""
        task_id = text_of(params.get(TASK_ID)) or related_task(params)
        if self._access.is_open or task_id is None:
            return True
        outbox = self.personal.outbox_of_task(upstream, task_id)
        if outbox is None:
            return True
        tool = self._access.tool_of(upstream, task_id)
        return self._access.of(outbox.principal).may(upstream_of(upstream), m.TOOLS_CALL, tool)

    def upstream_changed(self, upstream: str, capabilities: Collection[str]) -> None:
        """An upstream's part of the lists of these capabilities has come or gone, or may have changed."""
        for capability, method in m.LIST_CHANGES.items():
            if capability in capabilities:
                self.tell_list_change(method, upstream)

    def tell_update(self, upstream: str, uri: str) -> None:
        """An upstream's resource has changed, or may have; told soon, once however often it is said."""
        now = trio.current_time()
        is_full = len(self._updates) >= WAITING_LIMIT and (upstream, uri) not in self._updates
        if is_full or len(uri) > SHORT_CHARS:  # a thousand long ones would take a lot
            self._tell(upstream, uri, now)
            return
        self._updates[upstream, uri] = now
        self._update.set()

    def _tell_all(self, of: str | None = None) -> None:
        """What is still to be told is told now, to those who listen now."""
        for upstream, uri in [each for each in self._updates if of is None or each[0] == of]:
            self._tell(upstream, uri, self._updates.pop((upstream, uri)))

    def _tell(self, upstream: str, uri: str, said: float) -> None:
        audience = self.subscriptions.audience(upstream, uri)
        space = self._space_of(upstream)
        if not audience or space is None:
            return

        @cache
        def event_of(uri: str, said_raw: bool) -> Event:
            """That it has changed: one event for all clients that spell it alike, encoded once."""
            return _update_of(uri if said_raw else space.expose_uri(uri))

        usual, told = event_of(uri, False), 0
        restricted, raw_of = not self._access.is_open, self.subscriptions.said_raw
        for outbox, subscribed in audience.items():
            if restricted and not self._may_hear_of(outbox, upstream, uri):
                continue
            if outbox.is_replica and outbox.since > said:
                continue
            told += 1
            said_raw = (outbox, upstream, subscribed) in raw_of if raw_of else False
            if subscribed == uri:
                outbox.put(event_of(uri, said_raw) if said_raw else usual)
            else:
                outbox.put(event_of(uri, said_raw), event_of(subscribed, said_raw))
        for subscribed in set(audience.values()):
            self._note_told((upstream, subscribed), told)

    def _note_told(self, subject: ResourceKey, clients: int) -> None:
        self.told[subject] = Told(trio.current_time(), clients)

    def _may_hear_of(self, outbox: ClientOutbox, upstream: str, uri: str) -> bool:
        if outbox.is_replica:
            return True
        return self._access.of(outbox.principal).may(upstream_of(upstream), m.RESOURCES_SUBSCRIBE, uri)

    def rules_changed(self, names: Collection[str], views: Collection[str]) -> None:
        """Other rules hold in `views`, for upstreams `names`: interest in what is denied ends, lists change.

        A legacy client is not told: it hears nothing of these URIs again. A listen that has lost something of
        what was acknowledged ends, gracefully, so that its client listens again and learns what it gets.
        """
        for outbox in self._listeners:
            if outbox.principal.view.partition(NARROWED)[0] not in views:
                continue
            held = self.subscriptions.held_by(outbox)
            lost = [key for key in held if not self._may_hear_of(outbox, *key)]
            for upstream, uri in lost:
                self.unsubscribe(outbox, upstream, uri)
            if lost and outbox.drop(m.RESOURCE_UPDATED):
                self.remind(outbox)
            # Whether there is a kind of list that it wants to hear of and has nothing of any more.
            kinds = outbox.kinds & LIST_CHANGES
            judge = self._access.of(outbox.principal)
            is_deaf = any(not judge.may_hear(kind, names) for kind in kinds)
            if outbox.is_granted and (lost or is_deaf):
                outbox.close()
            for kind in kinds:
                outbox.put(Event(kind, {}))
        self._note_change()

    def remind(self, outbox: ClientOutbox) -> None:
        """Something that a client still listens to may have changed, nobody knows any more what it was."""
        for upstream, uri in self.subscriptions.held_by(outbox):
            if (space := self._space_of(upstream)) is not None:
                said_raw = (outbox, upstream, uri) in self.subscriptions.said_raw
                outbox.put(_update_of(uri if said_raw else space.expose_uri(uri)))

    def tell_list_change(self, method: str, upstream: str | None = None) -> None:
        """A list, or an upstream's part of it, may have changed; told at the end of the window."""
        if method == m.TOOLS_CHANGED:
            self._access.forget_tools(upstream)
        if upstream is None:
            self._changed[method] = None
        elif (changed := self._changed.setdefault(method, set())) is not None:
            changed.add(upstream)
        self._change.set()

    async def run(self) -> None:
        """Tell what changes until cancelled: updates pass by pass, lists window by window."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_updates, name="notification updates")
            nursery.start_soon(self._tell_lists, name="notification lists")

    async def _tell_updates(self) -> None:
        while True:
            await self._update.wait()
            while self._updates:
                upstream, uri = next(iter(self._updates))
                if self.settle is not None:
                    await self.settle()
                    if (upstream, uri) not in self._updates:  # it was told meanwhile, or has another key
                        continue
                self._tell(upstream, uri, self._updates.pop((upstream, uri)))
                await trio.lowlevel.checkpoint()  # so that a pass holds up the others for itself alone
            self._update = trio.Event()

    async def _tell_lists(self) -> None:
        while True:
            await self._change.wait()
            await trio.sleep(self.window)
            if self.settle is not None:
                await self.settle()
            changed, self._changed = self._changed, {}
            self._change = trio.Event()
            for method, upstreams in changed.items():
                self._tell_list(method, upstreams)
            self._note_change()

    def _note_change(self) -> None:
        self.lists_changed.set()
        self.lists_changed = trio.Event()

    def _tell_list(self, method: str, upstreams: Collection[str] | None) -> None:
        """Apart from `_tell_lists`, which would keep the last client while it waits."""
        event, told = Event(method, {}), 0
        for outbox in self.listening_to(method):
            if self._access.of(outbox.principal).sees_change(method, upstreams):
                outbox.put(event)
                told += 1
        self._note_told(("", method), told)


def upstream_of(key: str) -> str:
    """The configured name of the upstream of a session with that key (`docs`, `docs@legacy`, `docs#3`)."""
    return key.partition("@")[0].partition("#")[0]


def _update_of(uri: str) -> Event:
    return Event(m.RESOURCE_UPDATED, {"uri": raw(uri)})
