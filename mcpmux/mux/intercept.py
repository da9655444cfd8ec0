"""Interceptors: which exchanges they are for, what they see, and what their verdicts may do. Pure.

The law

    An interceptor is for an exchange when everything fits that its table names, a name in every spelling (see
    `naming`).

An interceptor sees one message of an exchange in its 2026-07-28 shape and in the client's words, and gives a
verdict: `mcpmux/interceptors/README.md` has the members of both.

Laws: a change never touches what decides where a message goes or whose it is (FIXED); arguments suit the
schema that the client sees, structured content suits that of the tool; without a change all bytes stay. A
verdict that breaks this is no verdict (BadVerdict), and has no effect.

A task is judged by its tool: interceptors for `tools/call` see the results of `tasks/get` and `tasks/result`.
A subscription is a request `resources/subscribe` without an answer, for each URI in both eras.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from mcpmux.config.intercept import APPROVE, REQUEST, RESULT, Intercept, is_header
from mcpmux.config.views import KINDS
from mcpmux.errors import McpmuxError, RpcError
from mcpmux.mux.naming import AS_THEY_ARE, Naming, is_among
from mcpmux.mux.override import NotJudged, find_mistake
from mcpmux.mux.pattern import Target, TargetGlob, matches, parse_glob
from mcpmux.mux.policy import KINDS_OF_USE, NAMES_URIS
from mcpmux.mux.rewrite import NAMED_BY
from mcpmux.protocol import method as m
from mcpmux.protocol.call import META, Call
from mcpmux.protocol.envelope import data_of, decode_any, encode, error_body, raw, value_at
from mcpmux.protocol.input_requests import RELATED_TASK
from mcpmux.protocol.raw_json import Fields, Raw

ResultOrError: TypeAlias = Fields | RpcError

FIXED: Final = {
    REQUEST: frozenset({"name", "uri", "ref", "cursor", "task", "taskId", "requestState", META}),
    RESULT: frozenset({"resultType", "nextCursor", "task", "taskId", "requestState"}),
}
"""Members that a change must keep."""

_HOLDING: Final = {
    m.TOOLS_CALL: ("content", list),
    m.RESOURCES_READ: ("contents", list),
    m.PROMPTS_GET: ("messages", list),
    m.COMPLETE: ("completion", dict),
    **{method: (kind.items, list) for method, kind in m.PAGED.items()},
}
"""The member that a complete result must have, and its type."""

_MARKED: Final = {"content": "type", "contents": "uri", "messages": "role"}
"""The text that each item of a member must have."""

_CONTENT: Final = {
    "text": ("text", str),
    "image": ("data", str),
    "audio": ("data", str),
    "resource": ("resource", dict),
    "resource_link": ("uri", str),
}
"""The member that content of each type must have, and its type."""

_OWN_HEADERS: Final = frozenset(
    {"host", "authorization", "cookie", "connection", "keep-alive", "te", "trailer", "transfer-encoding"}
    | {"upgrade", "expect", "last-event-id", "traceparent", "tracestate", "baggage"}
)
_OWN_BEGIN: Final = ("mcp-", "proxy-", "content-", "accept")
"""Headers that mcpmux sets itself, or that belong to a connection."""

REASON_CHARACTERS: Final = 2000  # of a reason or question: it goes to people


class BadVerdict(McpmuxError):
    """A verdict makes no sense, or changes what must not change; the text says why."""


class Pass(NamedTuple):
    """The message goes on unchanged."""


class Refuse(NamedTuple):
    """The exchange ends with an error."""

    reason: str


class Change(NamedTuple):
    """One member is replaced as a whole; the others are None. `headers` may go with `params`."""

    params: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    headers: dict[str, Any] | None = None


class Ask(NamedTuple):
    """The client's user is asked for consent, by a form, or by visiting a URL."""

    message: str
    url: str | None = None


class Hold(NamedTuple):
    """A person at the admin page decides."""

    reason: str = ""


Verdict: TypeAlias = Pass | Refuse | Change | Ask | Hold
PASS: Final = Pass()


