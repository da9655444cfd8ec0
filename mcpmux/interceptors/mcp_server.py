"""Interceptors that an MCP server hosts, by the draft of the Interceptors working group. Experimental.

The server lists its interceptors (`interceptors/list`), and each is asked about the events that it names
(`interceptor/invoke`). Towards the server of an exchange those that change a message come first, by priority,
then those that validate it, side by side; on the way back it is the other way around.

| draft | verdict |
| --- | --- |
| `valid: false` with severity `error` or none | Refuse |
| `modified: true` | Change, with all changes so far |
| an error, `failOpen` is not true | a failure |
| anything with `mode: "audit"` | none |

Source: SEP-2624 of Model Context Protocol, a draft: `docs/sep.md` of its working group, September 2026.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import trio

from mcpmux.channels.channel import ignore_event
from mcpmux.config.intercept import REQUEST
from mcpmux.errors import RpcError
from mcpmux.mux.intercept import (
    PASS,
    REASON_CHARACTERS,
    BadVerdict,
    Change,
    InterceptedMessage,
    Refuse,
    Verdict,
    plain,
)
from mcpmux.mux.pattern import matches, parse_glob
from mcpmux.protocol.call import PROGRESS_TOKEN, Call
from mcpmux.protocol.envelope import raw
from mcpmux.protocol.raw_json import Fields
from mcpmux.traffic.record import cut
from mcpmux.upstreams.upstream import Upstream

LIST_INTERCEPTORS: Final = "interceptors/list"
INVOKE_INTERCEPTOR: Final = "interceptor/invoke"
LISTED_SECONDS: Final = 60.0  # until the list is asked for again: nothing announces a change of it
MOST_LISTED: Final = 50  # interceptors of one server; a message would wait for all of them
SEVERITIES: Final = ("error", "warn", "info")

Json = dict[str, Any]
Invoke = Callable[[Json, Json], Awaitable[Json]]
"""Invokes a listed interceptor with a payload; returns its result."""


class McpServer:
    """The interceptors of one upstream. `find` returns its session for a call, and raises RpcError."""

    def __init__(self, find: Callable[[Call], Upstream], wall: Callable[[], float]) -> None:
        self._find, self._wall = find, wall
        self._listed: list[Json] = []
        self._until = -math.inf

    async def judge(self, message: InterceptedMessage) -> Verdict:
        """Return what all interceptors of the server decide together. Raises BadVerdict and RpcError."""
        upstream = self._find(message.call)
        if trio.current_time() >= self._until:
            listed = plain(await self._ask(upstream, message, LIST_INTERCEPTORS, {})).get("interceptors")
            if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
                raise BadVerdict(f"{upstream.name} lists no interceptors")
            if len(listed) > MOST_LISTED:
                raise BadVerdict(f"{upstream.name} lists more than {MOST_LISTED} interceptors")
            self._listed, self._until = listed, trio.current_time() + LISTED_SECONDS
        phase = "request" if message.on == REQUEST else "response"
        entries = [entry for entry in self._listed if is_for(entry, message.method, phase)]
        mutators = sorted(
            (entry for entry in entries if entry.get("type") == "mutation"),
            key=lambda entry: (priority_of(entry, phase), str(entry.get("name"))),
        )
        validators = [entry for entry in entries if entry.get("type") == "validation"]
        invoke = partial(self._invoke, upstream, message, phase)
        seen = message.as_json()
        payload: Json
        if phase == "request":
            payload = {"method": seen["method"], "params": seen["params"]}
        else:
            payload = seen.get("result") or {"error": seen.get("error")}
        try:
            if phase == "response":
                await _validate(validators, payload, invoke)
            changed = payload
            for mutator in mutators:
                answer = await invoke(mutator, changed)
                if answer.get("modified") is True and mutator.get("mode") != "audit":
                    changed = answer["payload"]
            if phase == "request":
                await _validate(validators, changed, invoke)
        except _Invalid as refusal:
            return Refuse(str(refusal))
        return PASS if changed is payload else _change_to(message, changed)

    async def _invoke(
        self, upstream: Upstream, message: InterceptedMessage, phase: str, entry: Json, payload: Json
    ) -> Json:
        """Return an interceptor's answer, {} if it failed and may. Raises RpcError and ValueError."""
        principal = message.call.principal.name
        who = {"type": "user", "id": principal} if principal else {"type": "anonymous"}
        now = datetime.fromtimestamp(self._wall(), UTC).isoformat()
        about = {"name": entry.get("name"), "event": message.method, "phase": phase, "payload": payload}
        context = {"principal": who, "timestamp": now}
        try:
            answer = plain(
                await self._ask(upstream, message, INVOKE_INTERCEPTOR, {**about, "context": context})
            )
            if not is_sound(entry, answer):
                raise ValueError(f"{entry.get('name')} gives no result of its type")
            return answer
        except (RpcError, ValueError):
            if entry.get("failOpen") is True or entry.get("mode") == "audit":
                return {}
            raise

    async def _ask(
        self, upstream: Upstream, message: InterceptedMessage, method: str, params: Json
    ) -> Fields:
        call = message.call.on_behalf(method, {key: raw(value) for key, value in params.items()})
        meta = {key: value for key, value in call.meta.items() if key != PROGRESS_TOKEN}
        return await upstream.exchange(call.with_meta(meta), ignore_event)


