"""The layout of a document: `upstreams` beside the settings.

A file of a host app has another: `hosts` translates its servers into tables of ours. Our settings are in
`"mcpmux"` objects there, beside the servers and in the entry of each server, which host apps ignore.

The classes mirror the files: their attributes are the keys. Which keys may be used together is checked here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeAlias
from urllib.parse import urlsplit

import attrs
from attrs import field, frozen

from mcpmux.config.auth import OAuth
from mcpmux.config.expansion import Secret
from mcpmux.config.listener import ClientTls
from mcpmux.config.model import (
    PREFIX,
    SAFE_VARIABLES,
    Http,
    Settings,
    Stdio,
    Target,
    Tcp,
    ToolSelection,
    Transport,
    Unix,
    Upstream,
    UpstreamHandling,
    WebSocket,
)
from mcpmux.config.report import closest, sort_of
from mcpmux.config.scalars import (
    PROXY_URL,
    VARIABLE_NAME,
    EnvironmentValue,
    Filled,
    Flag,
    HeaderTable,
    Inheritance,
    Text,
    derive_name,
    derive_prefix,
    is_name,
    read_url,
)
from mcpmux.errors import KeyPath, Problem

UPSTREAMS = "upstreams"
MCPMUX = "mcpmux"
SCHEMA = "$schema"  # names the JSON Schema for editors

# Where host apps have their servers in JSON: Claude Desktop, Cursor and most others; VS Code's mcp.json, its
# settings.json; Zed.
SERVER_PLACES: tuple[tuple[str, ...], ...] = (
    ("mcpServers",),
    ("servers",),
    ("mcp", "servers"),
    ("context_servers",),
)

# URLs of servers. The scheme alone decides, also about TLS: a `tls` table does not turn TLS on.
#
#     http:// https://    Streamable HTTP, or HTTP+SSE        tcp://HOST:PORT    lines of JSON over TCP
#     ws:// wss://        WebSocket                           tls://HOST:PORT    the same inside TLS
#                                                             unix:PATH          lines of JSON, Unix socket

URL_STARTS = ("http://", "https://", "ws://", "wss://", "tcp://", "tls://", "unix:")

_NO_HTTP = dict.fromkeys(("proxy", "transport"), "")
_NO_HEADERS = dict.fromkeys(("headers", "oauth", "proxy", "transport"), "")
_STRANGERS: Mapping[str, Mapping[str, str]] = {
    "command": dict.fromkeys(("headers", "transport", "tls", "proxy", "oauth"), ""),
    "url": dict.fromkeys(("args", "env", "cwd", "inherit_env"), ""),
    "http": {"tls": "; expected https://"},
    "ws": {"tls": "; expected wss://", **_NO_HTTP},
    "wss": _NO_HTTP,
    "tcp": {"tls": "; expected tls://", **_NO_HEADERS},
    "tls": _NO_HEADERS,
    "unix": {"tls": "", **_NO_HEADERS},
}
"""Key, or scheme of a URL -> keys that do not go with it -> what to say of them besides."""


SERVER_URL = Text(
    "a URL: http://, https://, ws:// or wss:// and a host; tcp:// or tls:// and HOST:PORT; or unix:PATH",
    r"(?:https?|wss?)://[^\s\x00-\x1f/?#]+(?:[/?][^\s\x00-\x1f#]*)?"
    r"|(?:tcp|tls)://[^\s\x00-\x1f/?#@]+:[0-9]+/?|unix:[^\x00]*[^\x00/]",
    lambda text: text if text.startswith("unix:") else read_url(text),
)
"""A URL without a fragment, with a scheme from the table above."""


def _find_strangers(settings: Mapping[str, Any], url: object) -> Iterator[tuple[str, str]]:
    """Yield (key, mistake) for the settings of a server at `url`, which is None for a program."""
    present = "command" if url is None else "url"
    scheme = url.partition(":")[0].lower() if isinstance(url, str) else ""  # none before expansion, perhaps
    start = "unix:" if scheme == "unix" else f"{scheme}://"
    kind = f"{'an' if scheme.startswith('http') else 'a'} {start} URL"
    for key, what in ((present, f"`{present}`"), (scheme, kind)):
        strangers = _STRANGERS.get(key, {})
        for name in settings:
            if name in strangers:
                yield name, f"`{name}` does not go with {what}{strangers[name]}"
    if "oauth" in settings and "authorization" in [key.lower() for key in _table(settings.get("headers"))]:
        yield "oauth", "`oauth` and a header `Authorization` are given; remove one of them"


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# The keys of one server.

Url: TypeAlias = Annotated[str, SERVER_URL]

NEITHER = "expected `command` (a program to start) or `url` (the endpoint of a running server)"


@frozen(kw_only=True)
class UpstreamSettings(UpstreamHandling):
    """What mcpmux has to know about a server besides how to reach it."""

    enabled: Annotated[bool, Flag()] = True
    """`false` has the same effect as removing the upstream from the file."""
    inherit_env: Annotated[tuple[str, ...], Inheritance(SAFE_VARIABLES)] | None = None
    """Which environment variables of mcpmux the program gets: all (`true`, the default), those few that are
    safe (`false`), or these.
    """
    env_file: Filled | None = None
    """A file of `NAME=value` lines: variables of the program, and for `${NAME}` in this table. They win over
    others; `env` wins over them. The path is relative to the folder of the configuration.
    """
    prefix: Annotated[str, PREFIX] | None = None
    """Marks its names and URIs. Default: its name, with - in place of dots. "" means no prefix, which only
    one upstream may have.
    """
    tls: ClientTls = field(factory=ClientTls)
    """How to verify the server of an https, wss or tls URL, and what to show it."""
    proxy: Annotated[Secret, PROXY_URL] | None = None
    """HTTP proxy on the way to the URL. "" means none. Default: what variables like HTTPS_PROXY say."""
    oauth: OAuth | None = None
    """How to get tokens for the server of a URL from its authorization server. {} finds out everything."""


class Document(Settings):
    """The settings in a document of ours, where `upstreams` stand beside them."""

    ignored_keys = frozenset({UPSTREAMS, SCHEMA})  # they are read elsewhere


TOOL_NAME = Text("names of tools", r"[^\x00-\x1f\x7f\ue000]+")
Tools: TypeAlias = tuple[Annotated[str, TOOL_NAME], ...]


@frozen(kw_only=True)
class UpstreamTable(UpstreamSettings):
    """A server: a program to start (`command`) or the endpoint of a running server (`url`)."""

    command: Filled | None = None
    """Program to start. It speaks MCP on stdio."""
    args: tuple[Annotated[str, Text()], ...] = ()
    """Arguments of the program."""
    env: Mapping[Annotated[str, VARIABLE_NAME], Annotated[Secret, EnvironmentValue()]] = field(factory=dict)
    """Environment variables of the program, in addition to those that it inherits."""
    cwd: Filled | None = None
    """Working directory of the program."""
    url: Url | None = None
    """URL of a running server: http(s), ws(s), tcp or tls://HOST:PORT, unix:PATH."""
    headers: HeaderTable = field(factory=dict)
    """Headers to send with every HTTP request, or with the WebSocket handshake."""
    transport: Transport = "auto"
    """What the URL speaks: `streamable` HTTP, or `sse` for HTTP+SSE of 2024-11-05. `auto` finds out."""
    include_tools: Tools | None = None
    """The only tools to offer, by the names that the server gives them."""
    exclude_tools: Tools = ()
    """Tools not to offer, even if they are included."""


