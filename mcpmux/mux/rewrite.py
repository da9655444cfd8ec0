"""Rewrite names, URIs and ids on the way through. This is the one table of all that changes.

Outward (`expose_*`): from the upstream's words to the client's. Inward (`resolve_*`): from the client's words
to the upstream's. Both work on shallowly decoded members, so everything outside the table keeps its
bytes. A transparent upstream's messages never come here.

The Shapes below are the table, for items of lists, results, notifications, questions and tasks. Besides:

| place | change |
| --- | --- |
| `uri`, `ref.uri` (a template, too), `name` and `taskId` of requests | back to the upstream's own |
| arguments of a tool or prompt that are wholly an exposed URI of its upstream | back to its own URI |
| related task in `_meta` of answers | back to the upstream's own task id |
| `logger` of log messages | `upstream` or `upstream/logger` |
| `data.uri` of errors | URI |
| `data` of errors of another mcpmux | its upstreams as `upstream/name`; names and URIs that it suggests |
| `_meta` of results | names mcpmux as the server, see `Signature` |

Source: `basic/utilities/tasks`, 2025-11-25, and the Tasks extension (SEP-2663) for task ids; "_meta" in the
Base Protocol overview, 2026-07-28, for the signature.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any, Final

from mcpmux.errors import McpmuxError, RpcError
from mcpmux.mux.report import LEFT_OUT, expose_upstream, left_out_in
from mcpmux.protocol import method as m
from mcpmux.protocol.call import META, SERVER_INFO
from mcpmux.protocol.codes import OWN
from mcpmux.protocol.envelope import (
    LARGE_BYTES,
    UNREADABLE,
    decode_fields,
    decode_items,
    decode_list,
    encode,
    first_byte,
    is_large,
    list_decoder,
    members_of,
    raw,
    read_objects,
    text_of,
    value_of,
)
from mcpmux.protocol.input_requests import RELATED_TASK, RESPONSES
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.tasks import TASK, TASK_ID, made_task

# Prefixes of texts, which show their owner: the prefix of an upstream, the mark of a worker.
#
# Upstreams
#   * URI and URI template: `prefix+` in front of the whole text; resolving cuts at the first `+`.
#     `ui://x` becomes `ui://prefix/x`, so that hosts still see the `ui:` scheme.
#   * Task id: like a URI, in any form.
#   * Tool and prompt name: `prefix__name`; longer than the limit of names (N) it becomes
#     `prefix__` + head + `_` + 8 hex digits of the SHA-256 of the name, exactly N characters. A name that
#     only looks like that is shortened as well, so the look alone tells that a table must be asked.
#   * Prefixes match `[a-z][a-z0-9.-]*`: they contain neither `+` nor `_` nor `/`.
#   * At most one upstream is unprefixed. Alone it is transparent: no name changes. Beside others, a text
#     that would read as having another's prefix gets the upstream's own name as a prefix.
#
# Several processes: a thing in the memory of one (a session, a parked call, a task) is given out with the
# id of that process in front: `2.rest` by worker 2, `k3x9q2.rest` by a replica. A request that names a thing
# of another process is handed over to it before anything else in it is read.
#
# Laws: `resolve(expose(x)) == x` for every text x and every upstream; `expose` never maps two things to one;
# `owner_of(mark + text)` is the mark's id; `own_part(mark + text) == text`.
#
# Source: RFC 3986 section 3.1 (`+` is legal in a scheme), RFC 6570 (expressions stay intact).

TextChange = Callable[[str], str]

Changes = Mapping[str, TextChange]
"""The changes for texts of each kind: URI, NAME and TASK."""

URI: Final = "uri"
NAME: Final = "name"

NAME_LIMIT: Final = 51
"""Characters of a name, unless `merging.name_limit` says otherwise: 64 of model APIs less `mcp__mcpmux__`."""

WORKERS_LIMIT: Final = 256  # more processes than any machine has use for

_HASH_DIGITS: Final = 8
_SHORTENED: Final = re.compile(r"_[0-9a-f]{8}\Z")
UI: Final = "ui://"
JOINT: Final = "__"
IDS_KEPT: Final = 16  # of one process; marks with an older id are refused as foreign
_MARK: Final = re.compile(r"([a-z0-9]{1,16})\.")


class Space:
    """The texts of one upstream, as they look from outside. Stateless."""

    def __init__(
        self, upstream: str, prefix: str, reserved: frozenset[str], name_limit: int = NAME_LIMIT
    ) -> None:
        """`reserved`: every text that clients read as a prefix; empty for a transparent upstream.

        `transparent`, an attribute: whether all names of this upstream stay.
        """
        self.upstream = upstream
        self.prefix = prefix
        self._name_limit = name_limit
        self._reserved = reserved
        self.transparent = not reserved
        self.changes: Changes = {URI: self.expose_uri, NAME: self.expose_name, TASK: self.expose_task}

    def expose_uri(self, uri: str) -> str:
        """Return the URI (or URI template) that clients see for the upstream's `uri`."""
        if uri.startswith(UI):
            rest = uri[len(UI) :]
            prefix = self.prefix or (self.upstream if rest.partition("/")[0] in self._reserved else "")
            return f"{UI}{prefix}/{rest}" if prefix else uri
        return f"{self.prefix}+{uri}" if self.prefix else self.expose_task(uri)

    def expose_task(self, task_id: str) -> str:
        """Return the task id that clients see for the upstream's `task_id`."""
        head, plus, _ = task_id.partition("+")
        prefix = self.prefix or (self.upstream if plus and head in self._reserved else "")
        return f"{prefix}+{task_id}" if prefix else task_id

    def expose_name(self, name: str) -> str:
        """Return the tool or prompt name that clients see for the upstream's `name`."""
        head, joint, _ = name.partition(JOINT)
        prefix = self.prefix or (self.upstream if joint and head in self._reserved else "")
        if not prefix:
            return name
        exposed, limit = f"{prefix}{JOINT}{name}", self._name_limit
        # A full name that looks shortened is shortened, too, so that the two cannot be confused.
        if len(exposed) < limit or (len(exposed) == limit and not _SHORTENED.search(exposed)):
            return exposed
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
        return f"{exposed[: limit - _HASH_DIGITS - 1]}_{digest}"


