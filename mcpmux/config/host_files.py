"""The JSON that host apps keep their servers in: `mcpServers`, or `servers` as VS Code has it.

Such a file is used unchanged. Keys that mean something to a host app alone are accepted and not read;
our own settings stand in `"mcpmux"` objects, beside the servers and in each server's entry, which
host apps ignore in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from attrs import field, frozen

from mcpmux.config.document import BOTH, NEITHER, TargetKeys, UpstreamSettings, Url, find_network_clashes
from mcpmux.config.expansion import Secret, read_env_file
from mcpmux.config.model import Stdio, Upstream
from mcpmux.config.report import Unfit, closest
from mcpmux.config.scalars import Choice, Flag, Text, about
from mcpmux.config.target import make_target

# Where the servers stand: Claude Desktop, Cursor and most others; VS Code's mcp.json; its settings.json.
SERVER_PLACES: tuple[tuple[str, ...], ...] = (("mcpServers",), ("servers",), ("mcp", "servers"))

_STDIO_WORDS = ("stdio", "local")
_HTTP_WORDS = ("http", "streamable-http", "streamableHttp", "streamable_http")
_SSE_WORD = "sse"
_WEBSOCKET_WORDS = ("ws", "websocket")
_URL_KEYS = ("url", "serverUrl", "httpUrl")
_TRANSPORT_KEYS = ("type", "transport")
_EXPECTED = '"stdio", "http", "sse" or "websocket"'

# Keys of a server's entry with which a host app steers itself.
# fmt: off
HOST_APP_KEYS = frozenset({
    # which tools, and which of them without asking
    "allowedTools", "alwaysAllow", "autoApprove", "disabledTools", "enabledTools", "excludeTools",
    "filterMapping", "includeTools", "tools", "trust",
    # its own way of starting and watching servers
    "alwaysLoad", "autoStart", "dev", "initTimeout", "keep_alive", "sandbox", "sandboxEnabled",
    "sse_read_timeout", "startupTimeout", "start_on_launch", "timeout", "watchPaths",
    # its login to the server
    "auth", "authProviderType", "authentication", "headersHelper", "oauth", "oauthScopes", "scopes",
    "targetAudience", "targetServiceAccount",
    # what it shows to people
    "description", "gallery", "icon", "iconUrl", "id", "metadata", "name", "source", "version",
})
# fmt: on


class Transport(Choice, frozen=True):
    """The transport of a server, in the spellings of the host apps."""

    words: tuple[str, ...] = _STDIO_WORDS + _HTTP_WORDS + (_SSE_WORD,) + _WEBSOCKET_WORDS

    def read(self, value: object) -> str:
        if value not in self.words:
            raise Unfit(f"expected {_EXPECTED}")
        return str(value)


class EnvFile(Text, frozen=True):
    """The path of a `.env` file, which is read into its variables."""

    expected: str = "the path of a file"
    pattern: str = r"[^\x00]+"

    def read(self, value: object) -> dict[str, Secret]:
        return read_env_file(super().read(value))


@frozen(kw_only=True, slots=False)
class HostEntry(TargetKeys):
    """A server as a host app has it."""

    ignored_keys: ClassVar[frozenset[str]] = HOST_APP_KEYS

    type: Annotated[str, Transport()] | None = field(
        default=None, metadata=about("The transport; without it `command` or `url` decides.")
    )
    transport: Annotated[str, Transport()] | None = field(
        default=None, metadata=about("Another spelling of `type`.")
    )
    envFile: Annotated[Mapping[str, Secret], EnvFile()] = field(  # noqa: N815  # the host apps' spelling
        factory=dict, metadata=about("A file of `NAME=value` lines; variables in `env` win over it.")
    )
    serverUrl: Url | None = field(default=None, metadata=about("Another spelling of `url`."))  # noqa: N815
    httpUrl: Url | None = field(default=None, metadata=about("Another spelling of `url`."))  # noqa: N815
    disabled: Annotated[bool, Flag()] = field(
        default=False, metadata=about("`true` is as if the server were not in the file.")
    )
    enabled: Annotated[bool, Flag()] = field(
        default=True, metadata=about("`false` is as if the server were not in the file.")
    )
    mcpmux: UpstreamSettings = field(
        factory=UpstreamSettings, metadata=about("What mcpmux alone reads: prefix and deadlines.")
    )

    @classmethod
    def is_disabled(cls, raw: Mapping[str, Any]) -> bool:
        ours = raw.get("mcpmux")
        return (
            raw.get("disabled") is True
            or raw.get("enabled") is False
            or (isinstance(ours, Mapping) and ours.get("enabled") is False)
        )

    @classmethod
    def find_clashes(cls, raw: Mapping[str, Any]) -> Iterator[str]:
        """Every mistake about which keys stand together.

        Unlike our own tables this one may hold `env` beside `url`: host apps write such entries.
        """
        urls = [key for key in _URL_KEYS if key in raw]
        if "command" in raw and urls:
            yield BOTH
        elif "command" not in raw and not urls:
            yield NEITHER
        elif len(urls) > 1:
            yield "expected one of " + ", ".join(f"`{key}`" for key in urls)
        else:
            yield from _find_wrong_transport(raw)
            ours = raw.get("mcpmux")
            settings = {**ours} if isinstance(ours, Mapping) else {}
            if urls and "headers" in raw:
                settings["headers"] = raw["headers"]
            yield from find_network_clashes(settings, raw[urls[0]] if urls else None)

    def build(self, name: str, enabled: bool) -> Upstream:
        """The upstream. The keys do not clash."""
        url = self.url or self.serverUrl or self.httpUrl
        if url is not None:
            transport = _SSE_WORD if _SSE_WORD in (self.type, self.transport) else "auto"
            target = make_target(
                url, self.headers, self.mcpmux.tls, self.mcpmux.proxy, transport, self.mcpmux.oauth
            )
            return self.mcpmux.make_upstream(name, target, enabled)
        assert self.command is not None
        env = {**self.envFile, **self.env}
        return self.mcpmux.make_upstream(name, Stdio(self.command, self.args, env, self.cwd), enabled)


def _find_wrong_transport(raw: Mapping[str, Any]) -> Iterator[str]:
    """The transport keys that contradict the one key out of `command` and the URL's that is there."""
    url = next((raw[key] for key in _URL_KEYS if key in raw), None)
    scheme = url.partition(":")[0] if isinstance(url, str) else ""
    wrong = dict.fromkeys(_STDIO_WORDS, "`url`")
    if "command" in raw:
        wrong = dict.fromkeys((*_HTTP_WORDS, _SSE_WORD, *_WEBSOCKET_WORDS), "`command`")
    elif scheme in ("ws", "wss"):
        wrong |= dict.fromkeys((*_HTTP_WORDS, _SSE_WORD), f"a {scheme}:// URL")
    elif scheme in ("http", "https"):
        wrong |= dict.fromkeys(_WEBSOCKET_WORDS, f"an {scheme}:// URL; expected ws:// or wss://")
    for key in _TRANSPORT_KEYS:
        word = raw.get(key)
        if isinstance(word, str) and word in wrong:
            yield f'`{key}` is "{word}", which does not go with {wrong[word]}'


def find_servers(document: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every place in the document where a host app keeps servers, as (key path, what stands there)."""
    for place in SERVER_PLACES:
        node: object = document
        for key in place:
            node = node.get(key) if isinstance(node, Mapping) else None
        if node is not None:
            yield place, node


def find_misspelled(document: Mapping[str, Any]) -> Iterator[str]:
    """Top-level keys that look like `mcpmux` and are not; the other keys there belong to the host app."""
    for key in document:
        if key != "mcpmux" and closest(key.lower(), ["mcpmux"], 0.8):
            yield key
