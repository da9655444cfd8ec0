"""Deliver changes from the upstreams to the clients that listen.

Promises: an update reaches exactly the subscribers of its URI or of one above it, under the URI that each
of them used; a list change reaches every client that may receive it, many within one window as one; no client
is notified about something that the access rules do not let it use; putting never waits, so a slow client
delays no other. Updates are delivered one after the other, in a pass each, with a checkpoint in between.

A notification for one client only (the status of its task, a completed URL elicitation) reaches the client
that made the task, or was sent to the URL, and no other. A status that comes before its task is known waits
for it, within a bound. Clients without a session (2026-07-28) get no such notifications: they ask.

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

from mcpmux.errors import RpcError
from mcpmux.lru import Lru, weigh
from mcpmux.mux import rewrite
from mcpmux.mux.ownership import Ownership
from mcpmux.mux.rewrite import Space
from mcpmux.mux.subscriptions import Subscriptions
from mcpmux.protocol import method as m
from mcpmux.protocol.call import PROGRESS_TOKEN, Event, is_heard
from mcpmux.protocol.codes import BUSY
from mcpmux.protocol.envelope import Notification, decode_fields, raw, text_of
from mcpmux.protocol.input_requests import STATE, WITHDRAWN, read_response
from mcpmux.protocol.raw_json import SHORT_CHARS, Fields, Raw
from mcpmux.protocol.tasks import TASK_ID, related_task
from mcpmux.runtime.access_control import AccessControl
from mcpmux.runtime.client_outbox import ClientOutbox
from mcpmux.upstreams.registry import PRIVATE

log = structlog.get_logger()

LIST_NOTICES: Final = frozenset(m.LIST_CHANGES.values())
ANYTHING: Final = "dev.mcpmux/anything"
"""Among an outbox's kinds: its client gets unknown notifications too, as modern clients never do."""
ALL_KINDS: Final = LIST_NOTICES | {ANYTHING}  # one for all sessions, as there may be many

SUBSCRIPTION_LIMIT: Final = 10_000  # URIs of one client: bounds its outbox, which holds one event for each
SUBSCRIBED_BYTES: Final = 4 * 2**20  # of these URIs, which can be as long as messages
ALL_SUBSCRIBED_BYTES: Final = 64 * 2**20  # of all clients: one may have hundreds of listens
LITTLE_BYTES: Final = 64 * 1024  # of URIs that a client may have even if all clients together have too many

# Updates that wait for their pass. When there are as many, a further one is delivered at once; where it must
# wait for other processes, the subscribed resource waits in its place.
WAITING_LIMIT: Final = 1000

RETURN_SECONDS: Final = 60.0  # for clients to come back that have lost the process that served them
NOTICE_SECONDS: Final = 10.0  # at least, until the loss of another process is noticed here

PERSONAL: Final = frozenset({m.TASK_STATUS, m.ELICITATION_COMPLETE, m.PROGRESS})
UNCLAIMED_LIMIT: Final = 64  # statuses of tasks whose `tools/call` has not been answered yet
UNCLAIMED_BYTES: Final = 16 * 2**20  # of them
COMPLETED_LIMIT: Final = 1000  # completed elicitations that are remembered for a client that comes back later
TOLD_LIMIT: Final = 1000  # subjects of changes that are remembered for the inspector
REMEMBERED_BYTES: Final = 4 * 2**20  # of either of these

ResourceKey = tuple[str, str]


class Told(NamedTuple):
    """A delivered change. `at`: when, in trio's time. `clients`: the number of clients that got it."""

    at: float
    clients: int


@dataclass(eq=False)
class OpenQuestion:
    """The questions to a client for a call that waits for the answers. Cancelling `scope` ends them.

    `error`: the error with which the call has ended meanwhile, None if it goes on.
    """

    scope: trio.CancelScope
    error: RpcError | None = None


