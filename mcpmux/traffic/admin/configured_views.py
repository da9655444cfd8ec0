"""Describe the configured views for the inspector: selections in words, and counts of what clients see.

| path | answer |
| --- | --- |
| `/api/views` | see `ViewsState` |
| `/api/views/counts` | `counts`: a `ViewCount` by view; upstreams are asked for their lists |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from mcpmux.config import Config
from mcpmux.config.listener import HttpListener, Listeners
from mcpmux.config.views import SEARCH, Selector
from mcpmux.traffic.admin.route import HttpExchange, Route

SHOWN_NAMES = 200  # of each kind that are shown of a view

_HINTS = {
    "readOnlyHint": ("change something", "change nothing"),
    "destructiveHint": ("destroy nothing", "may destroy something"),
    "idempotentHint": ("may do more when called again", "do nothing more when called again"),
    "openWorldHint": ("stay within a closed world", "deal with the world outside"),
}
"""The meaning of a hint of tools when it is false, and when it is true."""


class OverrideState(msgspec.Struct, frozen=True):
    """An override. `rename`: the new name, if it has one."""

    upstream: str
    kind: str
    name: str
    rename: str | None


class ViewState(msgspec.Struct, frozen=True):
    """One view. `places`: where its clients connect. `include` and `exclude`: selectors in words.

    `is_searched`: clients search its tools, and see two tools instead of all.
    """

    name: str
    places: list[str]
    principals: Sequence[str]
    include: list[str]
    exclude: list[str]
    overrides: list[OverrideState]
    is_searched: bool


class ViewsState(msgspec.Struct, frozen=True):
    """Everything, as a view without a name, then all views in configuration order.

    `has_access_rules`: some principals may see less of them.
    """

    views: list[ViewState]
    has_access_rules: bool


class ViewCount(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of what a client of a view sees. `missing`: upstreams whose lists are incomplete, and why.

    `names`: by kind, the first NAMES of what it sees, as its clients call it.
    """

    tools: int = 0
    prompts: int = 0
    resources: int = 0
    templates: int = 0
    tokens: int
    missing: dict[str, str]
    names: dict[str, list[str]] = {}


class Views(Protocol):
    """Reads the views of one process, or of several together."""

    def read_views(self) -> ViewsState:
        """Return the configured views."""

    async def count_views(self) -> Mapping[str, ViewCount]:
        """Return how much a client of each sees now, without access rules. Takes a bounded time."""


def view_routes(views: Views) -> tuple[Route, ...]:
    """Return routes for `serve_admin`."""

    async def read(http: HttpExchange) -> None:
        await http.send(views.read_views())

    async def count(http: HttpExchange) -> None:
        await http.send({"counts": await views.count_views()})

    return Route("/api/views", read), Route("/api/views/counts", count)


def describe_views(config: Config) -> ViewsState:
    """Return the views of a configuration, for people."""
    places = list(dict.fromkeys(_places_of("", config.listeners)))
    views = [ViewState("", places, (), [], [], [], is_searched=False)]
    for name, view in config.views.items():
        places = list(dict.fromkeys(_places_of(name, config.listeners)))
        include, exclude = list(map(in_words, view.include)), list(map(in_words, view.exclude))
        overrides = [
            OverrideState(override.upstream, override.kind, override.name, override.rename)
            for override in view.overrides
        ]
        is_searched = view.tools == SEARCH
        views.append(ViewState(name, places, view.principals, include, exclude, overrides, is_searched))
    return ViewsState(views, bool(config.access))


def _places_of(name: str, listeners: Listeners) -> Iterator[str]:
    end = f"/{name}" if name else ""
    for web in (*listeners.http, *listeners.websocket):
        yield f"{web.path.rstrip('/')}{end}" or "/"
        if isinstance(web, HttpListener) and web.sse_path:
            yield f"{web.sse_path.rstrip('/')}{end}" or "/"
    yield from (listener.address for listener in listeners.tcp if (listener.view or "") == name)
    yield from (listener.address for listener in listeners.unix if (listener.view or "") == name)
    if listeners.stdio and (listeners.stdio_view or "") == name:
        yield "stdio"


def in_words(selector: Selector) -> str:
    """Return the meaning of a selector in words."""
    text = selector.kind or ("tools" if selector.hints else "everything")
    if selector.upstream is not None:
        text += f" of {selector.upstream}"
    if selector.name is not None:
        text += f" called {selector.name}"
    hints = " and ".join(_HINTS[name][hint] for name, hint in selector.hints.items())
    return f"{text} that {hints}" if hints else text
