"""Which captured answer a new request gets. Pure.

1. The one to a request with the same method and parameters (whatever the order of their members; `_meta` is
   not compared).
2. The one to a request about the same: tool or prompt, resource, what is to be completed, task; never another
   page of a list or another round of questions.

Of several the one in the same revision, else of the same era. When it was asked several times, the answers
come in their order in the capture; after the last comes the last again, or the first (`cycle`).
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from mcpmux.errors import RpcError
from mcpmux.mux.subscriptions import Subscriptions
from mcpmux.protocol import method as m
from mcpmux.protocol.codes import INVALID_PARAMS, METHOD_NOT_FOUND
from mcpmux.protocol.envelope import ErrorReply, Reply, decode_fields, text_of, value_of
from mcpmux.protocol.input_requests import RESPONSES, STATE
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import is_modern
from mcpmux.protocol.tasks import TASK_ID
from mcpmux.traffic.reading.dialogue import METADATA, REDACTED, Dialogue, Said, Turn, fields_of

_ABOUT = ("name", "uri", "ref", TASK_ID, "cursor", STATE)
SHOWN = 120  # characters of a name or URI in an error

_encoder = msgspec.json.Encoder(order="sorted")


def canonical(value: Any) -> bytes:
    """JSON that is equal for equal values."""
    return _encoder.encode(value)


def members(fields: Fields) -> dict[str, Any]:
    """The Python values of raw members."""
    return {key: value_of(value) for key, value in fields.items()}


class Book:
    """Captured answers by what was asked. `unusable` counts requests whose answer is not known, by reason.

    `redacted`: how many of the answers have something redacted in them.
    """

    def __init__(self, dialogues: Sequence[Dialogue], *, cycle: bool = False) -> None:
        self.unusable: Counter[str] = Counter()
        self.size = 0
        self.redacted = 0
        self._cycle = cycle
        self._groups: dict[tuple[str, bytes], list[Turn]] = {}
        self._asked: Counter[tuple[object, ...]] = Counter()
        self._turns: dict[str, list[Turn]] = {}
        self._feeds: dict[str, list[list[Said]]] = {}
        for dialogue in dialogues:
            for turn in dialogue.turns():
                self._put(turn)
            self._put_feeds(dialogue)

    def __repr__(self) -> str:
        return f"<Book of {self.size} answers>"

    def _put(self, turn: Turn) -> None:
        reason = _problem_of(turn)
        if reason is not None:
            self.unusable[reason] += 1
            return
        self.size += 1
        self.redacted += turn.answer_problem == REDACTED
        self._turns.setdefault(turn.method, []).append(turn)
        if turn.problem is None:
            self._groups.setdefault((turn.method, canonical(members(turn.params))), []).append(turn)
        if turn.method != m.LISTEN:
            self._groups.setdefault((turn.method, _about(turn.params)), []).append(turn)

    def find(self, method: str, params: Fields, revision: str) -> Turn | None:
        """The captured request whose answer this one gets; None when there is none."""
        exact = self.find_exact(method, params, revision)
        key = (method, _about(params))
        if exact is not None or key not in self._groups:
            return exact
        return self._next(key, self._groups[key], revision)

    def find_exact(self, method: str, params: Fields, revision: str) -> Turn | None:
        """The same, but only by equal parameters."""
        key = (method, canonical(members(params)))
        return self._next(key, self._groups[key], revision) if key in self._groups else None

    def _next(self, key: tuple[object, ...], turns: list[Turn], revision: str) -> Turn:
        """The one whose turn it is."""
        same = [turn for turn in turns if turn.revision == revision]
        era = [turn for turn in turns if turn.modern is is_modern(revision)]
        pool = same or era or turns
        number = self._asked[*key, pool[0].place]
        self._asked[*key, pool[0].place] += 1
        return pool[number % len(pool) if self._cycle else min(number, len(pool) - 1)]

    def all_of(self, method: str) -> list[Turn]:
        """Every answered request of a method, in the order of the capture."""
        return self._turns.get(method, [])

    @property
    def methods(self) -> list[str]:
        """What was asked, in the order of the capture."""
        return list(self._turns)

    def unknown(self, method: str, params: Fields) -> RpcError:
        """What to say to a request that the capture knows no answer to: what comes nearest."""
        if method not in self._turns:
            near = _nearest(method, self.methods)
            hint = f"; the nearest is {near}" if near else ""
            return RpcError(METHOD_NOT_FOUND, f"Method not found: {method} is not in the capture{hint}")
        asked = _target_of(params)
        if asked is None or "cursor" in params or STATE in params:
            which = next((key for key in ("cursor", STATE) if key in params), "request like this")
            return RpcError(INVALID_PARAMS, f"Invalid params: no {which} of {method} is in the capture")
        near = _nearest(asked, {turn.target for turn in self._turns[method] if turn.target is not None})
        hint = f"; the nearest is {near}" if near else ""
        data = {"uri": asked} if "uri" in params else None
        return RpcError(
            INVALID_PARAMS, f"Invalid params: {method} {asked[:SHOWN]} is not in the capture{hint}", data
        )

    # Changes

    def _put_feeds(self, dialogue: Dialogue) -> None:
        for turn in dialogue.turns():
            if turn.method == m.RESOURCES_SUBSCRIBE and isinstance(turn.answer, Reply):
                uri = text_of(turn.params.get("uri")) or ""
                self._feeds.setdefault(uri, []).append(_updates_after(dialogue, turn, uri))
            elif turn.method == m.LISTEN:
                for uri in _uris_of(turn.params):
                    told = [said for said in turn.said if _is_update_of(said, uri)]
                    self._feeds.setdefault(uri, []).append(told)

    def updates(self, uri: str) -> list[Said]:
        """What was told of a resource while somebody was subscribed to it; `after`: since the subscription.

        For the second subscription that of the second one in the capture, and so on.
        """
        feeds = self._feeds.get(uri)
        if not feeds:
            return []
        number = self._asked["updates", uri]
        self._asked["updates", uri] += 1
        return feeds[number % len(feeds) if self._cycle else min(number, len(feeds) - 1)]


def _problem_of(turn: Turn) -> str | None:
    if turn.method == m.LISTEN:
        heard = turn.said or turn.answer is not None
        return None if heard else "a listen that was not acknowledged"
    if turn.answer is None:
        return f"an answer that is {turn.answer_problem}" if turn.answer_problem else "no answer"
    if turn.cancelled and isinstance(turn.answer, ErrorReply):
        return "an error because it was taken back"
    return f"a request that is {turn.problem}" if turn.problem == METADATA else None


def _about(params: Fields) -> bytes:
    """What two requests must have in common."""
    values: dict[str, Any] = {key: value_of(params[key]) for key in _ABOUT if key in params}
    values["argument"] = _argument_name(params)
    values["responses"] = RESPONSES in params
    return b"about " + canonical(values)


def _argument_name(params: Fields) -> str | None:
    """Of `completion/complete`."""
    return text_of(fields_of(params.get("argument")).get("name"))


def _target_of(params: Fields) -> str | None:
    about = value_of(params.get("uri", params.get("name", params.get("ref"))))
    if isinstance(about, dict):
        about = about.get("uri", about.get("name"))
    return about if isinstance(about, str) else None


def _nearest(wanted: str, known: Iterable[str]) -> str | None:
    found = difflib.get_close_matches(wanted[:SHOWN], [name[:SHOWN] for name in known], n=1, cutoff=0.0)
    return found[0] if found else None


def _uris_of(params: Fields) -> list[str]:
    wish = value_of(params.get("notifications"))
    uris = wish.get("resourceSubscriptions") if isinstance(wish, dict) else None
    return [uri for uri in uris if isinstance(uri, str)] if isinstance(uris, list) else []


def _is_update_of(said: Said, uri: str) -> bool:
    """Whether it tells a subscriber of `uri` something."""
    if said.method != m.RESOURCE_UPDATED:
        return False
    subscriptions: Subscriptions[str] = Subscriptions()
    subscriptions.add("one", "any", uri)
    return bool(subscriptions.audience("any", text_of(said.params.get("uri")) or ""))


def _updates_after(dialogue: Dialogue, subscribed: Turn, uri: str) -> list[Said]:
    """The updates of a legacy session from a subscription to its end."""
    began, end = subscribed.answered_moment or subscribed.moment, None
    for turn in dialogue.turns():
        ends = turn.place > subscribed.place and turn.method == m.RESOURCES_UNSUBSCRIBE
        if ends and text_of(turn.params.get("uri")) == uri:
            end = turn.answered_moment
            break
    found = []
    for turn in dialogue.turns():
        since = turn.answered_moment or turn.moment
        for said in turn.afterwards:
            moment = since + said.after
            if subscribed.moment <= moment and (end is None or moment <= end) and _is_update_of(said, uri):
                found.append(Said(max(0.0, moment - began), said.method, said.params))
    return found


def answer_of(turn: Turn) -> Fields:
    """A captured result. Raises RpcError: it was an error, or is no object."""
    if isinstance(turn.answer, ErrorReply):
        raise turn.answer.as_error()
    assert turn.answer is not None
    try:
        return decode_fields(turn.answer.result)
    except ValueError:
        raise RpcError(INVALID_PARAMS, "the captured result is no object") from None