class Namespace:
    """All upstreams' spaces, and the way back from an exposed text. Stateless once built.

    `transparent`: the only, unprefixed upstream; None when there are several or it has a prefix.
    """

    def __init__(self, prefixes: Mapping[str, str], name_limit: int = NAME_LIMIT) -> None:
        """`prefixes`: upstream name → prefix in configuration order; at most one prefix is ""."""
        self.name_limit = name_limit
        taken = [prefix for prefix in prefixes.values() if prefix]
        bare = [name for name, prefix in prefixes.items() if not prefix]
        if len(bare) > 1 or len(set(taken)) != len(taken) or set(bare) & set(taken):
            raise ValueError("prefixes must differ and at most one upstream can go without")
        reserved = frozenset(taken + bare) if taken else frozenset()
        self._owners = {prefix or name: name for name, prefix in prefixes.items()} if taken else {}
        self._bare = bare[0] if bare else None
        self.spaces = {name: Space(name, prefix, reserved, name_limit) for name, prefix in prefixes.items()}
        self.transparent = self._bare if not self._owners else None
        self.marks = {name: mark for mark, name in self._owners.items()}
        """What stands before the texts of each upstream; empty for a transparent one."""

    def resolve_uri(self, uri: str) -> tuple[str, str] | None:
        """Return (upstream, its own URI) of an exposed URI; None for a raw URI, of any upstream."""
        if uri.startswith(UI):
            head, joint, rest = uri[len(UI) :].partition("/")
            own = UI + rest
        else:
            head, joint, own = uri.partition("+")
        owner = self._owners.get(head) if joint else None
        if owner is not None:
            return owner, own
        return (self._bare, uri) if self._bare is not None else None

    def resolve_task(self, task_id: str) -> tuple[str, str] | None:
        """Return (upstream, its own task id) of an exposed task id; None for one that no upstream made."""
        return self.resolve_name(task_id, "+")

    def resolve_name(self, name: str, joint: str = JOINT) -> tuple[str, str] | None:
        """Return (upstream, its own name) of an exposed name; None for a foreign one.

        When `is_shortened(name)` the second part is only a head: look the name up with `match_name`.
        """
        head, joint_there, own = name.partition(joint)
        owner = self._owners.get(head) if joint_there else None
        if owner is not None:
            return owner, own
        return (self._bare, name) if self._bare is not None else None

    def is_shortened(self, name: str) -> bool:
        """Return whether an exposed name is one that `expose_name` had to shorten."""
        head = name.partition(JOINT)[0]
        return len(name) == self.name_limit and head in self._owners and _SHORTENED.search(name) is not None

    def match_name(self, name: str, upstream: str, candidates: Iterable[str]) -> str | None:
        """Return the upstream's own name among `candidates` that is exposed as `name`, or None."""
        space = self.spaces[upstream]
        # The head alone rules nearly all out, so that few names have to be hashed.
        head = name[: -_HASH_DIGITS - 1].partition(JOINT)[2] if self.is_shortened(name) else ""
        likely = (own for own in candidates if own.startswith(head))
        return next((own for own in likely if space.expose_name(own) == name), None)


