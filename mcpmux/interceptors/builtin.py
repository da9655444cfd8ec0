"""Interceptors that need no code."""

from __future__ import annotations

from collections.abc import Callable

import trio

from mcpmux.config import Redaction
from mcpmux.errors import RpcError
from mcpmux.mux.intercept import PASS, Ask, Change, Hold, InterceptedMessage, Refuse, Verdict
from mcpmux.protocol.call import target_in
from mcpmux.protocol.envelope import decode_any, encode, error_body, raw
from mcpmux.traffic.redaction.redactor import RuleSet

SHOWN_CHARACTERS = 500  # of arguments in a question

Random = Callable[[], float]
"""Returns a number from 0 to 1."""


class Approve:
    """Has the client's user asked whether a request may go to the server."""

    waits = False

    def judge(self, message: InterceptedMessage) -> Verdict:
        """Return the question."""
        what = f"Allow {message.method}"
        if (target := target_in(message.params)) is not None:
            what = f"{what} {target}"
        if (arguments := message.params.get("arguments")) is not None:
            text = encode(decode_any(arguments)).decode()
            hidden = len(text) - SHOWN_CHARACTERS
            more = f"… ({hidden} more characters)" if hidden > 0 else ""
            what = f"{what} with {text[:SHOWN_CHARACTERS]}{more}"
        return Ask(f"{what}?")


class HoldBack:
    """Has a person asked at the admin page about the messages that `is_wanted` names."""

    waits = False

    def __init__(self, is_wanted: Callable[[InterceptedMessage], bool] = lambda _message: True) -> None:
        self._is_wanted = is_wanted

    def judge(self, message: InterceptedMessage) -> Verdict:
        """Return Hold or Pass."""
        return Hold() if self._is_wanted(message) else PASS


class Redact:
    """Replaces what the rules of captures find."""

    waits = False

    def __init__(self, rules: Redaction) -> None:
        self._rules = RuleSet(rules)

    def judge(self, message: InterceptedMessage) -> Verdict:
        """Return a change to the message without what is secret. Raises ValueError for malformed JSON."""
        outcome = message.outcome
        if outcome is None:
            member, body = "params", raw(message.params)
        elif isinstance(outcome, RpcError):
            member, body = "error", raw(error_body(outcome))
        else:
            member, body = "result", raw(outcome)
        # Around it stands what is around it in a message, as paths begin there.
        data, count = self._rules.redact(message.method, encode({member: body}))
        return Change(**decode_any(data)) if count else PASS


class LimitSize:
    """Refuses what is too large."""

    waits = False

    def __init__(self, most: int) -> None:
        self._most = most

    def judge(self, message: InterceptedMessage) -> Verdict:
        """Return Refuse or Pass."""
        what = "params" if message.outcome is None else "answer"
        is_large = message.size > self._most
        return Refuse(f"the {what} has more than {self._most} bytes") if is_large else PASS


class Delay:
    """Delays some exchanges, to test host apps."""

    waits = True

    def __init__(self, seconds: float, probability: float, random: Random) -> None:
        self._seconds, self._probability, self._random = seconds, probability, random

    async def judge(self, message: InterceptedMessage) -> Verdict:
        """Return Pass, perhaps after a pause."""
        if self._random() < self._probability:
            await trio.sleep(self._seconds)
        return PASS


class Fail:
    """Refuses some exchanges, to test host apps."""

    waits = False

    def __init__(self, probability: float, random: Random) -> None:
        self._probability, self._random = probability, random

    def judge(self, message: InterceptedMessage) -> Verdict:
        """Return Refuse or Pass."""
        return Refuse("it fails on purpose") if self._random() < self._probability else PASS
