"""The tables of our own file format, and how the table of an upstream becomes an Upstream.

The classes mirror the files: their attributes are the keys. Keys that name one thing together
(`command` and `args`, `url` and `headers`) are judged here, where all of them are seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeAlias

import attrs
from attrs import field, frozen

from mcpmux.config.auth import OAuth
from mcpmux.config.expansion import Secret
from mcpmux.config.listener import ClientTls
from mcpmux.config.model import Handling, Prefix, Stdio, Target, Transport, Upstream
from mcpmux.config.report import closest
from mcpmux.config.scalars import (
    HEADER_NAME,
    HEADER_VALUE,
    EnvironmentValue,
    Flag,
    ProxyUrl,
    Text,
    about,
)
from mcpmux.config.target import ServerUrl, find_url_clashes, make_target

Filled: TypeAlias = Annotated[str, Text("text that is not empty", r"[^\x00]+")]
Argument: TypeAlias = Annotated[str, Text()]
VariableName: TypeAlias = Annotated[str, Text("the name of an environment variable", r"[^=\x00]+")]
VariableValue: TypeAlias = Annotated[Secret, EnvironmentValue()]
HeaderName: TypeAlias = Annotated[str, HEADER_NAME]
HeaderValue: TypeAlias = Annotated[Secret, HEADER_VALUE]
Url: TypeAlias = Annotated[str, ServerUrl()]
Proxy: TypeAlias = Annotated[Secret, ProxyUrl()]

NEITHER = "expected `command` (a program to start) or `url` (the endpoint of a running server)"
BOTH = "expected `command` or `url`, got both"


# Tables are combined from several bases, which attrs' slots do not allow.
@frozen(kw_only=True, slots=False)
class UpstreamSettings(Handling):
    """What mcpmux wants to know of a server besides how to reach it."""

    enabled: Annotated[bool, Flag()] = field(
        default=True, metadata=about("`false` is as if the upstream were not in the file.")
    )
    prefix: Prefix | None = field(
        default=None,
        metadata=about(
            'Marks its names and URIs; the default is its name, and "" (for one upstream only) is none.'
        ),
    )

    tls: ClientTls = field(
        factory=ClientTls,
        metadata=about("How the server of an https, wss or tls URL is verified, and what it is shown."),
    )
    proxy: Proxy | None = field(
        default=None,
        metadata=about(
            'HTTP proxy on the way to the URL; "" is none. Default: as HTTPS_PROXY and the like say.'
        ),
    )

    oauth: OAuth | None = field(
        default=None,
        metadata=about(
            "Tokens for the server of a URL, from its authorization server; {} finds out all by itself."
        ),
    )

    def make_upstream(self, name: str, target: Target, enabled: bool) -> Upstream:
        handling = {key.name: getattr(self, key.name) for key in attrs.fields(Handling)}
        prefix = name if self.prefix is None else self.prefix
        return Upstream(name=name, target=target, enabled=enabled, prefix=prefix, **handling)


@frozen(kw_only=True, slots=False)
class TargetKeys:
    """The keys that say which server it is, spelled alike in our files and in those of host apps."""

    command: Filled | None = field(default=None, metadata=about("Program to start; it speaks MCP on stdio."))
    args: tuple[Argument, ...] = field(default=(), metadata=about("Arguments of the program."))
    env: Mapping[VariableName, VariableValue] = field(
        factory=dict, metadata=about("Environment variables of the program, besides those that it inherits.")
    )
    cwd: Filled | None = field(default=None, metadata=about("Working directory of the program."))
    url: Url | None = field(
        default=None,
        metadata=about("Where a running server is: http(s), ws(s), tcp or tls://HOST:PORT, unix:PATH."),
    )
    headers: Mapping[HeaderName, HeaderValue] = field(
        factory=dict,
        metadata=about("Headers sent with every request over HTTP, or with the WebSocket handshake."),
    )


@frozen(kw_only=True, slots=False)
class UpstreamTable(TargetKeys, UpstreamSettings):
    """A server: a program to start (`command`) or the endpoint of a running one (`url`)."""

    transport: Transport = field(
        default="auto",
        metadata=about(
            "What the URL speaks: `streamable` HTTP, or `sse` for HTTP+SSE of 2024-11-05. `auto` finds out."
        ),
    )

    @classmethod
    def is_disabled(cls, raw: Mapping[str, Any]) -> bool:
        return raw.get("enabled") is False

    @classmethod
    def find_clashes(cls, raw: Mapping[str, Any]) -> Iterator[str]:
        """Every mistake about which keys stand together."""
        if "command" in raw and "url" in raw:
            yield BOTH
            return
        if "command" not in raw and "url" not in raw:
            known = {key.name for key in attrs.fields(cls)}
            if not any(closest(key.lower(), {"command", "url"}) for key in raw if key not in known):
                yield NEITHER  # else it is told what the key is called
            return
        present, strangers = (
            ("command", ("headers", "transport")) if "command" in raw else ("url", ("args", "env", "cwd"))
        )
        for key in strangers:
            if key in raw:
                yield f"`{key}` does not go with `{present}`"
        yield from find_network_clashes(raw, raw.get("url"))

    def build(self, name: str, enabled: bool) -> Upstream:
        """The upstream. The keys do not clash."""
        if self.command is not None:
            return self.make_upstream(name, Stdio(self.command, self.args, self.env, self.cwd), enabled)
        assert self.url is not None
        target = make_target(self.url, self.headers, self.tls, self.proxy, self.transport, self.oauth)
        return self.make_upstream(name, target, enabled)


def find_network_clashes(settings: Mapping[str, Any], url: object) -> Iterator[str]:
    """Every mistake about the network settings of a server at `url`, which is None for a program.

    A URL that only expansion completes is judged when it is used.
    """
    for key in ("tls", "proxy", "oauth"):
        if key in settings and url is None:
            yield f"`{key}` does not go with `command`"
    yield from find_url_clashes(settings, url)