class ForeignMark(McpmuxError):
    """The text was not given out by this process."""


class Marks:
    """The mark in front of texts that this process gives out.

    `current`: its id, with a dot; "" when it is alone. `own`: its latest ids.
    """

    def __init__(self, process: str = "") -> None:
        self.current = ""
        self.own: dict[str, None] = {}
        if process:
            self.become(process)

    def become(self, process: str) -> None:
        """Use another id from now on. Marks with the last IDS_KEPT ids remain valid."""
        self.current = f"{process}."
        self.own[process] = None
        if len(self.own) > IDS_KEPT:
            del self.own[next(iter(self.own))]

    def own_part(self, text: str) -> str:
        """Return what stands behind a mark of this process. Raises ForeignMark."""
        owner, _, rest = text.partition(".")
        if owner not in self.own:
            raise ForeignMark("it was given out by another process, or by none")
        return rest


def owner_of(text: object) -> str | None:
    """Return the id of the process that gave out a text; None for a text without a mark."""
    match = _MARK.match(text) if isinstance(text, str) else None
    return match[1] if match is not None else None


# The changes on the way through, by the table above.

SIGNED: Final = 256  # values of `_meta` whose signed form is kept: servers repeat them
SIGNED_BYTES: Final = 1024  # of a value that is kept; a longer one is signed anew each time

Shape = dict[str, Any]
"""The changes in an object: texts of a kind, values by a function, or members of inner objects by a Shape."""

EACH: Final = "*"
"""In place of a name in a Shape: every member."""

SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")  # RFC 3986 section 3.1: the start of every URI

_PLAIN_BLOCKS: Final = frozenset({b'"text"', b'"image"', b'"audio"'})
"""Types of content blocks, in their usual spelling, in which nothing is exposed."""

_SUGGESTED: Final = re.compile(r"(; did you mean `)([^`]+)`\?\Z")  # see `config.report.suggestion`
MESSAGE_LIMIT: Final = 10_000  # characters of an upstream's error in which a name is looked for
# Nesting that is followed; what is deeper stays unchanged. Each level reads all that is in it once more.
BLOCK_DEPTH: Final = 8  # of content blocks; in the specification a tool result has no other one in it
DEPTH_LIMIT: Final = 64  # of arguments
DEPTH_ALWAYS: Final = 4  # of very large arguments
READ_BYTES: Final = 16 * 2**20  # of arguments, for all levels together: they take some 0.1 s


# The changes are made in place. A value of another type than expected stays unchanged.


def _changed_text(value: Raw, change: TextChange) -> Raw:
    """Return the changed string; the very same value when it is no string or stays unchanged."""
    text = text_of(value)
    if text is None:
        return value
    changed = change(text)
    return raw(changed) if changed != text else value


