"""Which message belongs to which: requests and their answers, on each leg, and the exchange behind them.

State, for each leg and direction: the requests that are not answered yet, by id. It is kept with the leg.
Pure; the time is handed in.

    a client's request          begins an exchange
    what mcpmux sends           belongs to the exchange that it is sent for, which the caller names
    an answer                   belongs to the exchange of its request
    progress of an upstream     belongs to the exchange of the request with that token (mcpmux uses its id)
    anything else of an         belongs to the exchange that is being read for, or to the only one of the leg
      upstream                  that was not taken back, or to none
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET

from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import (
    BadMessage,
    ErrorReply,
    Notification,
    Reply,
    Request,
    decode_message,
    is_batch,
    split_batch,
)
from mcpmux.protocol.raw_json import Id, Raw
from mcpmux.runtime.tap import Direction, Leg
from mcpmux.traffic.observer import Observation, PendingRequest, UnreadMessage
from mcpmux.traffic.record import MICROS, NO_PARAMS, Envelope, Error, Params, Result

PENDING_LIMIT: Final = 4096  # of one leg and direction; older ones are taken for never answered


_PendingById: TypeAlias = dict[Id, PendingRequest]
"""Requests that are not answered, the oldest first."""


def _pending(leg: Leg) -> tuple[_PendingById, _PendingById]:
    """Those that came in and those that went out, on a leg."""
    if leg.notes is None:
        leg.notes = ({}, {})
    pending_of_side: tuple[_PendingById, _PendingById] = leg.notes
    return pending_of_side


class Correlator:
    """Knows the legs of one recorder. `forget` when one is over."""

    def __init__(self) -> None:
        self._exchanges = 0

    def __repr__(self) -> str:
        return f"<Correlator {self._exchanges} exchanges>"

    def begin(self) -> int:
        """The number of a new exchange, for a message that is known to be a client's request."""
        self._exchanges += 1
        return self._exchanges

    def settle(self, unread: Iterable[UnreadMessage]) -> list[Observation]:
        """Observations of messages in the order in which they passed, one for each member of a batch."""
        observed: list[Observation] = []
        for each in unread:
            try:
                envelope = read_envelope(each[_DATA])
            except BadMessage as bad:
                observed += self._read_batch(each, bad)
            else:  # half of all are answers
                observed.append(
                    _answer(each, envelope) if envelope.method is UNSET else self._relate(each, envelope)
                )
        return observed

    def exchange_of(self, leg: Leg, request_id: Id) -> int:
        """The exchange of a client's request that is not answered yet; 0 when there is none."""
        pending = _pending(leg)[_IN].get(request_id)
        return pending[_EXCHANGE] if pending is not None else 0

    def forget(self, leg: Leg) -> None:
        """A leg is over."""
        leg.notes = None

    def _read_batch(self, unread: UnreadMessage, bad: BadMessage) -> list[Observation]:
        """The members of a batch, each read once; one invalid message for anything else."""
        leg, direction, data, at, status, exchange, _ = unread
        parts = _split(data)
        if parts is None:
            return [Observation(leg, direction, data, at, "invalid", exchange, id=bad.id, status=status)]
        members = []
        for part in parts:
            member: UnreadMessage = (leg, direction, part, at, status, exchange, False)
            try:
                members.append(self._relate(member, read_envelope(part)))
            except BadMessage as invalid:
                members.append(
                    Observation(leg, direction, part, at, "invalid", exchange, id=invalid.id, status=status)
                )
        return members

    def _relate(self, unread: UnreadMessage, envelope: Envelope) -> Observation:
        """The observation of a message."""
        if envelope.method is UNSET:
            return _answer(unread, envelope)
        if envelope.id is UNSET or envelope.id is None:
            return self._notification(unread, envelope.method, envelope.params or NO_PARAMS)
        return self._request(unread, envelope.method, envelope.id, envelope.params or NO_PARAMS)

    def _request(self, unread: UnreadMessage, method: str, request_id: Id, params: Params) -> Observation:
        """The observation of a request, which is pending from now on."""
        leg, direction, data, at, status, exchange, has_begun = unread
        if direction == "in" and not has_begun:
            if leg.side == "client":
                exchange = self.begin()
            elif not exchange:
                exchange = _only_exchange(leg)
        pending = (leg.notes or _pending(leg))[direction == "out"]
        pending[request_id] = exchange, method, at, False
        if len(pending) > PENDING_LIMIT:
            del pending[next(iter(pending))]
        target = params.uri if type(params.uri) is str else params.target
        return Observation(
            leg,
            direction,
            data,
            at,
            "request",
            exchange,
            method,
            request_id,
            target,
            None,
            None,
            None,
            status,
        )

    def _notification(self, unread: UnreadMessage, method: str, params: Params) -> Observation:
        """The observation of a notification."""
        leg, direction, data, at, status, exchange, _ = unread
        if method == m.CANCELLED:
            exchange = _cancelled(leg, direction, params.requestId) or exchange
        elif direction == "in" and leg.side == "upstream" and not exchange:
            exchange = _exchange_worked_for(leg, params) if method in _EXCHANGE_NOTIFICATIONS else 0
        return Observation(
            leg, direction, data, at, "notification", exchange, method, target=params.target, status=status
        )


