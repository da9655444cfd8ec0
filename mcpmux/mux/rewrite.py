"""The one table of what changes on the way through, and nothing else does.

Outward (`expose_*`): what an upstream says, as clients see it. Inward (`resolve_*`): what a client says, as
the upstream knows it. Both work on shallowly decoded members, so whatever is not in the table keeps its
bytes. A transparent upstream's messages never come here.

| place | change |
| --- | --- |
| `resources[].uri`, `contents[].uri`, `uri` of read and of resource notifications | URI |
| `resourceTemplates[].uriTemplate`, completion `ref.uri` | URI template |
| `resource_link` and `resource` blocks in tool results, prompt messages, sampling messages | URI |
| `tools[]._meta.ui.resourceUri` and `_meta["ui/resourceUri"]` | URI |
| tool and prompt names in lists, calls, gets, completion refs | name |
| tool-call arguments that are wholly an exposed URI of the upstream being called | back to its own URI |
| `logger` of log messages | `upstream` or `upstream/logger` |
| `data.uri` of errors | URI |
| `taskId` of requests about a task, of their results, and of `notifications/tasks/status` | task id |
| `tasks[].taskId` of `tasks/list`, `task.taskId` of a result that made a task | task id |
| related task in `_meta` of results, notifications, questions and their answers | task id |
| `_meta` of results | names us as the server, see `Signature` |

Source: `basic/utilities/tasks`, 2025-11-25, and the Tasks extension (SEP-2663) for task ids; "_meta" in the
Base Protocol overview, 2026-07-28, for ours.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qs

from mcpmux.errors import McpmuxError, RpcError
from mcpmux.protocol import method as m
from mcpmux.protocol.call import META, SERVER_INFO
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
    raw_list,
    read_objects,
    text_of,
)
from mcpmux.protocol.headers import SESSION_HEADER, SESSION_KEY
from mcpmux.protocol.input_requests import RELATED_TASK, RESPONSES
from mcpmux.protocol.raw_json import Fields, Raw
from mcpmux.protocol.tasks import TASK, TASK_ID, made_task

# What stands in front of a text and tells whose it is: the prefix of an upstream, the mark of a worker.
#
# Upstreams
#   * URI and URI template: `prefix+` in front of the whole text; resolving cuts at the first `+`.
#     `ui://x` becomes `ui://prefix/x`, so that hosts still see the `ui:` scheme.
#   * Task id: like a URI, whatever it looks like.
#   * Tool and prompt name: `prefix__name`; longer than 64 characters it becomes
#     `prefix__` + head + `_` + 8 hex digits of the SHA-256 of the name, exactly 64 characters. A name that
#     only looks like that is shortened as well, so the look alone tells that a table must be asked.
#   * Prefixes match `[a-z][a-z0-9.-]*`: they contain neither `+` nor `_` nor `/`.
#   * At most one upstream is unprefixed. Alone it is transparent: nothing changes. Beside others, what
#     would read as somebody's prefix gets the upstream's own name as a prefix.
#
# Workers: whatever lives in one worker's memory (a session, a parked call, a task) is given out with that
# worker's number in front: `2.rest`. A request that names something of another worker is handed over to it
# before anybody looks at anything else in it.
#
# Laws: `resolve(expose(x)) == x` for every text x and every upstream; `expose` never maps two things to one;
# `owner_of(mark + text)` is the mark's number; `own_part(mark, mark + text) == text`.
#
# Source: RFC 3986 section 3.1 (`+` is legal in a scheme), RFC 6570 (expressions stay intact).

NAME_LIMIT: Final = 64
"""Characters; hosts refuse longer tool names (and model APIs do)."""

WORKERS_LIMIT: Final = 256  # more processes than any machine has use for

_HASH_DIGITS: Final = 8
_SHORTENED: Final = re.compile(r"_[0-9a-f]{8}\Z")
_UI: Final = "ui://"
_JOINT: Final = "__"
_MARK: Final = re.compile(r"([1-9][0-9]{0,3})\.")


class Space:
    """The view of one upstream: how its texts look from outside. Stateless."""

    def __init__(self, upstream: str, prefix: str, reserved: frozenset[str]) -> None:
        """`reserved`: every text that clients read as a prefix; empty for a transparent upstream."""
        self.upstream = upstream
        self.prefix = prefix
        self._reserved = reserved

    @property
    def transparent(self) -> bool:
        """Whether nothing at all is rewritten for this upstream."""
        return not self._reserved

    def expose_uri(self, uri: str) -> str:
        """The URI (or URI template) that clients see for the upstream's `uri`."""
        if uri.startswith(_UI):
            rest = uri[len(_UI) :]
            prefix = self.prefix or (self.upstream if rest.partition("/")[0] in self._reserved else "")
            return f"{_UI}{prefix}/{rest}" if prefix else uri
        return f"{self.prefix}+{uri}" if self.prefix else self.expose_task(uri)

    def expose_task(self, task_id: str) -> str:
        """The task id that clients see for the upstream's `task_id`."""
        head, plus, _ = task_id.partition("+")
        prefix = self.prefix or (self.upstream if plus and head in self._reserved else "")
        return f"{prefix}+{task_id}" if prefix else task_id

    def expose_name(self, name: str) -> str:
        """The tool or prompt name that clients see for the upstream's `name`."""
        head, joint, _ = name.partition(_JOINT)
        prefix = self.prefix or (self.upstream if joint and head in self._reserved else "")
        if not prefix:
            return name
        exposed = f"{prefix}{_JOINT}{name}"
        if len(exposed) < NAME_LIMIT or (len(exposed) == NAME_LIMIT and not _SHORTENED.search(exposed)):
            return exposed
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
        return f"{exposed[: NAME_LIMIT - _HASH_DIGITS - 1]}_{digest}"