def _changed(value: Raw, change: Callable[[Fields], object]) -> Raw:
    """Return `value`, an object or an array of objects, with `change` applied to each object."""
    try:
        if first_byte(value) == b"[":
            members = read_objects(value) if is_large(value) else decode_list(value)
        else:
            members = [decode_fields(value)]
    except ValueError:
        # Items that are no objects stay unchanged among the others.
        try:
            items = decode_items(value) if first_byte(value) == b"[" else []
        except ValueError:
            return value
        changed = [_changed(item, change) if first_byte(item) == b"{" else item for item in items]
        return raw(changed) if changed else value
    for member in members:
        change(member)
    return raw(members if first_byte(value) == b"[" else members[0])


def _rewrite(fields: Fields, shape: Shape, changes: Changes) -> Fields:
    for key, change in shape.items():
        for name in list(fields) if key == EACH else (key,):
            value = fields.get(name)
            if value is None:
                continue
            if isinstance(change, str):
                fields[name] = _changed_text(value, changes[change])
            elif isinstance(change, dict):
                fields[name] = _changed(value, partial(_rewrite, shape=change, changes=changes))
            else:
                fields[name] = change(value, changes)
    return fields


def _content(value: Raw, changes: Changes, depth: int = BLOCK_DEPTH) -> Raw:
    """Change one block, or (sampling, 2025-11-25 and later) an array of blocks."""
    return _changed(value, partial(_change_block, changes=changes, depth=depth)) if depth else value


def _change_block(block: Fields, changes: Changes, depth: int = BLOCK_DEPTH) -> None:
    kind = text_of(block.get("type"))
    if kind == "tool_result" and "content" in block:
        block["content"] = _content(block["content"], changes, depth - 1)
    else:
        _rewrite(block, _BLOCKS.get(kind, {}), changes)


def _question(value: Raw, changes: Changes) -> Raw:
    shape = {"params": _QUESTIONS.get(text_of(members_of(value).get("method")), _RELATED)}
    return _changed(value, partial(_rewrite, shape=shape, changes=changes))


_BLOCKS: Final[dict[str | None, Shape]] = {
    "resource_link": {"uri": URI},
    "resource": {"resource": {"uri": URI}},
}
_RELATED: Final[Shape] = {META: {RELATED_TASK: {TASK_ID: TASK}}}
_TASK: Final[Shape] = {TASK_ID: TASK, **_RELATED}
_CONTENT: Final[Shape] = {"content": _content}

_OLDER_LINKS: Final = ("ui/resourceUri", "openai/outputTemplate")  # of tools to their apps

_ITEMS: Final[dict[str, Shape]] = {
    m.RESOURCES_LIST: {"uri": URI},
    m.TEMPLATES_LIST: {"uriTemplate": URI},
    m.TOOLS_LIST: {"name": NAME, META: {"ui": {"resourceUri": URI}, **dict.fromkeys(_OLDER_LINKS, URI)}},
    m.PROMPTS_LIST: {"name": NAME},
    m.TASKS_LIST: _TASK,
}
_RESULTS: Final[dict[str, Shape]] = {
    # The result of a finished tool call is inside the task.
    **{method: {"result": _CONTENT} for method in m.ABOUT_TASKS},
    **dict.fromkeys((m.TOOLS_CALL, m.TASKS_RESULT), _CONTENT),
    m.RESOURCES_READ: {"contents": {"uri": URI}},
    m.PROMPTS_GET: {"messages": _CONTENT},
}
_HOT: Final = {m.RESOURCES_READ: "contents", m.TOOLS_CALL: "content", m.TASKS_RESULT: "content"}
_EVENTS: Final[dict[str, Shape]] = {m.RESOURCE_UPDATED: {"uri": URI, **_RELATED}}
_QUESTIONS: Final[dict[str | None, Shape]] = {m.CREATE_MESSAGE: {"messages": _CONTENT, **_RELATED}}
_MADE: Final[Shape] = {TASK: {TASK_ID: TASK}, **_TASK}

NAMED_BY: Final = {method: next(iter(shape)) for method, shape in _ITEMS.items()}
"""The member that names an item, in each list."""


# Outward. The arguments are changed in place.


def expose_item(method: str, item: Fields, space: Space) -> Fields:
    """Return one item of the list that `method` asks for, as clients see it."""
    return _rewrite(item, _ITEMS[method], space.changes)