def _answer(unread: UnreadMessage, envelope: Envelope) -> Observation:
    """The observation of an answer, with the request that it answers."""
    leg, direction, data, at, status, exchange, _ = unread
    method = ms = failed = request_id = None
    if envelope.id is not UNSET and envelope.id is not None:
        request_id = envelope.id
        pending = (leg.notes or _pending(leg))[direction == "in"].pop(request_id, None)
        if pending is not None:
            exchange, method, began, _ = pending
            ms = round((at - began) * MICROS) / 1000
    if envelope.error is not UNSET:
        code = envelope.error.code
        return Observation(
            leg, direction, data, at, "error", exchange, method, request_id, None, code, None, ms, status
        )
    if method == m.TOOLS_CALL and envelope.result is not UNSET and envelope.result.isError is True:
        failed = True
    return Observation(
        leg, direction, data, at, "result", exchange, method, request_id, None, None, failed, ms, status
    )


def _cancelled(leg: Leg, direction: Direction, request_id: Any) -> int:
    """The exchange of a request that is taken back; an answer may come nevertheless."""
    pending_of_side = _pending(leg)[direction == "out"]
    pending = pending_of_side.get(request_id) if _is_id(request_id) else None
    if pending is None:
        return 0
    exchange, method, began, _ = pending
    pending_of_side[request_id] = exchange, method, began, True
    return exchange


def _exchange_worked_for(leg: Leg, params: Params) -> int:
    token = params.progressToken
    if _is_id(token):
        pending = _pending(leg)[_OUT].get(token)
        return pending[_EXCHANGE] if pending is not None else 0
    return _only_exchange(leg)


def _only_exchange(leg: Leg) -> int:
    """The one exchange that an upstream works for; 0 when there are none or several."""
    pending_of_side = _pending(leg)[_OUT].values()
    exchanges = {exchange for exchange, _, _, was_taken_back in pending_of_side if not was_taken_back}
    exchanges.discard(0)  # what mcpmux asks for itself
    return exchanges.pop() if len(exchanges) == 1 else 0


def _split(batch: bytes) -> list[bytes] | None:
    """Its members; None when it is no batch, or is malformed."""
    try:
        return split_batch(batch) if is_batch(batch) else None
    except BadMessage:
        return None


_IN: Final = 0
_OUT: Final = 1
_DATA: Final = 2  # of UnreadMessage
_EXCHANGE: Final = 0  # of PendingRequest
_EXCHANGE_NOTIFICATIONS: Final = frozenset({m.PROGRESS, m.LOG_MESSAGE})


def _is_id(value: Any) -> bool:
    return isinstance(value, (int, str)) and not isinstance(value, bool)


# The envelope of a message, with the few members of params and results that are recorded. Pure.
#
# Promises: takes and refuses the same messages as `decode_message`. Most are decoded in one go; those that
# are malformed in some place are read again, member by member.

_decode: Final = msgspec.json.Decoder(Envelope).decode
_params_decoder: Final = msgspec.json.Decoder(Params)
_result_decoder: Final = msgspec.json.Decoder(Result)
_NOT_DECODED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def read_envelope(data: bytes) -> Envelope:
    """What a message is. Raises BadMessage."""
    try:
        if not data.isascii():
            data.decode()
        found = _decode(data)
    except _NOT_DECODED:
        return read_by_member(data)
    if found.method is not UNSET:
        if found.id is not None:
            return found
    elif found.error is not UNSET or (
        found.result is not UNSET and found.id is not UNSET and found.id is not None
    ):
        return found
    return read_by_member(data)


def method_id_target(message: bytes) -> tuple[str | None, Id | None, str | None]:
    """Method, id and target in a message; None for what is not there."""
    try:
        envelope = read_envelope(message)
    except BadMessage as bad:
        return None, bad.id, None
    method = None if envelope.method is UNSET else envelope.method
    request_id = None if envelope.id is UNSET else envelope.id
    params = envelope.params if method is not None else None
    return method, request_id, params.target if params is not None else None


def read_by_member(data: bytes) -> Envelope:
    """The same for a message that is not as it should be in some place. Raises BadMessage."""
    envelope = decode_message(data)
    if isinstance(envelope, Request):
        return Envelope("2.0", envelope.id, envelope.method, _params_in(envelope.params))
    if isinstance(envelope, Notification):
        return Envelope("2.0", UNSET, envelope.method, _params_in(envelope.params))
    if isinstance(envelope, ErrorReply):
        return Envelope("2.0", envelope.id, error=Error(envelope.code))
    return Envelope("2.0", envelope.id, result=_result_in(envelope))


def _params_in(params: Raw | None) -> Params:
    if params is None:
        return NO_PARAMS
    try:
        return _params_decoder.decode(params)
    except _NOT_DECODED:
        return NO_PARAMS


def _result_in(reply: Reply) -> Result:
    try:
        return _result_decoder.decode(reply.result)
    except _NOT_DECODED:
        return Result()
