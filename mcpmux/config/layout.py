"""The two layouts of a document: our own, and the JSON in which host apps keep their servers.

Ours has `upstreams` beside the settings. A host app's file has its servers in `mcpServers`, or in `servers`
as VS Code does, and is used unchanged: keys that only mean something to a host app are not read. Our settings
are in `"mcpmux"` objects, beside the servers and in the entry of each server, which host apps ignore.

The classes mirror the files: their attributes are the keys. Which keys may be used together is checked here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, TypeAlias
from urllib.parse import urlsplit

import attrs
from attrs import field, frozen

from mcpmux.config.auth import OAuth
from mcpmux.config.expansion import Secret
from mcpmux.config.listener import ClientTls
from mcpmux.config.model import (
    PREFIX,
    Handling,
    Http,
    Stdio,
    Target,
    Tcp,
    ToolSelection,
    Transport,
    Unix,
    Upstream,
    WebSocket,
)
from mcpmux.config.report import KeyPath, Report, closest, invalid_value, sort_of
from mcpmux.config.scalars import (
    PROXY_URL,
    Choice,
    EnvironmentValue,
    Filled,
    Flag,
    Headers,
    Text,
    derive_name,
    derive_names,
    is_name,
    read_url,
)

UPSTREAMS = "upstreams"
MCPMUX = "mcpmux"
SCHEMA = "$schema"  # names the JSON Schema for editors

# Where the servers are: Claude Desktop, Cursor and most others; VS Code's mcp.json; its settings.json.
SERVER_PLACES: tuple[tuple[str, ...], ...] = (("mcpServers",), ("servers",), ("mcp", "servers"))

# URLs of servers. Only the scheme decides, also about TLS: a `tls` table says how it is used, not whether.
#
#     http:// https://    Streamable HTTP, or HTTP+SSE        tcp://HOST:PORT    lines of JSON over TCP
#     ws:// wss://        WebSocket                           tls://HOST:PORT    the same inside TLS
#                                                             unix:PATH          lines of JSON, Unix socket

URL_STARTS = ("http://", "https://", "ws://", "wss://", "tcp://", "tls://", "unix:")

# The words with which host apps name a transport.
_STDIO = ("stdio", "local")
_HTTP = ("http", "streamable-http", "streamableHttp", "streamable_http", "sse")
_WEBSOCKET = ("ws", "websocket")

_NO_WEBSOCKET = dict.fromkeys(_WEBSOCKET, "; expected ws:// or wss://")
_NO_HTTP = dict.fromkeys(("proxy", "transport", *_HTTP), "")
_NO_HEADERS = dict.fromkeys(("headers", "oauth", "proxy", "transport"), "")
_STRANGERS: Mapping[str, Mapping[str, str]] = {
    "command": dict.fromkeys(("headers", "transport", "tls", "proxy", "oauth", *_HTTP, *_WEBSOCKET), ""),
    "url": dict.fromkeys(("args", "env", "cwd", *_STDIO), ""),
    "http": {"tls": "; expected https://", **_NO_WEBSOCKET},
    "https": _NO_WEBSOCKET,
    "ws": {"tls": "; expected wss://", **_NO_HTTP},
    "wss": _NO_HTTP,
    "tcp": {"tls": "; expected tls://", **_NO_HEADERS},
    "tls": _NO_HEADERS,
    "unix": {"tls": "", **_NO_HEADERS},
}
"""Key, or scheme of a URL -> keys and words that do not go with it -> what to say of them besides."""


SERVER_URL = Text(
    "a URL: http://, https://, ws:// or wss:// and a host; tcp:// or tls:// and HOST:PORT; or unix:PATH",
    r"(?:https?|wss?)://[^\s\x00-\x1f/?#]+(?:[/?][^\s\x00-\x1f#]*)?"
    r"|(?:tcp|tls)://[^\s\x00-\x1f/?#@]+:[0-9]+/?|unix:[^\x00]*[^\x00/]",
    lambda text: text if text.startswith("unix:") else read_url(text),
)
"""A URL without a fragment, with a scheme from the table above."""


def _find_strangers(settings: Mapping[str, Any], words: Mapping[str, object], url: object) -> Iterator[str]:
    """Yields every mistake about the settings of a server at `url`, which is None for a program.

    `words`: transports that a host app names, by key.
    """
    present = "command" if url is None else "url"
    scheme = url.partition(":")[0].lower() if isinstance(url, str) else ""  # none before expansion, perhaps
    start = "unix:" if scheme == "unix" else f"{scheme}://"
    kind = f"{'an' if scheme.startswith('http') else 'a'} {start} URL"
    given = [(key, f"`{key}`") for key in settings]
    given += [(str(word), f'`{key}` is "{word}", which') for key, word in words.items()]
    for key, what in ((present, f"`{present}`"), (scheme, kind)):
        strangers = _STRANGERS.get(key, {})
        for name, text in given:
            if name in strangers:
                yield f"{text} does not go with {what}{strangers[name]}"
    if "oauth" in settings and "authorization" in [key.lower() for key in _table(settings.get("headers"))]:
        yield "`oauth` and a header `Authorization` are given; remove one of them"


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# The keys of one server.

VARIABLE_NAME = Text("the name of an environment variable", r"[^=\x00]+")
Url: TypeAlias = Annotated[str, SERVER_URL]

NEITHER = "expected `command` (a program to start) or `url` (the endpoint of a running server)"


# Tables inherit from several bases, which attrs' slots do not allow.
@frozen(kw_only=True, slots=False)
class UpstreamSettings(Handling):
    """What mcpmux has to know about a server besides how to reach it."""

    enabled: Annotated[bool, Flag()] = True
    """`false` has the same effect as removing the upstream from the file."""
    env_file: Filled | None = None
    """A file of `NAME=value` lines: variables of the program, and for `${NAME}` in this table. They win over
    others; `env` wins over them. The path is relative to the folder of the configuration.
    """
    prefix: Annotated[str, PREFIX] | None = None
    """Marks its names and URIs. Default: its name. "" means no prefix, which only one upstream may have."""
    tls: ClientTls = field(factory=ClientTls)
    """How to verify the server of an https, wss or tls URL, and what to show it."""
    proxy: Annotated[Secret, PROXY_URL] | None = None
    """HTTP proxy on the way to the URL. "" means none. Default: what variables like HTTPS_PROXY say."""
    oauth: OAuth | None = None
    """How to get tokens for the server of a URL from its authorization server. {} finds out everything."""


class ToolNames(Text, frozen=True):
    """A list of names of tools, in which * stands for any text.

    `lists_only`: anything else is a mistake; if not, it is something of the host app's own.

    Gemini CLI also takes `name(arguments)`; the arguments are its own business.
    """

    lists_only: bool = True

    def read(self, value: object) -> tuple[str, ...] | None:
        if not isinstance(value, list):
            if self.lists_only:
                raise invalid_value("a list", value)
            return None
        return tuple(str(super(ToolNames, self).read(name)).partition("(")[0] for name in value)

    def schema(self) -> dict[str, Any]:
        listed = {"type": "array", "items": {"type": "string"}}
        return listed if self.lists_only else {}


TOOL_NAMES = ToolNames("names of tools", r"[^\x00-\x1f\x7f\ue000]+")
SOME_TOOLS = ToolNames(TOOL_NAMES.expected, TOOL_NAMES.pattern, lists_only=False)
Tools: TypeAlias = Annotated[tuple[str, ...], TOOL_NAMES]


@frozen(kw_only=True, slots=False)
class TargetKeys:
    """The keys that say which server it is. Our files and those of host apps spell them alike."""

    url_keys: ClassVar[tuple[str, ...]] = ("url",)
    ignored_keys: ClassVar[frozenset[str]] = frozenset()

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
    headers: Headers = field(factory=dict)
    """Headers to send with every HTTP request, or with the WebSocket handshake."""


@frozen(kw_only=True, slots=False)
class UpstreamTable(TargetKeys, UpstreamSettings):
    """A server: a program to start (`command`) or the endpoint of a running server (`url`)."""

    transport: Transport = "auto"
    """What the URL speaks: `streamable` HTTP, or `sse` for HTTP+SSE of 2024-11-05. `auto` finds out."""
    include_tools: Tools | None = None
    """The only tools to offer, by the names that the server gives them."""
    exclude_tools: Tools = ()
    """Tools not to offer, even if they are included."""


# Servers in the files of host apps.

TRANSPORTS = Choice((*_STDIO, *_HTTP, *_WEBSOCKET), '"stdio", "http", "sse" or "websocket"')

# Keys in the entry of a server that are for the host app itself.
# fmt: off
HOST_APP_KEYS = frozenset({
    # which tools to use without asking
    "allowedTools", "alwaysAllow", "autoApprove", "filterMapping", "trust",
    # how it starts and watches servers
    "alwaysLoad", "autoStart", "dev", "initTimeout", "keep_alive", "sandbox", "sandboxEnabled",
    "sse_read_timeout", "startupTimeout", "start_on_launch", "timeout", "watchPaths",
    # how it logs in to the server
    "auth", "authProviderType", "authentication", "headersHelper", "oauth", "oauthScopes", "scopes",
    "targetAudience", "targetServiceAccount",
    # what it shows to people
    "description", "gallery", "icon", "iconUrl", "id", "metadata", "name", "source", "version",
})
# fmt: on


@frozen(kw_only=True, slots=False)
class HostEntry(TargetKeys):
    """A server in the file of a host app."""

    url_keys: ClassVar[tuple[str, ...]] = ("url", "serverUrl", "httpUrl")
    ignored_keys: ClassVar[frozenset[str]] = HOST_APP_KEYS

    type: Annotated[str, TRANSPORTS] | None = None
    """The transport. Without it `command` or `url` decides."""
    transport: Annotated[str, TRANSPORTS] | None = None
    """Another spelling of `type`."""
    envFile: Filled | None = None  # noqa: N815  # host apps' spelling
    """A file of `NAME=value` lines. Variables in `env` win over it."""
    serverUrl: Url | None = None  # noqa: N815  # host apps' spelling
    """Another spelling of `url`."""
    httpUrl: Url | None = None  # noqa: N815  # host apps' spelling
    """Another spelling of `url`."""
    disabled: Annotated[bool, Flag()] = False
    """`true` has the same effect as removing the server from the file."""
    enabled: Annotated[bool, Flag()] = True
    """`false` has the same effect as removing the server from the file."""
    includeTools: Tools | None = None  # noqa: N815  # host apps' spelling
    """The only tools to offer, by the names that the server gives them. Gemini CLI and Amp have this."""
    enabledTools: Tools | None = None  # noqa: N815  # host apps' spelling
    """Another spelling of `includeTools`."""
    tools: Annotated[tuple[str, ...], SOME_TOOLS] | None = None
    """A list is another spelling of `includeTools`, which GitHub Copilot has."""
    excludeTools: Tools | None = None  # noqa: N815  # host apps' spelling
    """Tools not to offer, even if they are included. Gemini CLI has this."""
    disabledTools: Tools | None = None  # noqa: N815  # host apps' spelling
    """Another spelling of `excludeTools`, which Roo Code, Kiro and Windsurf have."""
    mcpmux: UpstreamSettings = field(factory=UpstreamSettings)
    """Settings that only mcpmux reads, such as the prefix and timeouts."""


Table: TypeAlias = type[UpstreamTable] | type[HostEntry]


def make_target(
    url: str, headers: Headers | None = None, transport: str = "auto", ours: UpstreamSettings | None = None
) -> Http | WebSocket | Tcp | Unix:
    """The server at `url`, which SERVER_URL has read. Settings that do not go with it are ignored."""
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
    entry: UpstreamTable | HostEntry, name: str, enabled: bool, variables: Mapping[str, Secret]
) -> Upstream:
    """The upstream of a table whose keys do not clash. `variables`: of its `env_file`."""
    ours: UpstreamSettings
    if isinstance(entry, UpstreamTable):
        ours, url, env, transport = entry, entry.url, entry.env, entry.transport
    else:
        ours, url = entry.mcpmux, entry.url or entry.serverUrl or entry.httpUrl
        env = entry.env
        transport = "sse" if "sse" in (entry.type, entry.transport) else "auto"
    target: Target
    if url is not None:
        target = make_target(url, entry.headers, transport, ours)
    else:
        assert entry.command is not None
        target = Stdio(entry.command, entry.args, {**variables, **env}, entry.cwd)
    prefix = name if ours.prefix is None else ours.prefix
    handling = {key.name: getattr(ours, key.name) for key in attrs.fields(Handling)}
    return Upstream(
        name=name, target=target, enabled=enabled, prefix=prefix, tools=read_tools(entry), **handling
    )


def read_tools(entry: UpstreamTable | HostEntry) -> ToolSelection:
    """Which tools to offer."""
    if isinstance(entry, UpstreamTable):
        return ToolSelection(entry.include_tools, entry.exclude_tools)
    included = [names for names in (entry.includeTools, entry.enabledTools, entry.tools) if names is not None]
    excluded = (*(entry.excludeTools or ()), *(entry.disabledTools or ()))
    return ToolSelection(included[0] if included else None, excluded)


INCLUDING = ("includeTools", "enabledTools", "tools")


def find_clashes(table: Table, raw: Mapping[str, Any]) -> Iterator[str]:
    """Yields every mistake about keys of a table that do not go together."""
    urls = [key for key in table.url_keys if key in raw]
    if "command" in raw and urls:
        yield "expected `command` or `url`, got both"
    elif len(urls) > 1:
        yield "expected one of " + ", ".join(f"`{key}`" for key in urls)
    elif urls or "command" in raw:
        settings, words = raw, {}
        including = [key for key in INCLUDING if isinstance(raw.get(key), list)] if table is HostEntry else []
        if len(including) > 1:
            yield "expected one of " + ", ".join(f"`{key}`" for key in including)
        if table is HostEntry:
            words = {key: raw[key] for key in ("type", "transport") if key in raw}
            # Unlike our own tables, an entry may have `env` beside a URL: host apps write such entries.
            beside = {"headers": raw["headers"]} if urls and "headers" in raw else {}
            settings = {**_table(raw.get(MCPMUX)), **beside}
        yield from _find_strangers(settings, words, raw[urls[0]] if urls else None)
    else:
        known = {key.name for key in attrs.fields(table)} | table.ignored_keys
        if not any(closest(key.lower(), ("command", "url")) for key in raw if key not in known):
            yield NEITHER  # otherwise the mistake about the misspelt key says enough


# The parts of a document: the servers, wherever they are, and our settings.


@frozen(repr=False)
class Entry:
    """One server in the document, not yet read."""

    path: KeyPath
    name: str
    table: Table
    raw: object

    @property
    def is_disabled(self) -> bool:
        """Whether the entry turns its server off, so that mistakes in it do no harm."""
        raw = _table(self.raw)
        if raw.get("enabled") is False or self.table is UpstreamTable:
            return raw.get("enabled") is False
        return raw.get("disabled") is True or _table(raw.get(MCPMUX)).get("enabled") is False


def lay_out(
    table: Mapping[str, Any], report: Report, *, is_json: bool
) -> tuple[list[Entry], object, KeyPath]:
    """The servers in the document `table`, our settings, and where those are: () for the document itself.

    Mistakes about the outermost tables go to `report`.
    """
    places = _find_servers(table) if is_json else {}
    if not places:
        servers = _items(table.get(UPSTREAMS, {}), (UPSTREAMS,), report)
        for name in servers:
            if not is_name(name):
                expected = f'a name of a-z, 0-9, "." and "-" such as `{derive_name(name)}`'
                report.add((UPSTREAMS, name), f"expected {expected}, at most 32 characters")
        entries = [Entry((UPSTREAMS, name), name, UpstreamTable, raw) for name, raw in servers.items()]
        return entries, table, ()
    for key in table:  # all other keys belong to the host app
        if key != MCPMUX and closest(key.lower(), [MCPMUX], 0.8):
            report.add((key,), f"unknown key; did you mean `{MCPMUX}`?")
    found = {
        (*place, key): raw for place in places for key, raw in _items(places[place], place, report).items()
    }
    names = derive_names([path[-1] for path in found])
    entries = [Entry(path, name, HostEntry, found[path]) for name, path in zip(names, found, strict=True)]
    return entries, table.get(MCPMUX, {}), (MCPMUX,)


def _find_servers(document: Mapping[str, Any]) -> dict[tuple[str, ...], object]:
    """What is in the places of the document where a host app keeps servers, by key path."""
    found: dict[tuple[str, ...], object] = {}
    for place in SERVER_PLACES:
        node: object = document
        for key in place:
            node = _table(node).get(key)
        if node is not None:
            found[place] = node
    return found


def _items(table: object, path: KeyPath, report: Report) -> Mapping[str, object]:
    if not isinstance(table, Mapping):
        report.add(path, f"expected a table of upstreams, got {sort_of(table)}")
    return _table(table)