class Namespace:
    """All upstreams' spaces, and the way back from an exposed text. Stateless once built.

    `transparent`: the only, unprefixed upstream; None when there are several or it has a prefix.
    """

    def __init__(self, prefixes: Mapping[str, str]) -> None:
        """`prefixes`: upstream name → prefix in configuration order; at most one prefix is ""."""
        taken = [prefix for prefix in prefixes.values() if prefix]
        bare = [name for name, prefix in prefixes.items() if not prefix]
        if len(bare) > 1 or len(set(taken)) != len(taken) or set(bare) & set(taken):
            raise ValueError("prefixes must differ and at most one upstream can go without")
        reserved = frozenset(taken + bare) if taken else frozenset()
        self._owners = {prefix or name: name for name, prefix in prefixes.items()} if taken else {}
        self._bare = bare[0] if bare else None
        self.spaces = {name: Space(name, prefix, reserved) for name, prefix in prefixes.items()}
        self.transparent = self._bare if not self._owners else None

    def resolve_uri(self, uri: str) -> tuple[str, str] | None:
        """(upstream, its own URI) of an exposed URI; None for a raw one, which somebody may own."""
        if uri.startswith(_UI):
            head, joint, rest = uri[len(_UI) :].partition("/")
            own = _UI + rest
        else:
            head, joint, own = uri.partition("+")
        owner = self._owners.get(head) if joint else None
        if owner is not None:
            return owner, own
        return (self._bare, uri) if self._bare is not None else None

    def resolve_task(self, task_id: str) -> tuple[str, str] | None:
        """(upstream, its own task id) of an exposed task id; None for one that nobody can have made."""
        return self.resolve_name(task_id, "+")

    def resolve_name(self, name: str, joint: str = _JOINT) -> tuple[str, str] | None:
        """(upstream, its own name, as far as the text tells) of an exposed name; None for a foreign one.

        When `is_shortened(name)` the second part is a head only: look the name up with `match_name`.
        """
        head, found, own = name.partition(joint)
        owner = self._owners.get(head) if found else None
        if owner is not None:
            return owner, own
        return (self._bare, name) if self._bare is not None else None

    def is_shortened(self, name: str) -> bool:
        """Whether an exposed name is one that `expose_name` had to shorten."""
        head = name.partition(_JOINT)[0]
        return len(name) == NAME_LIMIT and head in self._owners and _SHORTENED.search(name) is not None

    def match_name(self, name: str, upstream: str, candidates: Iterable[str]) -> str | None:
        """The upstream's own name among `candidates` that is exposed as `name`."""
        space = self.spaces[upstream]
        return next((own for own in candidates if space.expose_name(own) == name), None)