class _Invalid(Exception):
    """A validator does not accept a message; the text says why."""


async def _validate(validators: Sequence[Json], payload: Json, invoke: Invoke) -> None:
    """Have all validators judge a payload, side by side. Raises _Invalid, and the first failure."""
    answers: list[Json | Exception] = []

    async def ask(validator: Json) -> None:
        try:
            answers.append({} if validator.get("mode") == "audit" else await invoke(validator, payload))
        except (RpcError, ValueError) as failure:
            answers.append(failure)

    async with trio.open_nursery() as nursery:
        for validator in validators:
            nursery.start_soon(ask, validator)
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
        if answer.get("valid") is False and answer.get("severity", "error") == "error":
            messages = answer.get("messages")
            texts = [entry.get("message") for entry in messages] if isinstance(messages, list) else []
            words = "; ".join(text for text in texts if isinstance(text, str) and text)
            raise _Invalid(cut(words or "not valid", REASON_CHARACTERS))


def is_for(entry: Json, method: str, phase: str) -> bool:
    """Return whether a listed interceptor is for an event in a phase."""
    hook = entry.get("hook")
    hook = hook if isinstance(hook, dict) else {}
    events = hook.get("events")
    if hook.get("phase", "both") not in (phase, "both") or not isinstance(events, list):
        return False
    globs = [parse_glob(event) for event in events if isinstance(event, str)]
    return any(matches(glob, method) for glob in globs) or f"*/{phase}" in events


def is_sound(entry: Json, answer: Json) -> bool:
    """Return whether an answer has the members that an interceptor of that type must give."""
    if entry.get("type") == "mutation":
        is_changed = answer.get("modified")
        return is_changed is False or (is_changed is True and isinstance(answer.get("payload"), dict))
    return answer.get("valid") in (True, False) and answer.get("severity", "error") in SEVERITIES


def priority_of(entry: Json, phase: str) -> float:
    """Return the priority of a listed interceptor in a phase: the lowest comes first."""
    hint = entry.get("priorityHint", 0)
    hint = hint.get(phase, 0) if isinstance(hint, dict) else hint
    return hint if isinstance(hint, int | float) else 0


def _change_to(message: InterceptedMessage, payload: Json) -> Change:
    member = (
        "params" if message.on == REQUEST else "error" if isinstance(message.outcome, RpcError) else "result"
    )
    changed = payload if member == "result" else payload.get(member)
    if not isinstance(changed, dict):
        raise BadVerdict(f"its `payload` has no `{member}`")
    return Change(**{member: changed})
