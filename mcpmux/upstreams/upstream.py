"""One upstream, used by any number of exchanges.

Promises: a crash, a hang or invalid messages of this upstream affect no other; an exchange gets its answer,
or an RpcError that names the upstream and the reason, within the upstream's deadline; an idempotent exchange
is sent a second time when its first connection was lost, or when the server asks to repeat it soon.
`supervision` keeps it connected, and `health` judges whether it answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

import structlog
import trio

from mcpmux.channels.channel import ignore_event
from mcpmux.channels.http_peer import may_repeat, pause_before_repeating
from mcpmux.channels.questions import FindClient
from mcpmux.channels.tap import Watch
from mcpmux.config import TOOL_SECONDS
from mcpmux.config import Upstream as UpstreamConfig
from mcpmux.errors import (
    LocalProtocolError,
    Overdue,
    RemoteProtocolError,
    RpcError,
    TransportError,
)
from mcpmux.mux.cache import Generations
from mcpmux.mux.item import ItemProblem
from mcpmux.mux.listing import Listing
from mcpmux.mux.rewrite import Space
from mcpmux.protocol import method as m
from mcpmux.protocol.call import LOG_LEVEL, Call, Event, Notify, upgrade_result
from mcpmux.protocol.codes import UPSTREAM_UNAVAILABLE
from mcpmux.protocol.envelope import Notification, error_body, members_of, raw
from mcpmux.protocol.era import upgrade_refusal
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.input_requests import ERROR, STATE, WITHDRAWN
from mcpmux.protocol.raw_json import Fields
from mcpmux.transports.inline import in_task
from mcpmux.transports.waiting import Deadline, clock
from mcpmux.upstreams.connection import Connection, SessionOpener
from mcpmux.upstreams.health import Health, UpstreamStatus
from mcpmux.upstreams.limiter import Limiter, RateCounter
from mcpmux.upstreams.response_cache import ResponseCache
from mcpmux.upstreams.subscriber import Subscriber
from mcpmux.upstreams.supervision import OpenChannel, Supervision

log = structlog.get_logger()

BREATH_SECONDS: Final = 0.05  # between the exchanges of one call

OnChange = Callable[[str, Collection[str]], None]
"""Report that lists of an upstream may have changed: (its name, the capabilities of the lists)."""
OnNotification = Callable[[str, Notification], None]

_KNOWN_EVENTS: Final = frozenset({m.PROGRESS, m.ACKNOWLEDGED})


class Upstream:
    """One configured server and one session with it: the shared one, or a client's private one.

    `key` identifies the session. `memory`: its cached answers; None without a cache. `listings`: what is
    known of its lists, by method. `reported`: the problems of its lists that were logged, by list.
    """

    def __init__(
        self,
        config: UpstreamConfig,
        key: str,
        opener: SessionOpener,
        space: Space,
        open_channel: OpenChannel,
        subscriber: Subscriber,
        find_client: FindClient,
        on_change: OnChange,
        on_notification: OnNotification,
        watch: Watch | None,
        generations: Generations,
        rates: RateCounter,
    ) -> None:
        self.config = config
        self.name = config.name
        self.key = key
        self.space = space
        self.watch = watch
        self.subscriber = subscriber
        self.status = status = UpstreamStatus(config)
        self.limiter = Limiter(config.name, config.max_in_flight, config.max_waiting)
        self.health = Health(status, self.limiter, self._turned)
        self.supervision = Supervision(self, status, self.health, opener, open_channel, find_client)
        self.memory: ResponseCache | None = None
        self.listings = {m.TOOLS_LIST: Listing(), m.PROMPTS_LIST: Listing()}
        self.reported: set[tuple[str, ItemProblem]] = set()  # all sessions with the server share it
        self.unasked_logs = 0  # log messages during modern calls that had not asked for any
        self._on_change: OnChange | None = on_change
        self._on_notification = on_notification
        self._generations = generations
        self._rates = rates
        self._clock = clock()
        self._idle: trio.Event | None = None  # set by the last exchange, while `idle` waits for it
        subscriber.on_lists = self.announce

    @property
    def facts(self) -> ServerFacts | None:
        """The server's facts while it is connected, else None."""
        return self.status.facts

    @property
    def state(self) -> str:
        """The state, in the words of `status`."""
        return self.status.state

    async def exchange(self, call: Call, notify: Notify, deadline: Deadline | None = None) -> Fields:
        """Return the result of one call within this upstream's deadline, renewed by progress up to a maximum.

        `deadline`: another one, if it is sooner. Raises RpcError: the upstream's, or the reason why there is
        no answer.
        """
        seconds = self.patience(call.method)
        status = self.status
        if status.held is not None and STATE not in call.params:
            raise status.error(UPSTREAM_UNAVAILABLE, status.held)
        if self.health.silent:  # only then can the breaker be open: most calls skip the look
            status.check_breaker()
        now = self._clock()
        if self._rates.counts_exchanges:
            await self._rates.begin(call, self.name)
        if deadline is None or deadline.at > now + seconds:
            deadline = Deadline(seconds, 0.0, self.config.max_request_timeout, now)

        async def pass_on(event: Event) -> None:
            deadline.renew()
            if self._passes(event, call):
                await notify(event)

        entered, acts = False, call.method not in m.READ_ONLY
        status.in_flight += 1
        if acts:  # cached answers may be wrong as soon as the call begins; and again at its end, below
            self._generations.act(self.name)
        try:
            if seconds < math.inf:  # an exchange without end would take a slot for ever
                entered = self.limiter.enter()
                if not entered:
                    await in_task()
                    with deadline.limit():
                        entered = await self.limiter.wait(call)
            if self.watch is None or self.watch.trace is None:
                return await self._ask(call, pass_on, deadline)
            ask = partial(self._ask, notify=pass_on, deadline=deadline)
            return await self.watch.trace(self.watch.leg, call, ask)
        except RemoteProtocolError as nonsense:
            self.health.failed()
            if nonsense.quoted:
                log.warning("upstream makes no sense", reason=nonsense.in_full)
            raise status.error(
                UPSTREAM_UNAVAILABLE, f"makes no sense: {nonsense.told}", None, nonsense.quoted
            ) from None
        except Overdue as late:
            unanswered = late.unanswered  # raised below, as the error depends on what the time was spent on
        finally:
            if acts:
                self._generations.act(self.name)
            if entered and (following := self.limiter.leave()) is not None:
                following.set()
            status.in_flight -= 1
            if self._idle is not None and not status.in_flight:
                self._idle.set()
        if not entered:
            raise self.limiter.busy()
        if not unanswered:  # else the client was late, not the server
            self.health.failed()
        raise status.late(call.method, deadline.seconds, exhausted=deadline.exhausted, unanswered=unanswered)

    def patience(self, method: str) -> float:
        """Return the seconds that a request may take without progress."""
        config = self.config
        if config.timeouts and method in config.timeouts:
            return config.timeouts[method]
        if method == m.TASKS_RESULT:  # it comes when the task is done, however long that takes
            return math.inf
        return max(config.request_timeout, TOOL_SECONDS) if method == m.TOOLS_CALL else config.request_timeout

    def _passes(self, event: Event, call: Call) -> bool:
        """Return whether a notification during `call` is passed on to its client.

        With a single upstream without a prefix mcpmux is transparent: unknown notifications pass, too.
        """
        if event.method in _KNOWN_EVENTS:
            return True
        if event.method != m.LOG_MESSAGE:
            return self.space.transparent
        if call.legacy or LOG_LEVEL in call.meta:
            return True
        if not self.status.is_modern:
            return False  # a legacy session logs for all its clients; this call has not asked for it
        self.unasked_logs += 1
        return self.space.transparent

    async def ask_list(self, method: str) -> None:
        """Ask for the first page of a list, within the time that clients would wait. Raises RpcError."""
        seconds = self.config.list_timeout
        await self.exchange(Call(method, {}, {}), ignore_event, Deadline(seconds, 0.0, seconds))

    async def reply(self, call: Call) -> None:
        """Answer the questions of a parked call of a legacy server, without its result. Raises RpcError."""
        connection = await self.supervision.connected()
        self._generations.act(self.name)
        try:
            await connection.channel.questions.reply(call)
        except TransportError as error:
            lost = f"was lost: {error.told}"
            raise self.status.error(UPSTREAM_UNAVAILABLE, lost, None, error.quoted) from None
        finally:
            self._generations.act(self.name)

    async def _ask(self, call: Call, notify: Notify, deadline: Deadline) -> Fields:
        if self.watch is not None:
            self.watch.routed(self.name)
        renewed = False
        # Twice at most: a server that refuses everything must not be asked for ever.
        for last in (False, True):
            connection = self.status.connection or await self.supervision.connected(deadline)
            try:
                result = await connection.exchange(call, notify, deadline)
            except (RpcError, TransportError) as error:
                renewed = await self._get_over(error, connection, call, deadline, last=last)
            else:
                if self.health.silent:
                    self.health.answered()
                if renewed:
                    self.supervision.renewal_helped()
                return upgrade_result(call.method, result)
        raise LocalProtocolError("unreachable")

    async def _get_over(
        self,
        error: RpcError | TransportError,
        connection: Connection,
        call: Call,
        deadline: Deadline,
        *,
        last: bool,
    ) -> bool:
        """Wait until a call may be sent again after an error, or raise the error for its client.

        `last`: the call is not sent again. Return whether another session has taken over.
        """
        answer: RpcError | None = None
        # An error of the server is its answer, unless it has forgotten the session or its era has changed.
        if isinstance(error, RpcError):
            self.health.answered()
            answer = error if call.method != m.RESOURCES_READ else upgrade_refusal(call.params, error)
            if not connection.doubts_session(error) and (last or not may_repeat(call, error, holds=False)):
                raise answer from None
        await in_task()
        with deadline.limit():
            renewed = await self.supervision.renewed(connection, error)
            holds = not renewed and await connection.holds()
            if answer is not None and (holds or last):
                raise answer from None
            pause = 0.0 if renewed else pause_before_repeating(error, deadline.left)
            if last or pause is None or not may_repeat(call, error, holds=holds):
                if answer is not None:
                    raise answer from None
                assert isinstance(error, TransportError)
                raise self.health.lost(error) from None
            self.supervision.forget(connection)
            await trio.sleep(pause)
        return renewed

    def tell_nowait(self, method: str, params: Fields | None = None) -> None:
        """Queue a notification of clients for the server, if it is connected. Equal ones are sent once."""
        # It may change something, as a call may: cached answers are not given any more.
        self._generations.act(self.name)
        if (connection := self.status.connection) is not None:
            connection.tell_nowait(method, params or {})

    def take(self, notification: Notification) -> None:
        """Take a notification of the server, or one of the channel about itself."""
        connection = self.status.connection
        if notification.method == m.HEARING:
            self.announce()
            return
        if notification.method == m.FORGOTTEN:  # the server refuses the session's own stream
            if connection is not None:
                self.supervision.renew(connection, TransportError("its own stream is refused"))
            return
        # The call is lost with its connection: its client gets that error, and does not repeat the call.
        if notification.method == WITHDRAWN and (connection is None or connection.closed.is_set()):
            reason = self.status.trouble if connection is None else connection.channel.close_reason.told
            lost = f"was lost while its client was asked something: {reason}"
            error = error_body(self.status.error(UPSTREAM_UNAVAILABLE, lost))
            notification = Notification(WITHDRAWN, raw({**members_of(notification.params), ERROR: error}))
        # A server that announces changes of a list has it, also when it had none at the start of the session.
        capability = m.CAPABILITY_OF_CHANGE.get(notification.method)
        if capability is not None and connection is not None and not connection.facts.offers(capability):
            connection.facts.capabilities[capability] = {"listChanged": True}
        # The cache first: a client that is notified may ask at once, and must not get the old answer.
        if self.memory is not None:
            self.memory.hear(notification)
        if notification.method != m.MISSED:
            self._on_notification(self.key, notification)
        # Some were lost: all announced lists and all resources may have changed.
        elif self.facts is not None:
            self.forget()
            self.subscriber.catch_up()
            self.lists_changed(list(filter(self.facts.announces, self.facts.capabilities)))

    # Its life, and what is known of its lists

    async def idle(self) -> None:
        """Wait until no exchange is in flight, and none begins within BREATH_SECONDS."""
        # A call of several exchanges, such as a walk through pages, has moments without one in flight.
        await trio.sleep(BREATH_SECONDS)
        while self.status.in_flight:
            self._idle = trio.Event()
            await self._idle.wait()
            await trio.sleep(BREATH_SECONDS)
        self._idle = None

    def hold(self, reason: str | None) -> None:
        """Take no more exchanges; None: take them again. Those in flight go on, also by answers of clients.

        `reason`: the rest of a sentence that begins with the upstream's name.
        """
        self.status.held = reason
        self.status.turn()
        self.forget()

    def adopt(self, config: UpstreamConfig) -> None:
        """Go by a changed configuration, in which only settings differ that are looked up at each use."""
        self.config = self.status.config = config
        self.health.look_again()

    def remember(self, memory: ResponseCache | None) -> None:
        """Cache answers in `memory` from now on, None: nowhere, and drop the cached ones."""
        self.forget()
        self.memory = memory
        self.announce()

    def announce(self) -> None:
        """Inform the cache which list changes arrive now."""
        connection = self.status.connection
        if self.memory is not None and connection is not None:
            self.memory.follow(connection.facts, self.subscriber.lists, hearing=connection.channel.hearing)

    def forget(self) -> None:
        """Drop the cached answers, and keep none that is on its way."""
        if self.memory is not None:
            self.memory.drop()

    def lists_changed(self, capabilities: Collection[str]) -> None:
        """Note, and report, that lists of these capabilities may have changed."""
        for listing in self.listings.values():
            listing.changed()
        # A session that is retired has no news for clients: another one serves them.
        if self._on_change is not None:
            self._on_change(self.name, capabilities)

    def _turned(self) -> None:
        """Report that calls are blocked, or let through again."""
        # Merged lists leave it out meanwhile.
        self.forget()
        self.supervision.relisting.forget()
        if self.facts is not None:
            self.lists_changed(self.facts.capabilities)

    def retire(self) -> None:
        """Stop reporting changed lists and caching answers, as this session gets no calls any more."""
        self._on_change = None
        self.remember(None)

    def end(self, reason: str) -> None:
        """Fail the tasks that wait for a connection with `reason`, because it will not connect again."""
        self.remember(None)
        self.supervision.end(reason)