def expose_result(method: str, result: Fields, space: Space) -> Fields:
    """Return the result of a routed request, as clients see it."""
    key = _HOT.get(method)
    value = None if key is None else result.get(key)
    members: list[dict[str, Any]] | None = None
    # The rule of `_RESULTS` in fewer steps, as these are half of all requests: it takes 2.2 us for a read of
    # 1 KB, and `_rewrite` 4.8 (interpreted), which is 5 % of the whole exchange.
    if value is not None and len(value) <= LARGE_BYTES:
        try:
            members = list_decoder.decode(value)
        except UNREADABLE:  # no list of objects
            members = None
    if key is None or members is None:
        if method in _RESULTS:
            _rewrite(result, _RESULTS[method], space.changes)
    else:
        changed = False
        for member in members:
            if key == "contents":
                uri = text_of(member.get("uri"))
                if uri is not None:
                    member["uri"], changed = space.expose_uri(uri), True
            elif (kind := member.get("type")) is None or bytes(kind) not in _PLAIN_BLOCKS:
                _change_block(member, space.changes)
                changed = True
        if changed:
            result[key] = Raw(encode(members))
    if method in m.ABOUT_TASKS and (method != m.TOOLS_CALL or made_task(result) is not None):
        _rewrite(result, _MADE, space.changes)
    if "inputRequests" in result:
        _rewrite(result, {"inputRequests": {EACH: _question}}, space.changes)
    return result


def expose_error(error: RpcError, space: Space, own: str = "", shown: str = "") -> RpcError:
    """Return an upstream's error with `data.uri` as clients see it, and more if a mcpmux sent it.

    `own`: the name in the upstream's request, which its message then shows as `shown`.
    """
    message = _replace_word(error.message, own, shown) if own and own != shown else error.message
    data, changed = members_of(error.data) if isinstance(error.data, Raw) else {}, Fields()
    if "uri" in data:
        changed["uri"] = _changed_text(data["uri"], space.expose_uri)
    if data and (error.code in OWN or own in (text_of(data.get(NAME)), text_of(data.get(URI)))):
        message = _expose_own_error(message, data, changed, space, shown)
    if changed:
        return RpcError(error.code, message, raw(data | changed))
    return error if message == error.message else RpcError(error.code, message, error.data)


def _expose_own_error(message: str, data: Fields, changed: Fields, space: Space, shown: str) -> str:
    """Return the message of an upstream that is itself a mcpmux, and put its `data` into `changed`, exposed.

    It names its upstreams, and suggests names, which need this upstream's prefix for our clients.
    """
    if (name := text_of(data.get("upstream"))) is not None:
        message = expose_upstream(message, name, space.upstream)
        changed["upstream"] = raw(f"{space.upstream}/{name}")
    if LEFT_OUT in data:
        left_out = left_out_in({LEFT_OUT: value_of(data[LEFT_OUT])}, space.upstream)
        changed[LEFT_OUT] = raw(left_out)
        for name in left_out:
            message = expose_upstream(message, name.partition("/")[2], space.upstream)
    if NAME in data:
        changed[NAME] = raw(shown)
    expose = space.expose_uri if URI in data else space.expose_name
    candidates = value_of(data.get("candidates")) or []
    if isinstance(candidates, list) and all(isinstance(own, str) for own in candidates):
        changed |= {"candidates": raw(list(map(expose, candidates)))} if candidates else {}
        for own in candidates:
            message = _replace_word(message, own, expose(own))
    return _SUGGESTED.sub(lambda found: f"{found[1]}{expose(found[2])}`?", message)


def _replace_word(message: str, own: str, shown: str) -> str:
    """Return the message with `shown` instead of `own`, where that is surely the name and no other word.

    That is so when it occurs once, or in quotation marks, or after a colon to the end.
    """
    if own not in message or len(message) > MESSAGE_LIMIT:
        return message
    word = rf"(?<![\w.+/-]){re.escape(own)}(?![\w+/-]|\.\w)"
    if len(re.findall(word, message)) == 1:
        return re.sub(word, lambda _: shown, message)
    marked = rf"(?<=[`'\"]){re.escape(own)}(?=[`'\"])|(?<=: ){re.escape(own)}(?=$)"
    return re.sub(marked, lambda _: shown, message)