class Personal:
    """The tasks, URL elicitations and open questions of clients. `questions`: by the state of the call."""

    def __init__(self) -> None:
        self.questions: dict[str, OpenQuestion] = {}
        self.tasks: Ownership[Raw | None] = Ownership()
        self._elicitations: Ownership[None] = Ownership()
        self._outboxes: dict[object, ClientOutbox] = {}
        self._unclaimed: Lru[ResourceKey, Event] = Lru(UNCLAIMED_LIMIT, UNCLAIMED_BYTES)
        self._completed: Lru[ResourceKey, bool] = Lru(COMPLETED_LIMIT, REMEMBERED_BYTES)
        self._completion = trio.Event()

    def end_question(self, state: str, error: RpcError | None = None) -> None:
        """End the questions to a client for the call with that state, if there are any."""
        question = self.questions.get(state)
        if question is not None:
            question.error = error
            question.scope.cancel(reason="what was asked is not wanted any more")

    def join(self, client: object, outbox: ClientOutbox) -> None:
        """Register a client and its outbox. `leave` must follow."""
        self._outboxes[client] = outbox

    def outbox_of_task(self, upstream: str, task_id: str) -> ClientOutbox | None:
        """Return the outbox of the client of a task, None when there is none."""
        maker = self.tasks.find(upstream, task_id)
        return self._outboxes.get(maker[0]) if maker is not None else None

    def leave(self, client: object) -> None:
        """Forget a client that has gone, with its tasks and elicitations."""
        self._outboxes.pop(client, None)
        self.tasks.leave(client)
        self._elicitations.leave(client)

    def own_task(self, upstream: str, space: Space, task_id: str, client: object, token: Raw | None) -> None:
        """Note that `client` has made a task of an upstream. `token`: its progress token."""
        if client is None:
            return
        self.tasks.add(upstream, task_id, client, token)
        # A server may send a status before it answers the call that made the task.
        if (early := self._unclaimed.pop((upstream, task_id))) is not None:
            self._put(client, Event(early.method, rewrite.expose_task(early.params, space)))

    def own_elicitation(self, upstream: str, elicitation_id: str, client: object) -> None:
        """Note that `client` was asked to send its user to a URL."""
        if client is not None:
            self._elicitations.add(upstream, elicitation_id, client, None)

    def hear(self, upstream: str, method: str, params: Fields, space: Space) -> None:
        """Deliver an upstream's notification for one client. `method` is in PERSONAL."""
        if method == m.ELICITATION_COMPLETE:
            elicitation_id = text_of(params.get("elicitationId")) or ""
            owner = self._elicitations.find(upstream, elicitation_id)
            if owner is not None:
                self._put(owner[0], Event(method, params))
            # Remembered for a modern client, which repeats its call later and has no outbox.
            self._completed[upstream, elicitation_id] = True
            self._completion.set()
            self._completion = trio.Event()
            return
        task_id = (text_of(params.get(TASK_ID)) if method == m.TASK_STATUS else related_task(params)) or ""
        # Only for the client that made the task: the server sends it to the whole session.
        maker = self.tasks.find(upstream, task_id)
        if method == m.PROGRESS:  # of a task: it keeps the token of the call that made the task
            if maker is not None and maker[1] is not None:
                progress = {**rewrite.expose_related(params, space), PROGRESS_TOKEN: maker[1]}
                self._put(maker[0], Event(method, progress))
        elif maker is not None:
            self._put(maker[0], Event(method, rewrite.expose_task(params, space)))
        else:
            # The status may have come before the answer that names the task: `own_task` delivers it.
            self._unclaimed.keep((upstream, task_id), Event(method, params), weigh(params))

    async def completed(self, upstream: str, elicitation_ids: frozenset[str]) -> None:
        """Wait until the upstream has reported each of these as completed. The caller owns the deadline."""
        elicitations = {(upstream, elicitation_id) for elicitation_id in elicitation_ids}
        while not all(elicitation in self._completed for elicitation in elicitations):
            await self._completion.wait()

    def _put(self, client: object, event: Event) -> None:
        outbox = self._outboxes.get(client)
        if outbox is not None:
            outbox.put(event)


