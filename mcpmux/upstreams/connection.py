"""Connect to one upstream, find out its era, and translate exchanges for it.

Promises: `exchange` takes calls and raises errors in the shapes of 2026-07-28 with servers of any revision;
its results may lack members that 2026-07-28 requires. Refuses to know what is merged, prefixed or retried.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Awaitable
from contextlib import suppress
from typing import Final

import structlog
import trio

from mcpmux.channels.channel import Channel, ignore_event
from mcpmux.channels.http_peer import HttpStatusError, SessionExpired, may_mean_forgotten
from mcpmux.errors import McpmuxError, RemoteProtocolError, RpcError, TransportClosed, TransportError
from mcpmux.protocol import handshake
from mcpmux.protocol import method as m
from mcpmux.protocol.call import (
    CLIENT_CAPABILITIES,
    LOG_LEVEL,
    LOG_LEVELS,
    Call,
    Meta,
    Notify,
    modern_meta,
    severity,
)
from mcpmux.protocol.envelope import raw, text_of
from mcpmux.protocol.era import downgrade_meta, upgrade_error
from mcpmux.protocol.handshake import ServerFacts
from mcpmux.protocol.input_requests import RESPONSES, STATE, after_visits, first_error
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.revisions import NEWEST, NEWEST_LEGACY
from mcpmux.protocol.tasks import offers_tasks, without_task_support
from mcpmux.transports.inline import in_task
from mcpmux.transports.waiting import Deadline

log = structlog.get_logger()

# A legacy server may be silent on `server/discover`; a slow start must not look like that.
PROBE_SECONDS = 5.0
# After a modern session, with a probe of any length; then an older version may have taken the server's place.
PATIENT_ATTEMPTS: Final = 5
NOTIFICATION_LIMIT: Final = 256  # notifications of clients that wait for a server; more is a flood
SURE_SECONDS: Final = 5.0  # after a check of a server until the next, so that many errors cost one check


class Connection:
    """An open connection to a server of 2026-07-28: every request states version and client.

    `facts`: the server's, from the handshake.
    """

    def __init__(self, channel: Channel, facts: ServerFacts, client_info: Raw) -> None:
        self.channel = channel
        self._client_info = client_info
        self.facts = facts
        self.makes_tasks = offers_tasks(facts)
        self.closed = channel.closed
        self._sure_until = -math.inf

    def exchange(self, call: Call, notify: Notify, deadline: Deadline | None = None) -> Awaitable[Fields]:
        """Return the result of one call.

        Raises, when awaited or at once, RpcError (the upstream's answer), TransportError (no answer), Overdue
        (after `deadline`).
        """
        if RESPONSES in call.params and (error := first_error(call)) is not None:
            raise error
        meta = call.meta
        complete = isinstance(meta, Meta) and meta.complete
        leg = call if complete else call.with_meta(modern_meta(call, self._client_info))
        if call.method == m.TOOLS_LIST:
            return self._list_tools(leg, notify, deadline)
        return self.channel.exchange(leg, notify, deadline)

    async def _list_tools(self, leg: Call, notify: Notify, deadline: Deadline | None) -> Fields:
        result = self.channel.learn_tools(await self.channel.exchange(leg, notify, deadline))
        return without_task_support(result) if leg.legacy else result

    def abandon(self, state: str) -> bool:
        """Give up the parked call with that state, whose client has gone. Return False if there is none."""
        return self.channel.questions.abandon(state)

    def tell_nowait(self, method: str, params: Fields) -> None:
        """Queue a notification of clients, if the server's era has any; 2026-07-28 has none."""

    async def keep_telling(self) -> None:
        """Send the queued notifications, until cancelled."""

    async def holds(self) -> bool:
        """Return whether the server still speaks the agreed era, after an error. Ends the connection if not.

        Over HTTP a server can be replaced by one of the other era without any connection being closed.
        """
        if not self.channel.doubtful or trio.current_time() < self._sure_until:
            return True
        await in_task()
        self.channel.doubtful = False
        if await self._is_recognised():
            self._sure_until = trio.current_time() + SURE_SECONDS
            return True
        self.channel.give_up(TransportClosed(f"it does not speak {self.facts.revision} any more"))
        return False

    async def _is_recognised(self) -> bool:
        try:
            return await _discover(self.channel, self._client_info) is not None
        except McpmuxError:  # another failure does not show the era; the next call will report it
            return True

    def doubts_session(self, _error: McpmuxError) -> bool:
        """Return whether an error is a reason to check that the server still has our session."""
        return False

    async def lacks_session(self, _error: McpmuxError) -> bool:
        """Return whether the server has lost our session: it refuses what every session can have, too."""
        return False

    async def check(self) -> None:
        """Send a request that every server answers. Raises RpcError (also an answer) or TransportError."""
        await self.channel.exchange(handshake.discover_call(self._client_info), ignore_event)


class LegacyConnection(Connection):
    """A session opened with `initialize`. Errors are translated into the shape of 2026-07-28."""

    def __init__(self, channel: Channel, facts: ServerFacts, client_info: Raw) -> None:
        super().__init__(channel, facts, client_info)
        self._severity = len(LOG_LEVELS)  # of the log level that was set; so far none
        self._to_tell: dict[tuple[str, bytes], Fields] = {}  # clients' notifications; equal ones are merged
        self._told = trio.Event()

    def exchange(self, call: Call, notify: Notify, deadline: Deadline | None = None) -> Awaitable[Fields]:
        level = call.meta.get(LOG_LEVEL)
        if level is not None and severity(text_of(level)) < self._severity and self.facts.offers("logging"):
            return self._speak_up_and_exchange(text_of(level), call, notify, deadline)
        # The capabilities stay with the call, as the server may ask its client something.
        offered, meta, who = call.meta.get(CLIENT_CAPABILITIES), downgrade_meta(call), call.principal
        leg = Call(call.method, call.params, meta, call.client, offered, call.legacy, who, call.headers)
        if STATE in call.params:
            return _upgraded(call, self.channel.resume(leg, notify, deadline))
        if RESPONSES in call.params:
            leg = after_visits(leg)
        return _upgraded(call, self.channel.exchange(leg, notify, deadline))

    async def _speak_up_and_exchange(
        self, level: str | None, call: Call, notify: Notify, deadline: Deadline | None
    ) -> Fields:
        """Set the server's log level to `level`, then exchange. The level is only ever made more verbose."""
        # A session has one level, while each client may have another: `with_logs_of` drops what is too much.
        self._severity = severity(level)
        try:
            await self.channel.exchange(Call(m.SET_LEVEL, {"level": raw(level)}, {}), ignore_event, deadline)
        except RpcError as error:
            log.debug("log level refused", level=level, reason=error.message)
        return await self.exchange(call, notify, deadline)

    def tell_nowait(self, method: str, params: Fields) -> None:
        # A server that does not read must not fill the memory with what clients send.
        key = method, bytes(raw(params))
        if len(self._to_tell) >= NOTIFICATION_LIMIT and key not in self._to_tell:
            log.debug("notification not passed on", method=method)
        else:
            self._to_tell[key] = params
            self._told.set()

    async def keep_telling(self) -> None:
        while True:
            await self._told.wait()
            self._told = trio.Event()
            news, self._to_tell = self._to_tell, {}
            for (method, _), params in news.items():
                try:
                    await self.channel.notify(method, params)
                except TransportError as error:
                    log.debug("notification not passed on", method=method, reason=str(error))

    async def _is_recognised(self) -> bool:
        with trio.move_on_after(PROBE_SECONDS), suppress(RpcError, TransportError):
            await self.channel.exchange(Call(m.PING, {}, {}), ignore_event)
        return not self.channel.doubtful

    def doubts_session(self, error: McpmuxError) -> bool:
        return self.channel.session is not None and may_mean_forgotten(error)

    async def lacks_session(self, error: McpmuxError) -> bool:
        """Return whether the server has lost our session, after a request for a list if need be.

        A 404 is enough: another session MUST be opened after it ("Session Management"). A server that has
        sent the list is not asked again for SURE_SECONDS, so that many errors of the server cost one
        question.
        """
        if isinstance(error, SessionExpired):
            return True
        if trio.current_time() < self._sure_until:
            return False
        # A list, as some servers answer `ping` without an initialized session. Unlike the refused call, a
        # list does not change the server.
        lists = (method for method, of in m.LISTS.items() if self.facts.offers(of.capability))
        method = next(lists, m.PING)
        with trio.move_on_after(PROBE_SECONDS):
            try:
                await self.channel.exchange(Call(method, {}, {}), ignore_event)
            except McpmuxError as refusal:
                return may_mean_forgotten(refusal)
        self._sure_until = trio.current_time() + SURE_SECONDS
        return False

    async def check(self) -> None:
        await self.channel.exchange(Call(m.PING, {}, {}), ignore_event)


async def _upgraded(call: Call, exchange: Awaitable[Fields]) -> Fields:
    """Return the result of an exchange with a legacy server. Raises its error in the shape of 2026-07-28."""
    try:
        return await exchange
    except RpcError as error:
        raise upgrade_error(call.method, call.params, error) from None


class Eras(enum.Enum):
    """The order in which the eras are tried with a server."""

    MODERN_FIRST = enum.auto()
    LEGACY_FIRST = enum.auto()
    """For a server that does not survive `server/discover`, and for the session of a legacy client."""
    LEGACY_ONLY = enum.auto()


async def _discover(channel: Channel, client_info: Raw, seconds: float = PROBE_SECONDS) -> ServerFacts | None:
    """Return the facts of a modern server, None for a legacy one or one that is silent for `seconds`.

    Raises RemoteProtocolError for a newer one.

    A server that refuses a version which it lists is asked once more: "The client SHOULD select a mutually
    supported version from the `supported` list and retry the request" (Versioning, 2026-07-28).
    """
    call = handshake.discover_call(client_info)
    with trio.move_on_after(seconds):
        try:
            try:
                result = await channel.exchange(call, ignore_event)
            except RpcError as error:
                if not handshake.offers_newest(error):
                    raise
                result = await channel.exchange(call, ignore_event)
            return handshake.read_discover_result(result)
        except RpcError as error:
            if handshake.is_final(error):
                raise RemoteProtocolError(handshake.refusal(error)) from None
        except HttpStatusError as refusal:
            if refusal.status in (401, 403):  # about credentials, not about the era
                raise
        except RemoteProtocolError as nonsense:  # the answer to `initialize` will show more
            log.debug("the probe's answer makes no sense", reason=str(nonsense))
    return None


class SessionOpener:
    """Opens connections to one server, and remembers its era. `eras`: their order now."""

    def __init__(
        self,
        client_info: Raw,
        capabilities: Raw,
        eras: Eras,
        revision: str | None = None,
        instance: str | None = None,
    ) -> None:
        """`capabilities`: of the client or clients, for a legacy server. `instance`: the id of this mcpmux.

        `revision`: the only one to speak; None for the newest that both sides know.
        """
        self._client_info, self._capabilities, self._revision = client_info, capabilities, revision
        self._instance = instance
        self.eras = eras if revision in (None, NEWEST) else Eras.LEGACY_ONLY
        self._patient_attempts = 0  # that are left since its last modern session

    async def connect(self, channel: Channel, seconds: float) -> Connection:
        """Find out the server's era and open a connection within `seconds`, the setting `connect_timeout`.

        Raises TransportError, and RemoteProtocolError when the server refuses, is late, does not speak the
        only revision, or makes no sense.
        """
        with trio.move_on_after(seconds):
            try:
                connection = await self._connect(channel)
            except TransportClosed:
                # Some servers exit on a request that they do not know: the other era comes first next time.
                if self.eras is not Eras.LEGACY_ONLY:
                    modern = self.eras is Eras.MODERN_FIRST
                    self.eras = Eras.LEGACY_FIRST if modern else Eras.MODERN_FIRST
                raise
            except RpcError as refusal:
                raise RemoteProtocolError(f"it refused to initialize: {refusal.message}") from None
            if self._instance in connection.facts.instances:
                raise RemoteProtocolError("it is this mcpmux itself, or another one that leads back here")
            revision, spoken = self._revision, connection.facts.revision
            # A server may answer in another one than it was asked for ("Lifecycle", Version Negotiation).
            if revision not in (None, spoken):
                raise RemoteProtocolError(f"it does not speak revision {revision}; it answered with {spoken}")
            return connection
        raise RemoteProtocolError(f"it did not answer initialize within {seconds:g} s of `connect_timeout`")

    async def _connect(self, channel: Channel) -> Connection:
        probe = self._revision == NEWEST or (self.eras is Eras.MODERN_FIRST and not channel.legacy_only)
        # A server of both eras that hangs for a while must not get a legacy session for that.
        patience = math.inf if self._patient_attempts else PROBE_SECONDS
        self._patient_attempts = max(0, self._patient_attempts - 1)
        facts = await _discover(channel, self._client_info, patience) if probe else None
        if facts is None:
            try:
                return await self._initialize(channel)
            except (RpcError, HttpStatusError) as refusal:
                # A server of 2024-11-05 refuses a POST to its URL; HTTP+SSE is tried with it.
                older = await channel.older()
                if older is not None:
                    return await self._initialize(older)
                if self.eras is Eras.LEGACY_ONLY:
                    raise refusal
                # A modern server that was too slow for the probe, or was not probed, refuses `initialize`.
                facts = await _discover(channel, self._client_info)
                if facts is None:
                    raise refusal from None
        channel.settle(facts)
        self._patient_attempts = PATIENT_ATTEMPTS
        return Connection(channel, facts, self._client_info)

    async def _initialize(self, channel: Channel) -> Connection:
        """Open a legacy session in the only revision, or else in the newest that the server accepts.

        Raises the first refusal if the server accepts none.
        """
        result, revision = None, None if self._revision == NEWEST else self._revision
        revisions, first = [revision or NEWEST_LEGACY], None
        # A server should answer in a revision that it speaks, but many refuse what they do not know: with
        # -32602 and `data.supported`, or with a 400 whose text names versions.
        while result is None:
            call = handshake.initialize_call(self._client_info, self._capabilities, revisions[-1])
            try:
                result = await channel.exchange(call, ignore_event)
            except (RpcError, HttpStatusError) as refusal:
                first = first or refusal
                following = handshake.next_revision(refusal, revisions) if revision is None else None
                if following is None or (
                    isinstance(refusal, HttpStatusError) and refusal.status in (401, 403)
                ):
                    raise first from None  # it names the reason; the later refusals are about our guesses
                log.info(
                    "revision refused, another one is tried", revision=revisions[-1], following=following
                )
                revisions.append(following)
        facts = handshake.read_initialize_result(result)
        channel.settle(facts)
        # "After successful initialization, the client MUST send" it ("Lifecycle").
        await channel.notify(m.INITIALIZED)
        await channel.listen()
        return LegacyConnection(channel, facts, self._client_info)