class ForeignMark(McpmuxError):
    """It was not given out by this worker."""


def mark_of(worker: int) -> str:
    """What stands in front of everything that a worker gives out; workers count from 1."""
    return f"{worker}."


def owner_of(text: object) -> int | None:
    """The number of the worker that gave this out; None for what no worker has marked."""
    found = _MARK.match(text) if isinstance(text, str) else None
    return int(found[1]) if found is not None else None


def own_part(mark: str, text: str) -> str:
    """What stands behind our mark. Raises ForeignMark."""
    if not text.startswith(mark):
        raise ForeignMark("it was given out by another worker, or by none")
    return text[len(mark) :]


def owner_of_request(headers: Mapping[str, str], query: str, body: bytes) -> int | None:
    """The worker that an HTTP request is for; None when any of them can answer it."""
    session = headers.get(SESSION_HEADER)
    if session is not None:
        return owner_of(session)
    if query and SESSION_KEY in query:
        return owner_of(next(iter(parse_qs(query).get(SESSION_KEY, ())), None))
    # `find`, for `in` takes bytes for a number first.
    if body.find(b'"requestState"') < 0 and body.find(b'"taskId"') < 0:
        return None
    params = members_of(members_of(body).get("params"))
    found = owner_of(text_of(params.get("requestState")))
    return found if found is not None else owner_of(text_of(params.get("taskId")))


# What changes on the way through, by the table above.

SIGNED: Final = 256  # values of `_meta` whose signed form is kept: servers repeat them
SIGNED_BYTES: Final = 1024  # of one; a longer one is signed anew each time

TextChange = Callable[[str], str]

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")  # RFC 3986 section 3.1: what every URI begins with

NAMED_BY: Final = {
    m.RESOURCES_LIST: "uri",
    m.TEMPLATES_LIST: "uriTemplate",
    m.TOOLS_LIST: "name",
    m.PROMPTS_LIST: "name",
    m.TASKS_LIST: TASK_ID,
}
"""Which member of an item is its name, in each list."""

_PLAIN_BLOCKS: Final = frozenset({b'"text"', b'"image"', b'"audio"'})
"""Types of content blocks, as they are mostly written, in which nothing is exposed."""

DEPTH_LIMIT: Final = 64  # nesting of content blocks and arguments that is followed; deeper is left as it is


# Outward. Whatever is given is changed in place.


def expose_item(method: str, item: Fields, space: Space) -> Fields:
    """One item of the list that `method` asks for, as clients see it."""
    if method == m.TASKS_LIST:
        return expose_task(item, space)
    key = NAMED_BY[method]
    _change(item, key, space.expose_name if key == "name" else space.expose_uri)
    if method == m.TOOLS_LIST:
        _change_within(item, META, lambda meta: _expose_ui(meta, space))
    return item


def expose_result(method: str, result: Fields, space: Space) -> Fields:
    """The result of a routed request, as clients see it."""
    if method == m.RESOURCES_READ:
        _expose_contents(result, space)
    elif method in (m.TOOLS_CALL, m.TASKS_RESULT):
        _expose_blocks(result, space)
    elif method == m.PROMPTS_GET:
        _change_each(result, "messages", lambda message: _expose_content(message, space))
    elif method in m.ABOUT_TASKS:  # of a tool call that is done: what it came to is inside
        _change_within(result, "result", lambda inner: expose_result(m.TOOLS_CALL, inner, space))
    if method in m.ABOUT_TASKS and (method != m.TOOLS_CALL or made_task(result) is not None):
        _change_within(result, TASK, lambda task: _change(task, TASK_ID, space.expose_task))
        expose_task(result, space)
    if "inputRequests" in result:
        _change_members(result, "inputRequests", lambda request: _expose_request(request, space))
    return result


def expose_error(error: RpcError, space: Space) -> RpcError:
    """An upstream's error with `data.uri` as clients see it."""
    if not isinstance(error.data, Raw):
        return error
    data = members_of(error.data)
    if "uri" not in data:
        return error
    _change(data, "uri", space.expose_uri)
    return RpcError(error.code, error.message, raw(data))


