"""The two layouts of a document: our own, and the JSON in which host apps keep their servers.

Ours has `upstreams` beside the settings. A host app's file has its servers in `mcpServers`, or in `servers`
as VS Code does, and is used unchanged: keys that only mean something to a host app are not read. Our settings
are in `"mcpmux"` objects, beside the servers and in the entry of each server, which host apps ignore.

The classes mirror the files: their attributes are the keys. Which keys may be used together is checked here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar, TypeAlias
from urllib.parse import urlsplit

import attrs
from attrs import field, frozen

from mcpmux.config.auth import OAuth
from mcpmux.config.expansion import Secret, read_env_file
from mcpmux.config.listener import ClientTls
from mcpmux.config.model import (
    PREFIX,
    Handling,
    Http,
    Stdio,
    Target,
    Tcp,
    Transport,
    Unix,
    Upstream,
    WebSocket,
)
from mcpmux.config.report import KeyPath, Report, closest, sort_of
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

_STRANGERS: Mapping[str, tuple[str, ...]] = {
    "command": ("headers", "transport", "tls", "proxy", "oauth"),
    "url": ("args", "env", "cwd"),
    **dict.fromkeys(("ws", "wss"), ("proxy", "transport")),
    **dict.fromkeys(("tcp", "tls", "unix"), ("headers", "oauth", "proxy", "transport")),
}
"""Key, or scheme of a URL -> keys that do not go with it."""

_INSTEAD = {"http": "; expected https://", "ws": "; expected wss://", "tcp": "; expected tls://", "unix": ""}
"""Scheme without TLS -> what to say when there are settings of TLS."""


SERVER_URL = Text(
    "a URL: http://, https://, ws:// or wss:// and a host; tcp:// or tls:// and HOST:PORT; or unix:PATH",
    r"(?:https?|wss?)://[^\s\x00-\x1f/?#]+(?:[/?][^\s\x00-\x1f#]*)?"
    r"|(?:tcp|tls)://[^\s\x00-\x1f/?#@]+:[0-9]+/?|unix:[^\x00]*[^\x00/]",
    lambda text: text if text.startswith("unix:") else read_url(text),
)
"""A URL without a fragment, with a scheme from the table above."""


def make_target(
    url: str,
    headers: Mapping[str, Secret] | None = None,
    tls: ClientTls | None = None,
    proxy: Secret | None = None,
    transport: str = "auto",
    oauth: OAuth | None = None,
) -> Http | WebSocket | Tcp | Unix:
    """The server at `url`, which SERVER_URL has read. Settings that do not go with it are ignored."""
    tls = tls or ClientTls()
    scheme, parts = url.partition(":")[0], urlsplit(url)
    if scheme == "unix":
        return Unix(re.sub(r"^unix:(?://(?=/))?", "", url))
    if scheme in ("tcp", "tls"):
        assert parts.hostname is not None and parts.port is not None
        return Tcp(parts.hostname, parts.port, tls if scheme == "tls" else None)
    if scheme in ("ws", "wss"):
        return WebSocket(url, headers or {}, tls, oauth)
    return Http(url, headers or {}, tls, oauth, proxy, transport)


def _find_strangers(settings: Mapping[str, Any], url: object) -> Iterator[str]:
    """Yields every mistake about the settings of a server at `url`, which is None for a program."""
    present = "command" if url is None else "url"
    scheme = url.partition(":")[0].lower() if isinstance(url, str) else ""  # none before expansion, perhaps
    start = "unix:" if scheme == "unix" else f"{scheme}://"
    kind = f"{'an' if scheme.startswith('http') else 'a'} {start} URL"
    for key, what in ((present, f"`{present}`"), (scheme, kind)):
        for stranger in filter(settings.__contains__, _STRANGERS.get(key, ())):
            yield f"`{stranger}` does not go with {what}"
    headers = settings.get("headers")
    names = [str(key).lower() for key in headers] if isinstance(headers, Mapping) else []
    if "oauth" in settings and "authorization" in names:
        yield "`oauth` and a header `Authorization` are given; remove one of them"
    if "tls" in settings and scheme in _INSTEAD:
        yield f"`tls` does not go with {kind}{_INSTEAD[scheme]}"


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
    prefix: Annotated[str, PREFIX] | None = None
    """Marks its names and URIs. Default: its name. "" means no prefix, which only one upstream may have."""
    tls: ClientTls = field(factory=ClientTls)
    """How to verify the server of an https, wss or tls URL, and what to show it."""
    proxy: Annotated[Secret, PROXY_URL] | None = None
    """HTTP proxy on the way to the URL. "" means none. Default: what variables like HTTPS_PROXY say."""
    oauth: OAuth | None = None
    """How to get tokens for the server of a URL from its authorization server. {} finds out everything."""


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


# Servers in the files of host apps.

_STDIO_WORDS = ("stdio", "local")
_HTTP_WORDS = ("http", "streamable-http", "streamableHttp", "streamable_http")
_SSE_WORD = "sse"
_WEBSOCKET_WORDS = ("ws", "websocket")
HostTransport: TypeAlias = Annotated[
    str,
    Choice(
        (*_STDIO_WORDS, *_HTTP_WORDS, _SSE_WORD, *_WEBSOCKET_WORDS), '"stdio", "http", "sse" or "websocket"'
    ),
]

# Keys in the entry of a server that are for the host app itself.
# fmt: off
HOST_APP_KEYS = frozenset({
    # which tools to use, and which of them without asking
    "allowedTools", "alwaysAllow", "autoApprove", "disabledTools", "enabledTools", "excludeTools",
    "filterMapping", "includeTools", "tools", "trust",
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


EnvFile: TypeAlias = Annotated[Mapping[str, Secret], Text("the path of a file", r"[^\x00]+", read_env_file)]


@frozen(kw_only=True, slots=False)
class HostEntry(TargetKeys):
    """A server in the file of a host app."""

    url_keys: ClassVar[tuple[str, ...]] = ("url", "serverUrl", "httpUrl")
    ignored_keys: ClassVar[frozenset[str]] = HOST_APP_KEYS

    type: HostTransport | None = None
    """The transport. Without it `command` or `url` decides."""
    transport: HostTransport | None = None
    """Another spelling of `type`."""
    envFile: EnvFile = field(factory=dict)  # noqa: N815  # host apps' spelling
    """A file of `NAME=value` lines. Variables in `env` win over it."""
    serverUrl: Url | None = None  # noqa: N815  # host apps' spelling
    """Another spelling of `url`."""
    httpUrl: Url | None = None  # noqa: N815  # host apps' spelling
    """Another spelling of `url`."""
    disabled: Annotated[bool, Flag()] = False
    """`true` has the same effect as removing the server from the file."""
    enabled: Annotated[bool, Flag()] = True
    """`false` has the same effect as removing the server from the file."""
    mcpmux: UpstreamSettings = field(factory=UpstreamSettings)
    """Settings that only mcpmux reads, such as the prefix and timeouts."""


Table: TypeAlias = type[UpstreamTable] | type[HostEntry]


def make_upstream(entry: UpstreamTable | HostEntry, name: str, enabled: bool) -> Upstream:
    """The upstream of a table whose keys do not clash."""
    ours: UpstreamSettings
    if isinstance(entry, UpstreamTable):
        ours, url, env, transport = entry, entry.url, entry.env, entry.transport
    else:
        ours, url = entry.mcpmux, entry.url or entry.serverUrl or entry.httpUrl
        env = {**entry.envFile, **entry.env}
        transport = _SSE_WORD if _SSE_WORD in (entry.type, entry.transport) else "auto"
    target: Target
    if url is not None:
        target = make_target(url, entry.headers, ours.tls, ours.proxy, transport, ours.oauth)
    else:
        assert entry.command is not None
        target = Stdio(entry.command, entry.args, env, entry.cwd)
    prefix = name if ours.prefix is None else ours.prefix
    handling = {key.name: getattr(ours, key.name) for key in attrs.fields(Handling)}
    return Upstream(name=name, target=target, enabled=enabled, prefix=prefix, **handling)


def find_clashes(table: Table, raw: Mapping[str, Any]) -> Iterator[str]:
    """Yields every mistake about keys of a table that do not go together."""
    urls = [key for key in table.url_keys if key in raw]
    if "command" in raw and urls:
        yield "expected `command` or `url`, got both"
    elif len(urls) > 1:
        yield "expected one of " + ", ".join(f"`{key}`" for key in urls)
    elif urls or "command" in raw:
        url = raw[urls[0]] if urls else None
        settings = raw
        if table is HostEntry:
            yield from _find_wrong_transport(raw, url)
            # Unlike our own tables, an entry may have `env` beside a URL: host apps write such entries.
            ours = raw.get(MCPMUX)
            settings = {**ours} if isinstance(ours, Mapping) else {}
            if urls and "headers" in raw:
                settings["headers"] = raw["headers"]
        yield from _find_strangers(settings, url)
    else:
        known = {key.name for key in attrs.fields(table)} | table.ignored_keys
        if not any(closest(key.lower(), ("command", "url")) for key in raw if key not in known):
            yield NEITHER  # otherwise the mistake about the misspelt key says enough


def _find_wrong_transport(raw: Mapping[str, Any], url: object) -> Iterator[str]:
    """Yields a mistake for each transport key that contradicts `command` or the URL."""
    scheme = url.partition(":")[0] if isinstance(url, str) else ""
    wrong = dict.fromkeys(_STDIO_WORDS, "`url`")
    if url is None:
        wrong = dict.fromkeys((*_HTTP_WORDS, _SSE_WORD, *_WEBSOCKET_WORDS), "`command`")
    elif scheme in ("ws", "wss"):
        wrong |= dict.fromkeys((*_HTTP_WORDS, _SSE_WORD), f"a {scheme}:// URL")
    elif scheme in ("http", "https"):
        wrong |= dict.fromkeys(_WEBSOCKET_WORDS, f"an {scheme}:// URL; expected ws:// or wss://")
    for key in ("type", "transport"):
        word = raw.get(key)
        if isinstance(word, str) and word in wrong:
            yield f'`{key}` is "{word}", which does not go with {wrong[word]}'


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
        raw: Mapping[str, Any] = self.raw if isinstance(self.raw, Mapping) else {}
        if self.table is UpstreamTable:
            return raw.get("enabled") is False
        ours = raw.get(MCPMUX)
        is_off = isinstance(ours, Mapping) and ours.get("enabled") is False
        return is_off or raw.get("disabled") is True or raw.get("enabled") is False


@frozen(repr=False)
class Layout:
    """The parts of a document. `other_keys` are beside the settings and are no settings."""

    entries: tuple[Entry, ...]
    settings: object
    settings_path: KeyPath = ()
    other_keys: Collection[str] = ()


def lay_out(table: Mapping[str, Any], report: Report, *, is_json: bool) -> Layout:
    """The parts of the document `table`. Mistakes about the outermost tables go to `report`."""
    if not is_json or not any(find_servers(table)):
        entries = []
        for name, raw in _items(table.get(UPSTREAMS, {}), (UPSTREAMS,), report):
            entries.append(Entry((UPSTREAMS, name), name, UpstreamTable, raw))
            if not is_name(name):
                expected = f'a name of a-z, 0-9, "." and "-" such as `{derive_name(name)}`'
                report.add((UPSTREAMS, name), f"expected {expected}, at most 32 characters")
        other_keys = {UPSTREAMS, SCHEMA}
        settings = {key: value for key, value in table.items() if key not in other_keys}
        return Layout(tuple(entries), settings, (), other_keys)
    for key in table:  # all other keys belong to the host app
        if key != MCPMUX and closest(key.lower(), [MCPMUX], 0.8):
            report.add((key,), f"unknown key; did you mean `{MCPMUX}`?")
    servers = [
        ((*place, key), raw)
        for place, found in find_servers(table)
        for key, raw in _items(found, place, report)
    ]
    names = derive_names([path[-1] for path, _ in servers])
    entries = [Entry(path, name, HostEntry, raw) for name, (path, raw) in zip(names, servers, strict=True)]
    return Layout(tuple(entries), table.get(MCPMUX, {}), (MCPMUX,))


def find_servers(document: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yields (key path, what is there) for every place of the document where a host app keeps servers."""
    for place in SERVER_PLACES:
        node: object = document
        for key in place:
            node = node.get(key) if isinstance(node, Mapping) else None
        if node is not None:
            yield place, node


def _items(table: object, path: KeyPath, report: Report) -> Iterator[tuple[str, object]]:
    if isinstance(table, Mapping):
        yield from table.items()
    else:
        report.add(path, f"expected a table of upstreams, got {sort_of(table)}")