def named_in(method: str, params: Fields) -> tuple[str, str] | None:
    """Return (`uri` or `name`, its value) of what a request names; None without a name."""
    if method == m.COMPLETE:
        params = members_of(params.get("ref"))
    for member in (URI, NAME):
        if member in params and (text := text_of(params[member])) is not None:
            return member, text
    return None


def expose_event(method: str, params: Fields, space: Space) -> Fields:
    """Return a notification's parameters as clients see them."""
    if method == m.LOG_MESSAGE:
        logger = text_of(params.get("logger"))
        params["logger"] = raw(f"{space.upstream}/{logger}" if logger else space.upstream)
    return _rewrite(params, _EVENTS.get(method, _RELATED), space.changes)


def expose_question(method: str | None, params: Fields, space: Space) -> Fields:
    """Return an upstream's question to a client, as clients see it."""
    return _rewrite(params, _QUESTIONS.get(method, _RELATED), space.changes)


def expose_task(task: Fields, space: Space) -> Fields:
    """Return a task, or a notification about one, as clients see it."""
    return _rewrite(task, _TASK, space.changes)


def expose_related(fields: Fields, space: Space) -> Fields:
    """Return an object whose `_meta` has the related task as clients see it."""
    return _rewrite(fields, _RELATED, space.changes)


# Inward. The arguments stay unchanged.


def resolve_arguments(arguments: Raw, upstream: str, namespace: Namespace) -> Raw:
    """Return arguments of a tool or prompt in which every exposed URI of `upstream` is its own URI again.

    Only whole strings are compared: a URI inside a sentence stays. So does a text that merely begins like an
    exposed URI (`docs+tutorials`): the rest behind the prefix must have a scheme.
    """
    marker = (namespace.spaces[upstream].prefix or upstream).encode()
    data = bytes(arguments)
    # An escape could spell it in another way. `find` is faster than `in`, which tries a number first.
    if data.find(marker) < 0 and data.find(b"\\") < 0:
        return arguments

    def resolve(text: str) -> str:
        owner, own = namespace.resolve_uri(text) or ("", text)
        return own if owner == upstream and SCHEME.match(own) else text

    try:
        depth = min(DEPTH_LIMIT, max(DEPTH_ALWAYS, READ_BYTES // len(data)))
        return _resolved(arguments, marker, resolve, depth)
    except ValueError:  # nested more deeply than this process reads JSON
        return arguments


def _resolved(value: Raw, marker: bytes, resolve: TextChange, depth: int) -> Raw:
    start, data = first_byte(value), bytes(value)
    if depth == 0 or (data.find(marker) < 0 and data.find(b"\\") < 0):
        return value
    if start == b"{":
        members = decode_fields(value)
        return raw({key: _resolved(part, marker, resolve, depth - 1) for key, part in members.items()})
    if start == b"[":
        return raw([_resolved(part, marker, resolve, depth - 1) for part in decode_items(value)])
    return _changed_text(value, resolve)


def resolve_related(fields: Fields, resolve: TextChange) -> Fields:
    """Return an answer whose `_meta` has the related task as the upstream knows it."""
    return _rewrite(fields.copy(), _RELATED, {TASK: resolve})


def resolve_answers(params: Fields, resolve: TextChange) -> Fields:
    """Return a call whose `inputResponses` have each related task as the upstream knows it."""
    return _rewrite(params.copy(), {RESPONSES: {EACH: _RELATED}}, {TASK: resolve})


class Signature:
    """Adds `server_info` to the `_meta` of results."""

    def __init__(self, server_info: Raw) -> None:
        self._server_info = server_info
        self._own = raw({SERVER_INFO: server_info})
        self._sign_again = lru_cache(SIGNED)(self._sign)

    def put_on(self, result: Fields) -> Fields:
        """Return the result, signed (changed in place). A `_meta` that is no object is replaced."""
        meta = result.get(META)
        if meta is None:
            result[META] = self._own
        else:
            sign = self._sign_again if len(meta) <= SIGNED_BYTES else self._sign
            result[META] = sign(bytes(meta))
        return result

    def _sign(self, meta: bytes) -> Raw:
        return raw({**members_of(meta), SERVER_INFO: self._server_info})