def expose_event(method: str, params: Fields, space: Space) -> Fields:
    """A notification's parameters as clients see them."""
    if method == m.RESOURCE_UPDATED:
        _change(params, "uri", space.expose_uri)
    elif method == m.LOG_MESSAGE:
        logger = text_of(params.get("logger"))
        params["logger"] = raw(f"{space.upstream}/{logger}" if logger else space.upstream)
    return expose_related(params, space)


def expose_question(method: str | None, params: Fields, space: Space) -> Fields:
    """What an upstream asks a client, as clients see it."""
    if method == m.CREATE_MESSAGE:
        _change_each(params, "messages", lambda message: _expose_content(message, space))
    return expose_related(params, space)


def expose_task(task: Fields, space: Space) -> Fields:
    """A task, or a notification about one, as clients see it."""
    _change(task, TASK_ID, space.expose_task)
    return expose_related(task, space)


def expose_related(fields: Fields, space: Space) -> Fields:
    """The related task in `_meta` as clients see it."""
    if META in fields:
        _change_related(fields, space.expose_task)
    return fields


def _expose_contents(result: Fields, space: Space) -> None:
    """Of what was read. As `_change_each` does it, in fewer steps: this is the hot path."""
    contents = result.get("contents")
    if contents is None or len(contents) > LARGE_BYTES:
        _change_each(result, "contents", lambda content: _change(content, "uri", space.expose_uri))
        return
    try:
        members: list[dict[str, Any]] = list_decoder.decode(contents)
    except UNREADABLE:
        return
    for member in members:
        uri = text_of(member.get("uri"))
        if uri is not None:
            member["uri"] = space.expose_uri(uri)
    result["contents"] = Raw(encode(members))


def _expose_blocks(result: Fields, space: Space) -> None:
    """Of a tool's result, most of whose blocks name no resource. As `_change_each` has it, in fewer steps."""
    content = result.get("content")
    if content is None or len(content) > LARGE_BYTES:
        _change_each(result, "content", lambda block: _expose_block(block, space))
        return
    try:
        blocks = list_decoder.decode(content)
    except UNREADABLE:
        return
    changed = False
    for block in blocks:
        kind = block.get("type")
        if kind is None or bytes(kind) not in _PLAIN_BLOCKS:
            changed = True
            _expose_block(block, space)
    if changed:
        result["content"] = raw(blocks)


def _expose_ui(meta: Fields, space: Space) -> None:
    _change(meta, "ui/resourceUri", space.expose_uri)
    _change_within(meta, "ui", lambda ui: _change(ui, "resourceUri", space.expose_uri))


def _expose_content(message: Fields, space: Space, depth: int = DEPTH_LIMIT) -> None:
    """`content` of a message: one block, or (sampling, 2025-11-25 and later) an array of blocks."""
    content = message.get("content")
    if content is None or depth == 0:
        return
    if first_byte(content) == b"[":
        _change_each(message, "content", lambda block: _expose_block(block, space, depth))
    else:
        _change_within(message, "content", lambda block: _expose_block(block, space, depth))


def _expose_block(block: Fields, space: Space, depth: int = DEPTH_LIMIT) -> None:
    kind = text_of(block.get("type"))
    if kind == "resource_link":
        _change(block, "uri", space.expose_uri)
    elif kind == "resource":
        _change_within(block, "resource", lambda inner: _change(inner, "uri", space.expose_uri))
    elif kind == "tool_result":
        _expose_content(block, space, depth - 1)


def _expose_request(request: Fields, space: Space) -> None:
    method = text_of(request.get("method"))
    _change_within(request, "params", lambda params: expose_question(method, params, space))


# Inward. What is given stays as it is.


