"""An open conversation with one upstream: its era found out, its exchanges in the core's language.

Promises: `exchange` takes calls and gives errors in the shapes of 2026-07-28, whatever the server speaks; its
results may lack what that requires. Refuses to know what is merged, prefixed or retried.
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
SURE_SECONDS: Final = 5.0  # after a server was found to speak as agreed; many errors cost one question


class Connection:
    """One upstream's open conversation, with a server of 2026-07-28: every request states version and client.

    `facts` is what it said about itself.
    """

    def __init__(self, channel: Channel, facts: ServerFacts, client_info: Raw) -> None:
        self.channel = channel
        self._client_info = client_info
        self.facts = facts
        self.makes_tasks = offers_tasks(facts)
        self.task_support: dict[str, str] = {}  # what its tools said about tasks when they were last listed
        self.closed = channel.closed
        self._sure_until = -math.inf

    def exchange(self, call: Call, notify: Notify, deadline: Deadline | None = None) -> Awaitable[Fields]:
        """One call, until the end of `deadline`.

        Raises, when awaited or at once, RpcError (the upstream's answer), TransportError (none), Overdue.
        """
        if RESPONSES in call.params and (error := first_error(call)) is not None:
            raise error
        said = call.meta
        complete = isinstance(said, Meta) and said.complete
        leg = call if complete else call.with_meta(modern_meta(call, self._client_info))
        if call.method == m.TOOLS_LIST:
            return self._list_tools(leg, notify, deadline)
        return self.channel.exchange(leg, notify, deadline)

    async def _list_tools(self, leg: Call, notify: Notify, deadline: Deadline | None) -> Fields:
        result = self.channel.learn_tools(await self.channel.exchange(leg, notify, deadline))
        return without_task_support(result) if leg.legacy else result

    def abandon(self, state: str) -> bool:
        """The client of a parked call has gone; False when the state is not known here."""
        return self.channel.questions.abandon(state)

    async def tell(self, method: str, params: Fields) -> None:
        """Pass on a notification of the clients that this server's era knows; 2026-07-28 knows none."""

    async def holds(self) -> bool:
        """After an error: whether the server still speaks as agreed. Ends the connection when it does not.

        Over HTTP a server can be replaced by one of the other era without anything being closed.
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
        except McpmuxError:
            return True  # some other trouble, which the next call will meet

    def doubts_session(self, _error: McpmuxError) -> bool:
        """Tell whether an error is a reason to look whether the server still has our session."""
        return False

    async def lacks_session(self, _error: McpmuxError) -> bool:
        """Ask the server for what every session can have; True when that is refused as well."""
        return False

    async def check(self) -> None:
        """Ask something that every server answers. Raises RpcError (an answer, too) or TransportError."""
        await self.channel.exchange(handshake.discover_call(self._client_info), ignore_event)


class LegacyConnection(Connection):
    """A session opened with `initialize`; errors are raised to the shape of 2026-07-28."""

    def __init__(self, channel: Channel, facts: ServerFacts, client_info: Raw) -> None:
        super().__init__(channel, facts, client_info)
        self._severity = len(LOG_LEVELS)  # of the log level that was set; so far none

    def exchange(self, call: Call, notify: Notify, deadline: Deadline | None = None) -> Awaitable[Fields]:
        level = call.meta.get(LOG_LEVEL)
        if level is not None and severity(text_of(level)) < self._severity and self.facts.offers("logging"):
            return self._speak_up_and_exchange(text_of(level), call, notify, deadline)
        offered = call.meta.get(CLIENT_CAPABILITIES)
        meta = downgrade_meta(call)
        leg = Call(call.method, call.params, meta, call.client, offered, call.legacy, call.principal)
        if STATE in call.params:
            return _upgraded(call, self.channel.resume(leg, notify, deadline))
        if RESPONSES in call.params:
            leg = after_visits(leg)
        return _upgraded(call, self.channel.exchange(leg, notify, deadline))

    async def _speak_up_and_exchange(
        self, level: str | None, call: Call, notify: Notify, deadline: Deadline | None
    ) -> Fields:
        """Have the server log at least `level`: its sessions have one level, our clients each their own."""
        self._severity = severity(level)
        try:
            await self.channel.exchange(Call(m.SET_LEVEL, {"level": raw(level)}, {}), ignore_event, deadline)
        except RpcError as error:
            log.debug("log level refused", level=level, reason=error.message)
        return await self.exchange(call, notify, deadline)

    async def tell(self, method: str, params: Fields) -> None:
        await self.channel.notify(method, params)

    async def _is_recognised(self) -> bool:
        with trio.move_on_after(PROBE_SECONDS), suppress(RpcError, TransportError):
            await self.channel.exchange(Call(m.PING, {}, {}), ignore_event)
        return not self.channel.doubtful

    def doubts_session(self, error: McpmuxError) -> bool:
        return self.channel.session is not None and may_mean_forgotten(error)

    async def lacks_session(self, error: McpmuxError) -> bool:
        """Return at once for a 404, after which another session MUST be opened ("Session Management").

        For all other errors a list is asked for: unlike `ping`, which some servers answer to anybody, it
        needs an initialized session, and unlike the call it does nothing. A server that has given the list
        is not asked again for SURE_SECONDS, so that many errors of its own cost one question.
        """
        if isinstance(error, SessionExpired):
            return True
        if trio.current_time() < self._sure_until:
            return False
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
    """What an exchange with a legacy server brings, its error as 2026-07-28 says it."""
    try:
        return await exchange
    except RpcError as error:
        raise upgrade_error(call.method, call.params, error) from None


class Eras(enum.Enum):
    """In which order a server is asked for its era."""

    MODERN_FIRST = enum.auto()
    LEGACY_FIRST = enum.auto()
    """For a server that does not survive `server/discover`, and for the session of a legacy client."""
    LEGACY_ONLY = enum.auto()


async def connect(
    channel: Channel, client_info: Raw, capabilities: Raw, eras: Eras, revision: str | None = None
) -> Connection:
    """Find out the server's era and open the conversation. The caller owns the deadline.

    `capabilities`: of the client or clients, for a server whose sessions are opened with them. `revision`:
    the only one to speak; without it, the newest that both sides know is found out.

    Raises TransportError, RpcError (it refused `initialize`), RemoteProtocolError (it makes no sense, or does
    not speak `revision`).
    """
    connection = await _connect(channel, client_info, capabilities, eras, revision)
    spoken = connection.facts.revision
    if revision is not None and spoken != revision:
        raise RemoteProtocolError(f"it does not speak revision {revision}; it answered with {spoken}")
    return connection


async def _connect(
    channel: Channel, client_info: Raw, capabilities: Raw, eras: Eras, revision: str | None
) -> Connection:
    legacy = None if revision == NEWEST else revision
    if legacy is not None:
        eras = Eras.LEGACY_ONLY
    probe = revision == NEWEST or (eras is Eras.MODERN_FIRST and not channel.legacy_only)
    facts = await _discover(channel, client_info) if probe else None
    if facts is None:
        try:
            return await _initialize(channel, client_info, capabilities, legacy)
        except (RpcError, HttpStatusError) as refusal:
            older = await channel.older()
            if older is not None:
                return await _initialize(older, client_info, capabilities, legacy)
            if eras is Eras.LEGACY_ONLY:
                raise refusal
            # A modern server that was too slow for the probe, or not asked, refuses `initialize`.
            facts = await _discover(channel, client_info)
            if facts is None:
                raise refusal from None
    channel.settle(facts)
    return Connection(channel, facts, client_info)


async def _discover(channel: Channel, client_info: Raw) -> ServerFacts | None:
    """The facts of a modern server, None for a legacy one. Raises RemoteProtocolError for a newer one.

    A server that refuses a version which it lists is asked once more: "The client SHOULD select a mutually
    supported version from the `supported` list and retry the request" (Versioning, 2026-07-28).
    """
    call = handshake.discover_call(client_info)
    with trio.move_on_after(PROBE_SECONDS):
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
            if refusal.status in (401, 403):
                raise
        except RemoteProtocolError as nonsense:  # the answer to `initialize` will say more
            log.debug("the probe's answer makes no sense", reason=str(nonsense))
    return None


async def _initialize(
    channel: Channel, client_info: Raw, capabilities: Raw, revision: str | None
) -> Connection:
    """Open a legacy session, in `revision` or else in the newest that the server takes.

    Raises the first refusal if the server takes none.
    """
    result = None
    asked, first = [revision or NEWEST_LEGACY], None
    while result is None:
        call = handshake.initialize_call(client_info, capabilities, asked[-1])
        try:
            result = await channel.exchange(call, ignore_event)
        except (RpcError, HttpStatusError) as refusal:
            first = first or refusal
            following = handshake.next_revision(refusal, asked) if revision is None else None
            if following is None or (isinstance(refusal, HttpStatusError) and refusal.status in (401, 403)):
                raise first from None
            log.info("revision refused, another one is tried", revision=asked[-1], following=following)
            asked.append(following)
    facts = handshake.read_initialize_result(result)
    channel.settle(facts)
    await channel.notify(m.INITIALIZED)
    await channel.listen()
    return LegacyConnection(channel, facts, client_info)
