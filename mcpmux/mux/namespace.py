"""What stands in front of a text and tells whose it is: the prefix of an upstream, the mark of a worker.

Upstreams
  * URI and URI template: `prefix+` in front of the whole text; resolving cuts at the first `+`.
    `ui://x` becomes `ui://prefix/x`, so that hosts still see the `ui:` scheme.
  * Task id: like a URI, whatever it looks like.
  * Tool and prompt name: `prefix__name`; longer than 64 characters it becomes
    `prefix__` + head + `_` + 8 hex digits of the SHA-256 of the name, exactly 64 characters. A name that
    only looks like that is shortened as well, so the look alone tells that a table must be asked.
  * Prefixes match `[a-z][a-z0-9.-]*`: they contain neither `+` nor `_` nor `/`.
  * At most one upstream is unprefixed. Alone it is transparent: nothing changes. Beside others, what
    would read as somebody's prefix gets the upstream's own name as a prefix.

Workers: whatever lives in one worker's memory (a session, a parked call, a task) is given out with that
worker's number in front: `2.rest`. A request that names something of another worker is handed over to it
before anybody looks at anything else in it.

Laws: `resolve(expose(x)) == x` for every text x and every upstream; `expose` never maps two things to one;
`owner_of(mark + text)` is the mark's number; `own_part(mark, mark + text) == text`.

Source: RFC 3986 section 3.1 (`+` is legal in a scheme), RFC 6570 (expressions stay intact).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import parse_qs

from mcpmux.errors import McpmuxError
from mcpmux.protocol.envelope import members_of, text_of

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

    def __repr__(self) -> str:
        return f"Space({self.upstream!r}, prefix={self.prefix!r})"

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

    def __repr__(self) -> str:
        return f"Namespace({list(self.spaces)})"

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


def owner_of_request(
    headers: Mapping[str, str], query: str, body: bytes, session_header: str, session_key: str
) -> int | None:
    """The worker that an HTTP request is for; None when any of them can answer it.

    `session_header`: the header that names a session; `session_key`: what names it in a query.
    """
    session = headers.get(session_header)
    if session is not None:
        return owner_of(session)
    if query and session_key in query:
        return owner_of(next(iter(parse_qs(query).get(session_key, ())), None))
    # `find`, for `in` takes bytes for a number first.
    if body.find(b'"requestState"') < 0 and body.find(b'"taskId"') < 0:
        return None
    params = members_of(members_of(body).get("params"))
    found = owner_of(text_of(params.get("requestState")))
    return found if found is not None else owner_of(text_of(params.get("taskId")))
