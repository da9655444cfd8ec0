"""Interceptors that need no code: functions that return the verdict on a message."""

from __future__ import annotations

from collections.abc import Callable

import trio

from mcpmux.errors import RpcError
from mcpmux.mux.intercept import PASS, Ask, Change, Hold, InterceptedMessage, Refuse, Verdict
from mcpmux.protocol.call import target_in
from mcpmux.protocol.envelope import decode_any, encode, error_body, raw
from mcpmux.traffic.redaction.redactor import RuleSet

SHOWN_CHARACTERS = 500  # of arguments in a question

Random = Callable[[], float]
"""Returns a number from 0 to 1."""


def approve(message: InterceptedMessage) -> Verdict:
    """Have the client's user asked whether a request may go to the server."""
    what = f"Allow {message.method}"
    if (target := target_in(message.params)) is not None:
        what = f"{what} {target}"
    if (arguments := message.params.get("arguments")) is not None:
        text = encode(decode_any(arguments)).decode()
        hidden = len(text) - SHOWN_CHARACTERS
        more = f"… ({hidden} more characters)" if hidden > 0 else ""
        what = f"{what} with {text[:SHOWN_CHARACTERS]}{more}"
    return Ask(f"{what}?")


def hold(_message: InterceptedMessage) -> Verdict:
    """Have a person asked at the admin page."""
    return Hold()


def redact(rules: RuleSet, message: InterceptedMessage) -> Verdict:
    """Replace what the rules of captures find. Raises ValueError for malformed JSON."""
    outcome = message.outcome
    if outcome is None:
        member, body = "params", raw(message.params)
    elif isinstance(outcome, RpcError):
        member, body = "error", raw(error_body(outcome))
    else:
        member, body = "result", raw(outcome)
    # Around it stands what is around it in a message, as paths begin there.
    data, count = rules.redact(message.method, encode({member: body}))
    return Change(**decode_any(data)) if count else PASS


def limit_size(most: int, message: InterceptedMessage) -> Verdict:
    """Refuse a message of more than `most` bytes."""
    what = "params" if message.outcome is None else "answer"
    return Refuse(f"the {what} has more than {most} bytes") if message.size > most else PASS


async def delay(seconds: float, probability: float, random: Random, _message: InterceptedMessage) -> Verdict:
    """Delay some exchanges, to test host apps."""
    if random() < probability:
        await trio.sleep(seconds)
    return PASS


def fail(probability: float, random: Random, _message: InterceptedMessage) -> Verdict:
    """Refuse some exchanges, to test host apps."""
    return Refuse("it fails on purpose") if random() < probability else PASS