def resolve_arguments(arguments: Raw, upstream: str, namespace: Namespace) -> Raw:
    """Tool-call arguments with every string that is an exposed URI of `upstream` put back to its own.

    Strings are looked at as wholes: a URI inside a sentence stays. So does a text that only begins like an
    exposed URI (`docs+tutorials`): what remains without the prefix must have a scheme.
    """
    marker = (namespace.spaces[upstream].prefix or upstream).encode()
    data = bytes(arguments)
    if data.find(marker) < 0 and data.find(b"\\") < 0:  # as `_may_hold` has it
        return arguments

    def resolve(text: str) -> str:
        owner, own = namespace.resolve_uri(text) or ("", text)
        return own if owner == upstream and _SCHEME.match(own) else text

    def walk(value: Raw, depth: int) -> Raw:
        start = first_byte(value)
        if depth == 0 or not _may_hold(value, marker):
            return value
        if start == b"{":
            return raw({key: walk(part, depth - 1) for key, part in decode_fields(value).items()})
        if start == b"[":
            return raw([walk(part, depth - 1) for part in decode_items(value)])
        return _changed_text(value, resolve)

    try:
        return walk(arguments, DEPTH_LIMIT)
    except ValueError:  # nested more deeply than JSON is read here
        return arguments


def _may_hold(value: Raw, text: bytes) -> bool:
    """Whether a string in `value` may contain `text`; an escape could spell it in another way."""
    data = bytes(value)
    return data.find(text) >= 0 or data.find(b"\\") >= 0  # sooner than `in`, which tries something else first


def resolve_related(fields: Fields, resolve: TextChange) -> Fields:
    """The related task in an answer's `_meta` as the upstream knows it."""
    resolved = fields.copy()
    _change_related(resolved, resolve)
    return resolved


def resolve_answers(params: Fields, resolve: TextChange) -> Fields:
    """A call's `inputResponses` with each related task as the upstream knows it."""
    resolved = params.copy()
    _change_members(resolved, RESPONSES, lambda response: _change_related(response, resolve))
    return resolved


# How it is changed: in place, and anything of another kind than is expected stays as it is.


def _changed_text(value: Raw, change: TextChange) -> Raw:
    """The string `value` changed; the very same value when it is no string or stays as it is."""
    text = text_of(value)
    if text is None:
        return value
    changed = change(text)
    return raw(changed) if changed != text else value


def _change(item: Fields, key: str, change: TextChange) -> None:
    if key in item:
        item[key] = _changed_text(item[key], change)


def _change_within(item: Fields, key: str, change: Callable[[Fields], object]) -> None:
    """Apply `change` to the object at `key`."""
    value = item.get(key)
    if value is None:
        return
    try:
        inner = decode_fields(value)
    except ValueError:
        return
    change(inner)
    item[key] = raw(inner)


def _change_members(item: Fields, key: str, change: Callable[[Fields], object]) -> None:
    """Apply `change` to each member of the object at `key` that is an object."""

    def change_each(members: Fields) -> None:
        for name in list(members):
            _change_within(members, name, change)

    _change_within(item, key, change_each)


def _change_each(item: Fields, key: str, change: Callable[[Fields], object]) -> None:
    """Apply `change` to each object in the array of objects at `key`."""
    value = item.get(key)
    if value is None:
        return
    large = is_large(value)
    try:
        members = read_objects(value) if large else decode_list(value)
    except ValueError:
        return
    for member in members:
        change(member)
    item[key] = raw_list(members) if large else raw(members)


def _change_related(fields: Fields, change: TextChange) -> None:
    """Apply `change` to the id of the related task in `_meta`."""

    def change_meta(meta: Fields) -> None:
        _change_within(meta, RELATED_TASK, lambda related: _change(related, TASK_ID, change))

    _change_within(fields, META, change_meta)


class Signature:
    """Signs results with `server_info`."""

    def __init__(self, server_info: Raw) -> None:
        self._server_info = server_info
        self._own = raw({SERVER_INFO: server_info})
        self._kept = lru_cache(SIGNED)(self._signed)

    def put_on(self, result: Fields) -> Fields:
        """The result, signed (changed in place). A `_meta` that is no object goes."""
        meta = result.get(META)
        if meta is None:
            result[META] = self._own
        else:
            signed = self._kept if len(meta) <= SIGNED_BYTES else self._signed
            result[META] = signed(bytes(meta))
        return result

    def _signed(self, meta: bytes) -> Raw:
        try:
            members = decode_fields(meta)
        except ValueError:
            members = {}
        return raw({**members, SERVER_INFO: self._server_info})
