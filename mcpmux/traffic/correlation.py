"""Which message belongs to which: requests and their answers, on each leg, and the exchange behind them.

State, for each leg and direction: the requests that are not answered yet, by id. It is kept with the leg.
Pure; the time is handed in.

    a client's request          begins an exchange
    what mcpmux sends           belongs to the exchange that it is sent for, as the caller says
    an answer                   belongs to the exchange of its request
    progress of an upstream     belongs to the exchange of the request with that token (mcpmux uses its id)
    anything else an upstream   belongs to the exchange that is being read for, or to the only one that the
      says                      leg has and that was not taken back, or to none
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
from mcpmux.protocol.raw_json import Raw
from mcpmux.protocol.shapes import Id
from mcpmux.runtime.tap import Direction, Leg
from mcpmux.traffic.observer import Passed, Pending, Seen
from mcpmux.traffic.record import MICROS, NOTHING, Error, Glance, Params, Result

PENDING_LIMIT: Final = 4096  # of one leg and direction; older ones are taken for never answered


_Asked: TypeAlias = dict[Id, Pending]
"""Requests that are not answered, the oldest first."""


def _asked(leg: Leg) -> tuple[_Asked, _Asked]:
    """Those that came in and those that went out, on a leg."""
    if leg.notes is None:
        leg.notes = ({}, {})
    asked: tuple[_Asked, _Asked] = leg.notes
    return asked


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

    def settle(self, passed: Iterable[Passed]) -> list[Seen]:
        """What messages are, in the order in which they passed, each member of a batch by itself."""
        seen: list[Seen] = []
        for each in passed:
            try:
                said = glance(each[_DATA])
            except BadMessage as bad:
                seen += self._closely(each, bad)
            else:  # half of all are answers
                seen.append(_answer(each, said) if said.method is UNSET else self._look(each, said))
        return seen

    def exchange_of(self, leg: Leg, request_id: Id) -> int:
        """The exchange of a client's request that is not answered yet; 0 when there is none."""
        pending = _asked(leg)[_IN].get(request_id)
        return pending[_EXCHANGE] if pending is not None else 0

    def forget(self, leg: Leg) -> None:
        """A leg is over."""
        leg.notes = None

    def _closely(self, passed: Passed, bad: BadMessage) -> list[Seen]:
        """What is no message: the members of a batch, which are looked into once, or nonsense."""
        leg, direction, data, at, status, exchange, _ = passed
        parts = _split(data)
        if parts is None:
            return [Seen(leg, direction, data, at, "invalid", exchange, id=bad.id, status=status)]
        members = []
        for part in parts:
            member: Passed = (leg, direction, part, at, status, exchange, False)
            try:
                members.append(self._look(member, glance(part)))
            except BadMessage as nonsense:
                members.append(
                    Seen(leg, direction, part, at, "invalid", exchange, id=nonsense.id, status=status)
                )
        return members

    def _look(self, passed: Passed, said: Glance) -> Seen:
        """What a message is."""
        if said.method is UNSET:
            return _answer(passed, said)
        if said.id is UNSET or said.id is None:
            return self._notification(passed, said.method, said.params or NOTHING)
        return self._request(passed, said.method, said.id, said.params or NOTHING)

    def _request(self, passed: Passed, method: str, request_id: Id, params: Params) -> Seen:
        """What it belongs to. From now on it is not answered."""
        leg, direction, data, at, status, exchange, has_begun = passed
        if direction == "in" and not has_begun:
            if leg.side == "client":
                exchange = self.begin()
            elif not exchange:
                exchange = _only_one(leg)
        pending = (leg.notes or _asked(leg))[direction == "out"]
        pending[request_id] = exchange, method, at, False
        if len(pending) > PENDING_LIMIT:
            del pending[next(iter(pending))]
        target = params.uri if type(params.uri) is str else params.target
        return Seen(
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

    def _notification(self, passed: Passed, method: str, params: Params) -> Seen:
        """What it belongs to."""
        leg, direction, data, at, status, exchange, _ = passed
        if method == m.CANCELLED:
            exchange = _cancelled(leg, direction, params.requestId) or exchange
        elif direction == "in" and leg.side == "upstream" and not exchange:
            exchange = _worked_for(leg, params) if method in _OF_EXCHANGES else 0
        return Seen(
            leg, direction, data, at, "notification", exchange, method, target=params.target, status=status
        )


def _answer(passed: Passed, said: Glance) -> Seen:
    """What it answers."""
    leg, direction, data, at, status, exchange, _ = passed
    method = ms = failed = request_id = None
    if said.id is not UNSET and said.id is not None:
        request_id = said.id
        pending = (leg.notes or _asked(leg))[direction == "in"].pop(request_id, None)
        if pending is not None:
            exchange, method, began, _ = pending
            ms = round((at - began) * MICROS) / 1000
    if said.error is not UNSET:
        code = said.error.code
        return Seen(
            leg, direction, data, at, "error", exchange, method, request_id, None, code, None, ms, status
        )
    if method == m.TOOLS_CALL and said.result is not UNSET and said.result.isError is True:
        failed = True
    return Seen(
        leg, direction, data, at, "result", exchange, method, request_id, None, None, failed, ms, status
    )


def _cancelled(leg: Leg, direction: Direction, request_id: Any) -> int:
    """A request is taken back: no answer is to be expected, but may come. Its exchange."""
    asked = _asked(leg)[direction == "out"]
    pending = asked.get(request_id) if _is_id(request_id) else None
    if pending is None:
        return 0
    exchange, method, began, _ = pending
    asked[request_id] = exchange, method, began, True
    return exchange


def _worked_for(leg: Leg, params: Params) -> int:
    token = params.progressToken
    if _is_id(token):
        pending = _asked(leg)[_OUT].get(token)
        return pending[_EXCHANGE] if pending is not None else 0
    return _only_one(leg)


def _only_one(leg: Leg) -> int:
    """The one exchange that an upstream works for; 0 when there are none or several."""
    asked = _asked(leg)[_OUT].values()
    exchanges = {exchange for exchange, _, _, was_taken_back in asked if not was_taken_back}
    exchanges.discard(0)  # what mcpmux asks for itself
    return exchanges.pop() if len(exchanges) == 1 else 0


def _split(batch: bytes) -> list[bytes] | None:
    """Its members; None when it is none, or they cannot be told apart."""
    try:
        return split_batch(batch) if is_batch(batch) else None
    except BadMessage:
        return None


_IN: Final = 0
_OUT: Final = 1
_DATA: Final = 2  # of Passed
_EXCHANGE: Final = 0  # of Pending
_OF_EXCHANGES: Final = frozenset({m.PROGRESS, m.LOG_MESSAGE})


def _is_id(value: Any) -> bool:
    return isinstance(value, (int, str)) and not isinstance(value, bool)


# What a message says it is and is about, without the rest of it. Pure.
#
# Promises: the same messages are good and bad as for `decode_message`. Most are read in one go; those that
# are not as they should be in some place are read again, member by member.

_decode: Final = msgspec.json.Decoder(Glance).decode
_params_decoder: Final = msgspec.json.Decoder(Params)
_result_decoder: Final = msgspec.json.Decoder(Result)
_NOT_DECODED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def glance(data: bytes) -> Glance:
    """What a message is. Raises BadMessage."""
    try:
        if not data.isascii():
            data.decode()
        found = _decode(data)
    except _NOT_DECODED:
        return _look_closely(data)
    if found.method is not UNSET:
        if found.id is not None:
            return found
    elif found.error is not UNSET or (
        found.result is not UNSET and found.id is not UNSET and found.id is not None
    ):
        return found
    return _look_closely(data)


def facts_in(message: bytes) -> tuple[str | None, Id | None, str | None]:
    """Method, id and target as a message by itself says them; None for what it does not say."""
    try:
        said = glance(message)
    except BadMessage as bad:
        return None, bad.id, None
    method = None if said.method is UNSET else said.method
    request_id = None if said.id is UNSET else said.id
    return method, request_id, said.params.target if method is not None and said.params is not None else None


def _look_closely(data: bytes) -> Glance:
    said = decode_message(data)
    if isinstance(said, Request):
        return Glance("2.0", said.id, said.method, _params_in(said.params))
    if isinstance(said, Notification):
        return Glance("2.0", UNSET, said.method, _params_in(said.params))
    if isinstance(said, ErrorReply):
        return Glance("2.0", said.id, error=Error(said.code))
    return Glance("2.0", said.id, result=_result_in(said))


def _params_in(params: Raw | None) -> Params:
    if params is None:
        return NOTHING
    try:
        return _params_decoder.decode(params)
    except _NOT_DECODED:
        return NOTHING


def _result_in(reply: Reply) -> Result:
    try:
        return _result_decoder.decode(reply.result)
    except _NOT_DECODED:
        return Result()
