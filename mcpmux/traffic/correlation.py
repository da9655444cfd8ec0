"""Which message belongs to which: requests and their answers, on each leg, and the exchange behind them.

State, for each leg and direction: the requests that are not answered yet, by id. Pure; the time is handed in.

    a client's request          begins an exchange
    what mcpmux sends           belongs to the exchange that it is sent for, as the caller says
    an answer                   belongs to the exchange of its request
    progress of an upstream     belongs to the exchange of the request with that token (mcpmux uses its id)
    anything else an upstream   belongs to the exchange that is being read for, or to the only one that the
      says                      leg has, or to none
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import (
    BadMessage,
    ErrorReply,
    Id,
    Notification,
    Reply,
    Request,
    decode_message,
    is_batch,
    split_batch,
)
from mcpmux.runtime.tap import Direction, Leg

PENDING_LIMIT = 4096  # of one leg and direction; older ones are taken for never answered


class Seen(msgspec.Struct, gc=False):
    """One message and what is known about it. `ms`: of an answer, since its request. See `record`."""

    leg: Leg
    direction: Direction
    data: bytes
    at: float
    kind: str
    exchange: int
    method: str | None = None
    id: Id | None = None
    target: str | None = None
    code: int | None = None
    failed: bool | None = None
    ms: float | None = None
    status: int | None = None


class _Pending(msgspec.Struct, frozen=True, gc=False):
    exchange: int
    method: str
    began: float


class _Params(msgspec.Struct, gc=False):
    """What a method is about."""

    name: Any = None
    uri: Any = None
    progressToken: Any = None  # noqa: N815 - the field's name
    requestId: Any = None  # noqa: N815 - the field's name
    ref: Any = None


class _Result(msgspec.Struct, gc=False):
    isError: bool | UnsetType = UNSET  # noqa: N815 - the field's name


_params_decoder = msgspec.json.Decoder(_Params)
_result_decoder = msgspec.json.Decoder(_Result)
_NOT_DECODED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Correlator:
    """Knows every leg. `forget` when one is over."""

    def __init__(self) -> None:
        self._pending: dict[tuple[Leg, str], OrderedDict[Id, _Pending]] = {}
        self._exchanges = 0

    def __repr__(self) -> str:
        return f"<Correlator {self._exchanges} exchanges, {len(self._pending)} legs with requests>"

    def take(self, leg: Leg, direction: Direction, data: bytes, exchange: int, now: float) -> list[Seen]:
        """What a message is, each member of a batch by itself. `exchange`: the one that is worked for."""
        try:
            parts = split_batch(data) if is_batch(data) else [data]
        except BadMessage:
            parts = [data]
        return [self._take_one(leg, direction, part, exchange, now) for part in parts]

    def exchange_of(self, leg: Leg, request_id: Id) -> int:
        """The exchange of a client's request that is not answered yet; 0 when there is none."""
        pending = self._asked(leg, "in").get(request_id)
        return pending.exchange if pending is not None else 0

    def _asked(self, leg: Leg, direction: str) -> OrderedDict[Id, _Pending]:
        """The requests of a leg and direction that are not answered."""
        return self._pending.setdefault((leg, direction), OrderedDict())

    def forget(self, leg: Leg) -> None:
        """A leg is over."""
        self._pending.pop((leg, "in"), None)
        self._pending.pop((leg, "out"), None)

    def _take_one(self, leg: Leg, direction: Direction, data: bytes, exchange: int, now: float) -> Seen:
        try:
            message = decode_message(data)
        except BadMessage as bad:
            return Seen(leg, direction, data, now, "invalid", exchange, id=bad.id)
        if isinstance(message, Request):
            return self._take_request(leg, direction, data, exchange, now, message)
        if isinstance(message, Notification):
            return self._take_notification(leg, direction, data, exchange, now, message)
        return self._take_answer(leg, direction, data, exchange, now, message)

    def _take_request(
        self, leg: Leg, direction: Direction, data: bytes, exchange: int, now: float, request: Request
    ) -> Seen:
        if leg.side == "client" and direction == "in":
            self._exchanges += 1
            exchange = self._exchanges
        elif direction == "in":
            exchange = exchange or self._only_one(leg)
        pending = self._asked(leg, direction)
        pending[request.id] = _Pending(exchange, request.method, now)
        if len(pending) > PENDING_LIMIT:
            pending.popitem(last=False)
        target = _target_of(_read(request.params))
        return Seen(leg, direction, data, now, "request", exchange, request.method, request.id, target)

    def _take_notification(
        self, leg: Leg, direction: Direction, data: bytes, exchange: int, now: float, said: Notification
    ) -> Seen:
        params = _read(said.params)
        if said.method == m.CANCELLED:
            exchange = self._cancel(leg, direction, params.requestId) or exchange
        elif direction == "in" and leg.side == "upstream" and not exchange:
            exchange = self._worked_for(leg, params) if said.method in _OF_EXCHANGES else 0
        return Seen(
            leg, direction, data, now, "notification", exchange, said.method, target=_target_of(params)
        )

    def _take_answer(
        self, leg: Leg, direction: Direction, data: bytes, exchange: int, now: float, said: Reply | ErrorReply
    ) -> Seen:
        asked = self._asked(leg, "in" if direction == "out" else "out")
        pending = asked.pop(said.id, None) if said.id is not None else None
        method = ms = None
        if pending is not None:
            exchange, method, ms = pending.exchange, pending.method, (now - pending.began) * 1000
        seen = Seen(leg, direction, data, now, "result", exchange, method, said.id, ms=ms)
        if isinstance(said, ErrorReply):
            seen.kind, seen.code = "error", said.code
        elif method == m.TOOLS_CALL:
            seen.failed = _says_failed(said.result)
        return seen

    def _cancel(self, leg: Leg, direction: Direction, request_id: Any) -> int:
        """A request is taken back: no answer is to be expected. Its exchange."""
        pending = self._asked(leg, direction).get(request_id) if _is_id(request_id) else None
        return pending.exchange if pending is not None else 0

    def _worked_for(self, leg: Leg, params: _Params) -> int:
        token = params.progressToken
        if _is_id(token):
            pending = self._asked(leg, "out").get(token)
            return pending.exchange if pending is not None else 0
        return self._only_one(leg)

    def _only_one(self, leg: Leg) -> int:
        """The exchange of the one request that an upstream works on; 0 when there are none or several."""
        exchanges = {pending.exchange for pending in self._asked(leg, "out").values()}
        return exchanges.pop() if len(exchanges) == 1 else 0


_OF_EXCHANGES = frozenset({m.PROGRESS, m.LOG_MESSAGE})


def facts_in(message: bytes) -> tuple[str | None, Id | None, str | None]:
    """Method, id and target as a message by itself says them; None for what it does not say."""
    try:
        said = decode_message(message)
    except BadMessage as bad:
        return None, bad.id, None
    if isinstance(said, Request):
        return said.method, said.id, _target_of(_read(said.params))
    if isinstance(said, Notification):
        return said.method, None, _target_of(_read(said.params))
    return None, said.id, None


def _read(params: Raw | None) -> _Params:
    if params is None:
        return _Params()
    try:
        return _params_decoder.decode(params)
    except _NOT_DECODED:
        return _Params()


def _target_of(params: _Params) -> str | None:
    """The name or URI that a message is about."""
    about = params.uri if params.uri is not None else params.name
    if about is None and isinstance(params.ref, dict):
        about = params.ref.get("uri", params.ref.get("name"))
    return about if isinstance(about, str) else None


def _says_failed(result: Raw) -> bool | None:
    try:
        said = _result_decoder.decode(result).isError
    except _NOT_DECODED:
        return None
    return True if said is True else None


def _is_id(value: Any) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)