def make_target(
    url: str,
    headers: HeaderTable | None = None,
    transport: str = "auto",
    ours: UpstreamSettings | None = None,
) -> Http | WebSocket | Tcp | Unix:
    """Return the server at `url`, which SERVER_URL has read. Settings that do not go with it are ignored."""
    ours, headers = ours or UpstreamSettings(), headers or {}
    scheme, parts = url.partition(":")[0], urlsplit(url)
    if scheme == "unix":
        return Unix(re.sub(r"^unix:(?://(?=/))?", "", url))
    if scheme in ("tcp", "tls"):
        assert parts.hostname is not None and parts.port is not None
        return Tcp(parts.hostname, parts.port, ours.tls if scheme == "tls" else None)
    if scheme in ("ws", "wss"):
        return WebSocket(url, headers, ours.tls, ours.oauth)
    return Http(url, headers, ours.tls, ours.oauth, ours.proxy, transport)


def make_upstream(
    table: UpstreamTable, name: str, enabled: bool, variables: Mapping[str, Secret]
) -> Upstream:
    """Return the upstream of a table whose keys do not clash. `variables`: of its `env_file`."""
    target: Target
    if table.url is not None:
        target = make_target(table.url, table.headers, table.transport, table)
    else:
        assert table.command is not None
        env = {**variables, **table.env}
        target = Stdio(table.command, table.args, env, table.cwd, table.inherit_env)
    return Upstream(
        name=name,
        target=target,
        enabled=enabled,
        prefix=derive_prefix(name) if table.prefix is None else table.prefix,
        tools=ToolSelection(table.include_tools, table.exclude_tools),
        **{key.name: getattr(table, key.name) for key in attrs.fields(UpstreamHandling)},
    )


def find_clashes(raw: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (key, mistake) for keys of a table that do not go together."""
    if "command" in raw and "url" in raw:
        yield "command", "expected `command` or `url`, got both"
    elif "command" in raw or "url" in raw:
        yield from _find_strangers(raw, raw.get("url"))
    else:
        keys = {key.name for key in attrs.fields(UpstreamTable)}
        if not any(closest(key.lower(), ("command", "url")) for key in raw if key not in keys):
            yield "command", NEITHER  # otherwise the mistake about the misspelt key says enough


# The parts of a document: the servers, wherever they are, and our settings.


@frozen(repr=False)
class Entry:
    """One server in the document, not yet read: `raw` is its table.

    Mistakes in the entry of a host app (`is_foreign`) are only about that server, except in its `settings`:
    what its `"mcpmux"` object has, which is in the table, too. `reason`: why there is no table.
    """

    path: KeyPath
    name: str
    raw: object
    is_disabled: bool
    is_foreign: bool = False
    settings: object = field(factory=dict)
    reason: str | None = None


def lay_out(table: Mapping[str, Any]) -> tuple[list[Entry], list[Problem]]:
    """Return the servers in the document `table` of our own, and the mistakes about `upstreams`."""
    servers, problems = items_of(table.get(UPSTREAMS, {}), (UPSTREAMS,))
    for name in servers:
        if not is_name(name):
            expected = f'a name of a-z, 0-9, "." and "-" such as `{derive_name(name)}`'
            problems.append(Problem((UPSTREAMS, name), f"expected {expected}, at most 32 characters"))
    # Mistakes in the table of a disabled upstream do no harm.
    entries = [
        Entry((UPSTREAMS, name), name, raw, _table(raw).get("enabled") is False)
        for name, raw in servers.items()
    ]
    return entries, problems


def items_of(table: object, path: KeyPath) -> tuple[Mapping[str, object], list[Problem]]:
    """Return the servers in a table, or none and the mistake about it."""
    if isinstance(table, Mapping):
        return table, []
    return {}, [Problem(path, f"expected a table of upstreams, got {sort_of(table)}")]
