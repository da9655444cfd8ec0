"""Answers as they are compared: `{"result": …}` or `{"error": …}`; of a listen its acknowledgement. Pure."""

from __future__ import annotations

from typing import Any

from mcpmux.errors import RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.envelope import ErrorReply, Reply, value_of
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.traffic.reading.turn import Turn


def captured(turn: Turn) -> dict[str, Any] | None:
    """The captured answer as it is compared; of a listen its acknowledgement."""
    if turn.method == m.LISTEN and not isinstance(turn.answer, ErrorReply):
        agreed = (said for said in turn.said if said.method == m.ACKNOWLEDGED)
        return next((acknowledged(said.params) for said in agreed), None)
    if isinstance(turn.answer, Reply):
        return {"result": value_of(turn.answer.result)}
    if isinstance(turn.answer, ErrorReply):
        return {"error": error_value(turn.answer.as_error())}
    return None


def acknowledged(params: Fields) -> dict[str, Any]:
    """What a server agrees to tell a listen."""
    return {"acknowledged": value_of(params.get("notifications"))}


def error_value(error: RpcError) -> dict[str, Any]:
    """An error as it is compared."""
    told: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        told["data"] = value_of(error.data) if isinstance(error.data, Raw) else error.data
    return told


def result_value(result: Fields) -> dict[str, Any]:
    """A result as it is compared."""
    return {key: value_of(value) for key, value in result.items()}