def read_verdict(value: object) -> Verdict:
    """Return the verdict that an interceptor has given in its JSON form. Raises BadVerdict."""
    if value is None:
        return PASS
    if not isinstance(value, dict):
        raise BadVerdict("its verdict is no object")
    members = {key: member for key, member in value.items() if key != "verdict"}
    match value.get("verdict"):
        case "pass" if not members:
            return PASS
        case "refuse" if members.keys() <= {"reason"}:
            return Refuse(_text(members, "reason") or "no reason given")
        case "hold" if members.keys() <= {"reason"}:
            return Hold(_text(members, "reason"))
        case "ask" if {"message"} <= members.keys() <= {"message", "url"}:
            return Ask(_text(members, "message"), _text(members, "url") or None)
        case "change" if members.keys() == {"params", "headers"} or (
            len(members) == 1 and members.keys() <= set(Change._fields)
        ):
            if all(isinstance(member, dict) for member in members.values()):
                return Change(**members)
    raise BadVerdict("its verdict has a form that is not known")


def _text(members: Mapping[str, Any], key: str) -> str:
    text = members.get(key, "")
    if not isinstance(text, str) or len(text) > REASON_CHARACTERS:
        raise BadVerdict(f"`{key}` of its verdict is no text of at most {REASON_CHARACTERS} characters")
    return text


class InterceptedMessage:
    """A message for interceptors. `own`: the upstream's name for what is used. `outcome`: of the request."""

    __slots__ = ("call", "hints", "method", "on", "outcome", "own", "params", "upstream")

    def __init__(
        self,
        on: str,
        call: Call,
        upstream: str | None,
        own: str | None,
        hints: Mapping[str, bool] | None,
        outcome: ResultOrError | None = None,
    ) -> None:
        self.on, self.call, self.upstream, self.own, self.hints = on, call, upstream, own, hints
        self.outcome = outcome
        self.method, self.params = call.method, call.params

    def as_json(self) -> dict[str, Any]:
        """Return it in plain values, made anew each time. Raises ValueError for what Python cannot hold."""
        principal, outcome = self.call.principal, self.outcome
        shown: dict[str, Any] = {
            "on": self.on,
            "method": self.method,
            "params": plain(self.params),
            "principal": principal.name or None,
            "view": principal.view_name or None,
            "upstream": self.upstream,
            "name": self.own,
            "annotations": None if self.hints is None else dict(self.hints),
        }
        if isinstance(outcome, RpcError):
            shown["error"] = error_body(outcome)
            if outcome.data is not None:
                shown["error"]["data"] = data_of(outcome)
        elif outcome is not None:
            shown["result"] = plain(outcome)
        return shown

    @property
    def digest(self) -> str:
        """The digest of what a change replaces: SHA-256 of its JSON."""
        outcome = self.outcome
        body = self.params if outcome is None else outcome
        return hashlib.sha256(encode(error_body(body) if isinstance(body, RpcError) else body)).hexdigest()

    @property
    def size(self) -> int:
        """The bytes of what a change replaces, about."""
        body = self.params if self.outcome is None else self.outcome
        if isinstance(body, RpcError):
            return len(encode(error_body(body)))
        return 2 + sum(len(key) + 4 + len(value) for key, value in body.items())


def plain(fields: Fields) -> dict[str, Any]:
    """Return the members of an object in plain values. Raises ValueError."""
    return {key: decode_any(value) for key, value in fields.items()}


# Selection


