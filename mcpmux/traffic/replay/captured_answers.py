"""Which captured answer a new request gets. Pure.

The one to a request with the same method and parameters, in any order and without `_meta`; else to one about
the same tool, prompt, resource, completion or task, but never another page or another round of questions. Of
several the one in the same revision, else of the same era. When it was asked several times, the answers come
in their order in the capture; after the last comes the last again, or the first (`cycle`).
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from mcpmux.errors import RpcError
from mcpmux.mux.subscriptions import Subscriptions
from mcpmux.protocol import method as m
from mcpmux.protocol.codes import INVALID_PARAMS, METHOD_NOT_FOUND
from mcpmux.protocol.envelope import ErrorReply, Reply, members_of, text_of, value_of
from mcpmux.protocol.input_requests import RESPONSES, STATE
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import is_modern
from mcpmux.protocol.tasks import TASK_ID
from mcpmux.traffic.reading.dialogue import (
    METADATA,
    REDACTED,
    CapturedRequest,
    Dialogue,
    ServerMessage,
    values_of,
)
from mcpmux.traffic.record import listened_uris, target_in

T = TypeVar("T")

_ABOUT = ("name", "uri", "ref", TASK_ID, "cursor", STATE)
SHOWN = 120  # characters of a name or URI in an error

_encoder = msgspec.json.Encoder(order="sorted")


def canonical(value: Any) -> bytes:
    """JSON that is equal for equal values."""
    return _encoder.encode(value)


class CapturedAnswers:
    """Captured answers by what was asked. `unusable` counts requests whose answer is not known, by reason.

    `redacted`: how many of the answers have something redacted in them.
    """

    def __init__(self, dialogues: Sequence[Dialogue], *, cycle: bool = False) -> None:
        self.unusable: Counter[str] = Counter()
        self.size = 0
        self.redacted = 0
        self._cycle = cycle
        self._groups: dict[tuple[str, bytes], list[CapturedRequest]] = {}
        self._asked: Counter[tuple[object, ...]] = Counter()
        self.requests: dict[str, list[CapturedRequest]] = {}
        """Every answered request by its method, in the order of the capture."""
        self._feeds: dict[str, list[list[ServerMessage]]] = {}
        for dialogue in dialogues:
            for captured in dialogue.requests():
                self._put(captured)
            self._put_feeds(dialogue)

    def __repr__(self) -> str:
        return f"<CapturedAnswers of {self.size} answers>"

    def _put(self, captured: CapturedRequest) -> None:
        reason = _problem_of(captured)
        if reason is not None:
            self.unusable[reason] += 1
            return
        self.size += 1
        self.redacted += captured.answer_problem == REDACTED
        self.requests.setdefault(captured.method, []).append(captured)
        keys = [canonical(values_of(captured.params))] if captured.problem is None else []
        keys += [_about(captured.params)] if captured.method != m.LISTEN else []
        for key in keys:
            self._groups.setdefault((captured.method, key), []).append(captured)

    def find(self, method: str, params: Fields, revision: str) -> CapturedRequest | None:
        """The captured request whose answer this one gets; None when there is none."""
        return self.find_exact(method, params, revision) or self._next((method, _about(params)), revision)

    def find_exact(self, method: str, params: Fields, revision: str) -> CapturedRequest | None:
        """The same, but only by equal parameters."""
        return self._next((method, canonical(values_of(params))), revision)

    def _next(self, key: tuple[str, bytes], revision: str) -> CapturedRequest | None:
        """The next of those that fit the revision best."""
        requests = self._groups.get(key)
        if requests is None:
            return None
        same = [captured for captured in requests if captured.revision == revision]
        era = [captured for captured in requests if captured.modern is is_modern(revision)]
        pool = same or era or requests
        return self._turn((*key, pool[0].position), pool)

    def _turn(self, key: tuple[object, ...], pool: Sequence[T]) -> T:
        number = self._asked[key]
        self._asked[key] += 1
        return pool[number % len(pool) if self._cycle else min(number, len(pool) - 1)]

    def unknown(self, method: str, params: Fields) -> RpcError:
        """The error for a request without a captured answer; it names the nearest one."""
        if method not in self.requests:
            near = _hint(method, self.requests)
            return RpcError(METHOD_NOT_FOUND, f"Method not found: {method} is not in the capture{near}")
        asked = target_in(params)
        if asked is None or "cursor" in params or STATE in params:
            which = next((key for key in ("cursor", STATE) if key in params), "request like this")
            return RpcError(INVALID_PARAMS, f"Invalid params: no {which} of {method} is in the capture")
        near = _hint(asked, {each.target for each in self.requests[method] if each.target is not None})
        problem = f"Invalid params: {method} {asked[:SHOWN]} is not in the capture{near}"
        return RpcError(INVALID_PARAMS, problem, {"uri": asked} if "uri" in params else None)

    def _put_feeds(self, dialogue: Dialogue) -> None:
        told = [
            ((captured.answered_at or captured.at) + sent.after, sent)
            for captured in dialogue.requests()
            for sent in captured.after_answer
        ]
        for captured in dialogue.requests():
            if captured.method == m.RESOURCES_SUBSCRIBE and isinstance(captured.answer, Reply):
                uri = text_of(captured.params.get("uri")) or ""
                began = captured.answered_at or captured.at
                ends = (
                    each.answered_at
                    for each in dialogue.requests()
                    if each.method == m.RESOURCES_UNSUBSCRIBE and each.position > captured.position
                    if each.answered_at is not None and text_of(each.params.get("uri")) == uri
                )
                end = next(ends, math.inf)
                updates = [
                    ServerMessage(max(0.0, at - began), sent.method, sent.params)
                    for at, sent in told
                    if captured.at <= at <= end and _is_update_of(sent, uri)
                ]
                self._feeds.setdefault(uri, []).append(updates)
            elif captured.method == m.LISTEN:
                for uri in listened_uris(captured.params):
                    updates = [sent for sent in captured.before_answer if _is_update_of(sent, uri)]
                    self._feeds.setdefault(uri, []).append(updates)

    def updates(self, uri: str) -> list[ServerMessage]:
        """Updates of a resource while a client was subscribed to it; `after`: since the subscription.

        For the second subscription that of the second one in the capture, and so on.
        """
        feeds = self._feeds.get(uri)
        return self._turn(("updates", uri), feeds) if feeds else []


def _problem_of(captured: CapturedRequest) -> str | None:
    if captured.method == m.LISTEN:
        was_acknowledged = captured.before_answer or captured.answer is not None
        return None if was_acknowledged else "a listen that was not acknowledged"
    if captured.answer is None:
        return f"an answer that is {captured.answer_problem}" if captured.answer_problem else "no answer"
    if captured.cancelled and isinstance(captured.answer, ErrorReply):
        return "an error because it was taken back"
    return f"a request that is {captured.problem}" if captured.problem == METADATA else None


def _about(params: Fields) -> bytes:
    """What two requests must have in common."""
    values: dict[str, Any] = {key: value_of(params[key]) for key in _ABOUT if key in params}
    values["argument"] = text_of(members_of(params.get("argument")).get("name"))  # of `completion/complete`
    values["responses"] = RESPONSES in params
    return b"about " + canonical(values)


def _hint(wanted: str, known: Iterable[str]) -> str:
    """The nearest of the known names, for the end of a sentence."""
    found = difflib.get_close_matches(wanted[:SHOWN], [name[:SHOWN] for name in known], n=1, cutoff=0.0)
    return f"; the nearest is {found[0]}" if found else ""


def _is_update_of(sent: ServerMessage, uri: str) -> bool:
    """Whether it is an update for a subscriber of `uri`."""
    if sent.method != m.RESOURCE_UPDATED:
        return False
    subscriptions: Subscriptions[str] = Subscriptions()
    subscriptions.add("one", "any", uri)
    return bool(subscriptions.audience("any", text_of(sent.params.get("uri")) or ""))