class NotificationHub:
    """Delivers notifications to the outboxes of all listening clients, while `run` runs."""

    def __init__(
        self,
        space_of: Callable[[str], Space | None],
        window: float,
        on_less: Callable[[str], None],
        access: AccessControl | None = None,
        on_lists: Callable[[str, str | None], None] = lambda _method, _upstream: None,
        client_of: Callable[[str], object] = lambda _key: None,
    ) -> None:
        """`space_of` returns the space of an upstream by its key, None when it has gone.

        `window`: seconds in which list changes are gathered before they are delivered. `on_less` is called
        with an upstream's key when some of its URIs are not wanted any more; `on_lists` with the method and
        the upstream's name (None: perhaps all) when a list may have changed, before clients are notified.
        `client_of` returns the only client of the session with that key, None when there are several.
        Attributes: `on_list_change` is called at once with an upstream's name and the method when the
        upstream reports a list change. `settle` is awaited before a delivery: other processes must drop their
        caches first.
        """
        self.subscriptions: Subscriptions[ClientOutbox] = Subscriptions()
        self._access = access if access is not None else AccessControl()
        self._space_of = space_of
        self.window = window
        self._on_less = on_less
        self._on_lists = on_lists
        self._client_of = client_of
        self.personal = Personal()
        self.told: Lru[ResourceKey, Told] = Lru(TOLD_LIMIT, REMEMBERED_BYTES)
        """The last delivery of a subscribed URI, by (session's key, URI), or of a list, by ("", method)."""
        self._listeners: set[ClientOutbox] = set()
        self._changed: dict[str, set[str] | None] = {}  # lists' methods -> upstreams; None: perhaps all
        self._change = trio.Event()
        self.lists_changed = trio.Event()  # set and replaced whenever clients may have other lists
        self._updates: dict[tuple[str, str], float] = {}  # (session's key, own URI) -> time of last report
        self._update = trio.Event()
        self._closed = False
        self._returning_until = -math.inf
        self.on_list_change: Callable[[str, str], None] | None = None
        self.settle: Callable[[], Awaitable[None]] | None = None
        self.passes_all = False  # whether there is one upstream whose names clients use unchanged

    def __repr__(self) -> str:
        return f"<NotificationHub {len(self._listeners)} listeners, {self.subscriptions!r}>"

    @property
    def listening(self) -> int:
        """The number of clients that listen."""
        return sum(not outbox.is_replica for outbox in self._listeners)

    def listening_to(self, kind: str) -> Iterator[ClientOutbox]:
        """Yield the clients that receive changes of a kind of list."""
        return (outbox for outbox in self._listeners if kind in outbox.kinds)

    def join(self, outbox: ClientOutbox) -> ClientOutbox:
        """Register and return the outbox of a new client. `leave` must follow."""
        self._listeners.add(outbox)
        if self._closed:
            outbox.close()
        return outbox

    def rely_on(self, outbox: ClientOutbox, before: ClientOutbox | None) -> None:
        """Make `outbox` the one that another replica relies on, instead of `before`, which is closed.

        `before` still delivers the updates until now. Without it, updates until now are not for the replica.
        """
        outbox.drop(m.RESOURCE_UPDATED)
        outbox.since = before.since if before is not None else trio.current_time()
        if before is not None:
            self.leave(before)
            before.close()

    def greet(self, outbox: ClientOutbox) -> None:
        """Begin a listen that was acknowledged: remind its client if it may be a lost process's.

        See `others_lost`.
        """
        outbox.since = trio.current_time()
        if outbox.since < self._returning_until:
            self._remind_of_all(outbox)

    def others_lost(self, seconds: float = NOTICE_SECONDS) -> None:
        """Remind the clients of another process that has gone at most `seconds` ago.

        They listen here by now, or soon, and cannot be recognised. So all recent and new listeners are
        notified of everything that they listen to.
        """
        now = trio.current_time()
        self._returning_until = now + RETURN_SECONDS
        for outbox in self._listeners:
            if outbox.since > now - max(seconds, NOTICE_SECONDS) and not outbox.is_replica:
                self._remind_of_all(outbox)

    def _remind_of_all(self, outbox: ClientOutbox) -> None:
        self.remind(outbox)
        for kind in outbox.kinds & LIST_NOTICES:
            outbox.put(Event(kind, {}))

    def close(self) -> None:
        """Deliver waiting updates and close every outbox, as mcpmux is stopping."""
        self._tell_all()
        self._closed = True
        for outbox in self._listeners:
            outbox.close()

    def leave(self, outbox: ClientOutbox) -> None:
        """Remove the outbox of a client that has gone, with its subscriptions."""
        self._listeners.discard(outbox)
        if outbox.merged:
            log.info("a slow client has gone", changes_told_together=outbox.merged)
        for upstream in self.subscriptions.remove_all(outbox):
            self._on_less(upstream)

    def subscribe(self, outbox: ClientOutbox, upstream: str, uri: str, *, said_raw: bool) -> bool:
        """Subscribe a client to an upstream's `uri`. `said_raw`: the client used that URI without a prefix.

        The upstream's subscriber must be asked to agree then. Return False when the client has subscribed
        before. Raises RpcError when a limit of subscriptions is reached.
        """
        if not outbox.is_replica:  # which has the limits of each of its clients
            size = weigh(uri)
            taken = self.subscriptions.bytes_of(outbox) + size
            if self.subscriptions.count(outbox) >= SUBSCRIPTION_LIMIT:
                raise RpcError(BUSY, f"Busy: more than {SUBSCRIPTION_LIMIT} subscriptions of one client")
            if taken > SUBSCRIBED_BYTES:
                most = f"{SUBSCRIBED_BYTES >> 20} MiB"
                raise RpcError(BUSY, f"Busy: the URIs of one client's subscriptions take more than {most}")
            # One client must not take the memory of all others: a little is left to each of them.
            if taken > LITTLE_BYTES and self.subscriptions.all_bytes + size > ALL_SUBSCRIBED_BYTES:
                most = f"{ALL_SUBSCRIBED_BYTES >> 20} MiB"
                raise RpcError(BUSY, f"Busy: the URIs of all clients' subscriptions take more than {most}")
        return self.subscriptions.add(outbox, upstream, uri, said_raw=said_raw)

    def client_listening(self, upstream: str, uri: str) -> object:
        """Return a client that listens to `uri` and accepts requests; None when there is none."""
        audience = self.subscriptions.audience(upstream, uri)
        return next((outbox.client for outbox in audience if outbox.client is not None), None)

    def unsubscribe(self, outbox: ClientOutbox, upstream: str, uri: str) -> None:
        """End a client's subscription to `uri`, if it has one."""
        if self.subscriptions.remove(outbox, upstream, uri):
            self._on_less(upstream)

    def move_interest(self, upstream: str, other: str) -> frozenset[str]:
        """Move all subscriptions of the session with key `upstream` to `other`. Return the moved URIs."""
        waiting, self._updates = self._updates, {}
        for (owner, uri), update in waiting.items():
            self._updates[other if owner == upstream else owner, uri] = update
        return self.subscriptions.move(upstream, other)

    def forget(self, upstream: str) -> None:
        """Drop all subscriptions in a session with an upstream whose prefix changes, as its URIs do.

        A listen that has lost something ends gracefully, so that its client listens again.
        """
        self._tell_all(upstream)  # the last moment at which clients know its URIs
        for outbox in self.subscriptions.forget(upstream):
            if outbox.is_granted:
                outbox.close()
        self._on_less(upstream)

    def hear(self, upstream: str, notification: Notification) -> None:
        """Take a notification of an upstream. `upstream`: the key of its session."""
        method, name = notification.method, upstream_of(upstream)
        if method in LIST_NOTICES:
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
            response = read_response(raw(params))
            error = response if isinstance(response, RpcError) else None
            self.personal.end_question(text_of(params.get(STATE)) or "", error)
        elif method in PERSONAL:
            space = self._space_of(upstream)
            if space is not None and self._may_hear_of_task(upstream, params):
                self.personal.hear(upstream, method, params, space)
        elif self.passes_all or method == m.LOG_MESSAGE:
            self._pass_on(upstream, Event(method, params))
        else:
            log.debug("upstream notification dropped", method=method, upstream=upstream)

    def _pass_on(self, upstream: str, event: Event) -> None:
        """Deliver an unknown notification, or a log message of no call, to the clients that it is for."""
        # An unknown one is perhaps of an extension: with a single upstream it is clear whose clients it is
        # for. A message in a private session, and a log of several upstreams, is for one client or none.
        is_for_all, only = self.passes_all and PRIVATE not in upstream, self._client_of(upstream)
        name, space = upstream_of(upstream), self._space_of(upstream)
        is_log = event.method == m.LOG_MESSAGE
        if is_log and space is not None and not space.transparent:
            event = Event(event.method, rewrite.expose_event(event.method, event.params, space))
        for outbox in self._listeners:
            if ANYTHING not in outbox.kinds or not (
                is_for_all or (only is not None and outbox.client is only)
            ):
                continue
            is_wanted = not is_log or is_heard(event, outbox.log_level)
            if is_wanted and self._access.of(outbox.principal).may(name, event.method, None):
                outbox.put(event, is_known=False)

    def _may_hear_of_task(self, upstream: str, params: Fields) -> bool:
        """Return whether the client may still use the tool of the task that a notification is about.

        True for a notification about no task, or a task without a known client.
        """
        task_id = text_of(params.get(TASK_ID)) or related_task(params)
        if self._access.is_open or task_id is None:
            return True
        outbox = self.personal.outbox_of_task(upstream, task_id)
        if outbox is None:
            return True
        tool = self._access.tool_of(upstream, task_id)
        return self._access.of(outbox.principal).may(upstream_of(upstream), m.TOOLS_CALL, tool)

    def upstream_changed(self, upstream: str, capabilities: Collection[str]) -> None:
        """Report that an upstream's part of the lists of these capabilities may have changed."""
        for capability, method in m.LIST_CHANGES.items():
            if capability in capabilities:
                self.tell_list_change(method, upstream)

    def tell_update(self, upstream: str, uri: str) -> None:
        """Report that an upstream's resource may have changed. Reports until its pass are merged into one."""
        now = trio.current_time()
        is_full = len(self._updates) >= WAITING_LIMIT and (upstream, uri) not in self._updates
        if is_full or len(uri) > SHORT_CHARS:  # a thousand long URIs would take much memory
            if self.settle is None:
                self._tell(upstream, uri, now)
                return
            # Other processes have to drop their caches first. Of subscribed URIs there is a bounded number.
            for subscribed in set(self.subscriptions.audience(upstream, uri).values()):
                self._updates[upstream, subscribed] = now
        else:
            # A report before the pass of the same update is merged with it: a burst costs one delivery.
            self._updates[upstream, uri] = now
        self._update.set()

    def _tell_all(self, of: str | None = None) -> None:
        """Deliver all waiting updates, or those of one upstream session, now."""
        for upstream, uri in [update for update in self._updates if of is None or update[0] == of]:
            self._tell(upstream, uri, self._updates.pop((upstream, uri)))

    def _tell(self, upstream: str, uri: str, said: float) -> None:
        audience = self.subscriptions.audience(upstream, uri)
        space = self._space_of(upstream)
        if not audience or space is None:
            return

        @cache
        def event_of(uri: str, said_raw: bool) -> Event:
            """Return one event for all clients that use the same spelling, so that it is encoded once."""
            return _update_of(uri if said_raw else space.expose_uri(uri))

        # One object for most clients: each makes its own only of an event that it sees for the first time.
        usual, clients = event_of(uri, False), 0
        restricted, raw_of = not self._access.is_open, self.subscriptions.said_raw
        for outbox, subscribed in audience.items():
            if restricted and not self._may_hear_of(outbox, upstream, uri):
                continue
            if outbox.is_replica and outbox.since > said:  # the replica relied on another outbox then
                continue
            clients += 1
            said_raw = (outbox, upstream, subscribed) in raw_of if raw_of else False
            if subscribed == uri:
                outbox.put(event_of(uri, said_raw) if said_raw else usual)
            else:
                outbox.put(event_of(uri, said_raw), event_of(subscribed, said_raw))
        for subscribed in set(audience.values()):
            self.told[upstream, subscribed] = Told(trio.current_time(), clients)

    def _may_hear_of(self, outbox: ClientOutbox, upstream: str, uri: str) -> bool:
        if outbox.is_replica:  # the replica judges for each of its clients
            return True
        return self._access.of(outbox.principal).may(upstream_of(upstream), m.RESOURCES_SUBSCRIBE, uri)

    def rules_changed(self, names: Collection[str], views: Collection[str]) -> None:
        """Apply changed rules: end subscriptions that they deny, and report list changes.

        `names`: of all upstreams. `views`: in which rules have changed. A legacy client just gets no more
        updates of denied URIs. A listen that has lost something that was acknowledged ends gracefully, so
        that its client listens again and learns what it gets.
        """
        for outbox in self._listeners:
            if outbox.principal.view_name not in views:
                continue
            held = self.subscriptions.held_by(outbox)
            lost = [key for key in held if not self._may_hear_of(outbox, *key)]
            for upstream, uri in lost:
                self.unsubscribe(outbox, upstream, uri)
            # Waiting updates may be about denied URIs, under any spelling: all are dropped, and what the
            # client still listens to is reported as changed.
            if lost and outbox.drop(m.RESOURCE_UPDATED):
                self.remind(outbox)
            # A kind of list in which the client may see no item any more was acknowledged, too.
            kinds = outbox.kinds & LIST_NOTICES
            judge = self._access.of(outbox.principal)
            is_deaf = any(not judge.may_hear(kind, names) for kind in kinds)
            if outbox.is_granted and (lost or is_deaf):
                outbox.close()
            for kind in kinds:
                outbox.put(Event(kind, {}))
        self._note_change()

    def remind(self, outbox: ClientOutbox) -> None:
        """Report everything that a client listens to as changed, as changes may have been lost."""
        for upstream, uri in self.subscriptions.held_by(outbox):
            if (space := self._space_of(upstream)) is not None:
                said_raw = (outbox, upstream, uri) in self.subscriptions.said_raw
                outbox.put(_update_of(uri if said_raw else space.expose_uri(uri)))

    def tell_list_change(self, method: str, upstream: str | None = None) -> None:
        """Report that a list, or an upstream's part of it, may have changed. Delivered after the window."""
        self._on_lists(method, upstream)
        if upstream is None:
            self._changed[method] = None
        elif (changed := self._changed.setdefault(method, set())) is not None:
            changed.add(upstream)
        self._change.set()

    async def run(self) -> None:
        """Deliver changes until cancelled: updates pass by pass, lists window by window."""
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
                    # Meanwhile it may have been delivered, or moved to another key.
                    if (upstream, uri) not in self._updates:
                        continue
                self._tell(upstream, uri, self._updates.pop((upstream, uri)))
                await trio.lowlevel.checkpoint()  # other tasks have their turn after each pass
            self._update = trio.Event()

    async def _tell_lists(self) -> None:
        while True:
            await self._change.wait()
            await trio.sleep(self.window)
            if self.settle is not None:
                await self.settle()
            # Replaced before the delivery, so that a change during it opens the next window.
            changed, self._changed = self._changed, {}
            self._change = trio.Event()
            for method, upstreams in changed.items():
                self._tell_list(method, upstreams)
            self._note_change()

    def _note_change(self) -> None:
        self.lists_changed.set()
        self.lists_changed = trio.Event()

    def _tell_list(self, method: str, upstreams: Collection[str] | None) -> None:
        """Deliver a list change to all clients that see it."""
        # Not in `_tell_lists`: its frame would keep the last outbox alive while it waits.
        event, clients = Event(method, {}), 0
        for outbox in self.listening_to(method):
            if self._access.of(outbox.principal).sees_change(method, upstreams):
                outbox.put(event)
                clients += 1
        self.told["", method] = Told(trio.current_time(), clients)


def upstream_of(key: str) -> str:
    """Return the configured name of the upstream of a session key (`docs`, `docs@legacy`, `docs#3`)."""
    return key.partition("@")[0].partition("#")[0]


def _update_of(uri: str) -> Event:
    return Event(m.RESOURCE_UPDATED, {"uri": raw(uri)})