class InterceptorRule:
    """The exchanges that one interceptor is for."""

    def __init__(self, settings: Intercept, place: str, naming: Naming = AS_THEY_ARE) -> None:
        """`place`: its path in the configuration, the name of one without a name."""
        self.name = settings.name or place
        self.settings = settings
        self._naming = naming
        self._methods = tuple(map(parse_glob, settings.methods))
        self._upstreams = tuple(map(parse_glob, settings.upstreams))
        self._views = tuple(map(parse_glob, settings.views))
        self._principals = tuple(map(parse_glob, settings.principals))
        self._globs: dict[tuple[str, str], list[TargetGlob]] = {}  # by upstream and method
        self.is_broad = not (settings.principals or settings.views or settings.annotations or settings.names)
        """Whether it is for all calls of which `stages` has some."""

    def stages(self, method: str, upstream: str | None) -> Collection[str]:
        """Return when it steps into requests of a method to an upstream; None for several."""
        settings = self.settings
        if upstream is not None and not is_among(self._upstreams, upstream):
            return ()
        if settings.builtin == APPROVE and not settings.methods and method not in m.MAY_ASK_FOR_INPUT:
            return ()  # no client can be asked
        if (settings.names or settings.annotations) and used_by(method) not in KINDS_OF_USE:
            return ()
        if settings.annotations and used_by(method) != m.TOOLS_CALL:
            return ()
        if method == m.RESOURCES_SUBSCRIBE:  # it has no result
            return set(settings.stages) & {REQUEST} if is_among(self._methods, method) else ()
        if is_among(self._methods, method):
            # The request for a merged list is for all servers, so not for those of a few upstreams.
            is_whole = upstream is not None or not self._upstreams
            return settings.stages if is_whole else set(settings.stages) & {RESULT}
        # The result of a tool must not reach the client around an interceptor, as that of a task.
        return set(settings.stages) & {RESULT} if is_among(self._methods, used_by(method)) else ()

    def fits(self, call: Call, upstream: str | None, own: str | None, hints: Mapping[str, bool]) -> bool:
        """Return whether it is for a call of those of which `stages` has some. `own`: None for unknown."""
        principal, settings = call.principal, self.settings
        if self._principals and not (principal and is_among(self._principals, principal.name)):
            return False
        if self._views and not any(matches(glob, principal.view_name) for glob in self._views):
            return False
        if any(hints.get(hint) is not value for hint, value in settings.annotations.items()):
            return False
        if not settings.names or own is None or upstream is None:
            return True
        method = used_by(call.method)
        target = Target(own, is_uri=method in NAMES_URIS or (method == m.COMPLETE and ":" in own))
        place = upstream, method
        if place not in self._globs:
            # A name fits in every spelling: like a `deny`, an interceptor protects something.
            self._globs[place] = [
                glob
                for text in settings.names
                for kind in KINDS_OF_USE.get(method, KINDS)
                for glob in self._naming.possible(text, upstream, kind, self._upstreams)
            ]
        return any(target.may_be_in(glob) for glob in self._globs[place])


def used_by(method: str) -> str:
    """Return the method by which a task was made, for one about tasks; any other unchanged."""
    return m.TOOLS_CALL if method in m.ABOUT_ONE_TASK else method


# Changes

Schema: TypeAlias = Mapping[str, Any] | None


def change_call(call: Call, params: Mapping[str, Any], schema: Schema) -> Call:
    """Return the call with other parameters. `schema`: of a tool's arguments. Raises BadVerdict."""
    changed = _merged(call.params, params, FIXED[REQUEST])
    if call.method in (m.TOOLS_CALL, m.PROMPTS_GET):
        arguments = params.get("arguments", {})
        if not isinstance(arguments, dict):
            raise BadVerdict("its `arguments` are no object")
        if call.method == m.TOOLS_CALL and schema is not None:
            _suit(arguments, schema, "arguments")
        elif call.method == m.PROMPTS_GET and not all(isinstance(value, str) for value in arguments.values()):
            raise BadVerdict("its `arguments` of a prompt are not all text")
    return call.with_params(changed)


def read_headers(headers: Mapping[str, object], taken: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Return HTTP headers to add to a request that has others, `taken`. Raises BadVerdict."""
    read, names = [], set(map(str.lower, taken))
    for name, value in headers.items():
        own = name.lower()
        if own in names or own in _OWN_HEADERS or own.startswith(_OWN_BEGIN):
            raise BadVerdict(f"it sets the header {name[:100]}")
        if not (isinstance(value, str) and is_header(name, value)):
            raise BadVerdict(f"the header {name[:100]!r} of it is malformed")
        names.add(own)
        read.append((name, value))
    return tuple(read)


def change_outcome(message: InterceptedMessage, change: Change, schema: Schema) -> ResultOrError:
    """Return the answer that a change makes. `schema`: of a tool's structured content. Raises BadVerdict."""
    method = message.method
    if change.error is not None:
        outcome, error = message.outcome, change.error
        if not isinstance(outcome, RpcError):
            raise BadVerdict("it puts an error in the place of a result; refuse in place of that")
        if error.get("code") != outcome.code or not isinstance(error.get("message"), str):
            raise BadVerdict("its error has another `code`, or no `message`")
        # It fails here, as a fault of the interceptor, if JSON cannot hold it.
        raw(error.get("data"))
        return RpcError(outcome.code, error["message"], error.get("data"))
    assert change.result is not None
    old = message.outcome if isinstance(message.outcome, dict) else {"resultType": raw("complete")}
    result = change.result
    if "resultType" in old:  # a new result may leave it out
        result = {"resultType": decode_any(old["resultType"]), **result}
    changed = _merged(old, result, FIXED[RESULT])
    if value_at(result.get(META), (RELATED_TASK,)) != value_at(decoded(old.get(META)), (RELATED_TASK,)):
        raise BadVerdict("it changes the task in `_meta`")
    if result.get("resultType", "complete") != "complete":
        requests, former = result.get("inputRequests", {}), decoded(old.get("inputRequests"), dict)
        if not isinstance(requests, dict) or _methods_in(requests) != _methods_in(former):
            raise BadVerdict("it changes which questions are asked")
        return changed
    if method in _HOLDING and not {"task", "taskId"} & old.keys():
        _check_shape(method, result)
        if method in m.PAGED:
            items, named = m.PAGED[method].items, NAMED_BY[method]
            names = _names_in(decoded(old.get(items), list), named)
            if not names >= _names_in(result[items], named):
                raise BadVerdict(f"it adds or renames an item of `{items}`")
    is_whole = result.get("isError") is not True and "task" not in old
    if method == m.TOOLS_CALL and schema is not None and is_whole:
        _suit(result.get("structuredContent"), schema, "structuredContent")
    return changed


def _methods_in(requests: Mapping[str, object]) -> dict[str, object]:
    """Return the methods of questions, None for one that is malformed."""
    return {key: value.get("method") if isinstance(value, dict) else None for key, value in requests.items()}


def _names_in(items: Sequence[object], named: str) -> set[str | None]:
    """Return the names of the items of a list, None for one without a name."""
    names = (item.get(named) for item in items if isinstance(item, dict))
    return {name if isinstance(name, str) else None for name in names}


def _merged(before: Fields, after: Mapping[str, Any], fixed: Collection[str]) -> Fields:
    """Return the members of `after` encoded, those that are as before with the bytes that they had."""
    kept: Fields = {}
    try:
        for key in {**before, **after}:
            new = raw(after[key]) if key in after else None
            is_same = key in before and new is not None and encode(decode_any(before[key])) == bytes(new)
            if key in fixed and not is_same:
                raise BadVerdict(f"it changes `{key}`")
            # Without a change all bytes stay.
            if new is not None:
                kept[key] = before[key] if is_same else new
    except (TypeError, ValueError, RecursionError) as error:
        raise BadVerdict(f"it contains what JSON cannot hold: {type(error).__name__}") from None
    return kept


def decoded(value: Raw | None, kind: type | None = None) -> Any:
    """Return a decoded value, None or an empty one of a kind if there is none, or another."""
    plain_value = None if value is None else decode_any(value)
    return plain_value if kind is None or isinstance(plain_value, kind) else kind()


def _check_shape(method: str, result: Mapping[str, Any]) -> None:
    key, kind = _HOLDING[method]
    if not isinstance(result.get(key), kind):
        raise BadVerdict(f"its result has no `{key}`")
    mark = _MARKED.get(key)
    for item in result[key] if kind is list else ():
        if not isinstance(item, dict) or (mark is not None and not isinstance(item.get(mark), str)):
            raise BadVerdict(f"an item of its `{key}` has no `{mark or 'members'}`")
        needed = _CONTENT.get(item["type"]) if key == "content" else None
        if needed is not None and not isinstance(item.get(needed[0]), needed[1]):
            raise BadVerdict(f"content of type {item['type']} has no `{needed[0]}`")
    if method == m.TOOLS_CALL and not isinstance(result.get("isError", False), bool):
        raise BadVerdict("its `isError` is neither true nor false")
    if method == m.COMPLETE and not isinstance(result[key].get("values"), list):
        raise BadVerdict("its `completion` has no `values`")


def _suit(value: object, schema: Mapping[str, Any], member: str) -> None:
    try:
        mistake = find_mistake(value, schema)
    except NotJudged:  # the peer has to judge it, as it does without interceptors
        return
    if mistake is not None:
        raise BadVerdict(f"its `{member}` do not suit the tool's schema: {mistake}")
