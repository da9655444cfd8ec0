"""What a span tells: its name and attributes, after the semantic conventions for MCP. See `spans`.

A stranger's text passes the Redactor and is cut. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call
from mcpmux.protocol.revisions import SUPPORTED
from mcpmux.runtime.tap import Leg
from mcpmux.traffic.capture.message import fingerprint
from mcpmux.traffic.telemetry.outcome_label import METHODS, TOOL_ERROR

TEXT_LIMIT = 2048  # characters of a URI or a message
NAME_LIMIT = 200  # characters of a name, method or id
NAMES_MOST = 1000  # tools and prompts that metrics tell apart
NAMES_FAILED = 100  # of those that have only failed until now

OTHER = "_OTHER"
"""Stands for what has too many values, as the conventions spell it."""

_TRANSPORTS = {
    "stdio": {"network.transport": "pipe"},
    "http": {"network.transport": "tcp", "network.protocol.name": "http"},
    "sse": {"network.transport": "tcp", "network.protocol.name": "http"},
    "websocket": {"network.transport": "tcp", "network.protocol.name": "websocket"},
    "tcp": {"network.transport": "tcp"},
    "unix": {"network.transport": "unix"},
}
_NAMED = {m.TOOLS_CALL: "gen_ai.tool.name", m.PROMPTS_GET: "gen_ai.prompt.name"}
_WITH_URI = frozenset({m.RESOURCES_READ, m.RESOURCES_SUBSCRIBE, m.RESOURCES_UNSUBSCRIBE})

_OURS = METHODS | set(SUPPORTED)
"""Words of the protocol, which need no look."""

_MEASURED = frozenset(
    {"mcp.protocol.version", "network.transport", "network.protocol.name", "mcpmux.upstream"}
    | {"server.address", "server.port", "gen_ai.operation.name"}
)

Attributes = dict[str, str | int]
Clean = Callable[[str], str]
"""Takes what is secret out of a stranger's text."""


class Server(NamedTuple):
    """Where an upstream is, for `server.address` and `server.port`."""

    address: str
    port: int | None


class Describer:
    """Describes calls. `servers`: where upstreams are, by name."""

    def __init__(self, clean: Clean, servers: Mapping[str, Server]) -> None:
        self._clean = clean
        self.servers = servers  # replaced as a whole when the set of upstreams changes

    def __repr__(self) -> str:
        return f"<Describer of {len(self.servers)} servers>"

    def name(self, call: Call) -> str:
        """The span's name. A URI is no part of it: there are too many."""
        if call.method not in METHODS:
            return OTHER
        target = call.text("name") if call.method in _NAMED else None
        return f"{call.method} {self.text(target, NAME_LIMIT)}" if target else call.method

    def attributes(self, leg: Leg, call: Call) -> Attributes:
        """Of a request on a leg."""
        found: Attributes = {"mcp.method.name": self.text(call.method, NAME_LIMIT)}
        found |= _TRANSPORTS.get(leg.transport, {})
        found |= self.of_session(leg)
        name = call.text("name") if call.method in _NAMED else None
        if name is not None:
            found[_NAMED[call.method]] = self.text(name, NAME_LIMIT)
        if call.method == m.TOOLS_CALL:
            found["gen_ai.operation.name"] = "execute_tool"
        uri = call.text("uri") if call.method in _WITH_URI else None
        if uri is not None:
            found["mcp.resource.uri"] = self.text(uri, TEXT_LIMIT)
        if leg.upstream is not None:
            found |= self._whereabouts(leg.upstream)
        return found

    def of_session(self, leg: Leg) -> Attributes:
        """What is agreed on a leg; an exchange may be what agrees it."""
        found: Attributes = {}
        if leg.revision is not None:
            found["mcp.protocol.version"] = self.text(leg.revision, NAME_LIMIT)
        if leg.session is not None:  # whoever knows it can use it: never as it is
            found["mcp.session.id"] = fingerprint(leg.session)
        return found

    def _whereabouts(self, upstream: str) -> Attributes:
        found: Attributes = {"mcpmux.upstream": upstream}
        if (server := self.servers.get(upstream)) is not None:
            found["server.address"] = server.address
            if server.port is not None:
                found["server.port"] = server.port
        return found

    def text(self, text: str, limit: int) -> str:
        """A stranger's text, fit to be sent."""
        if text in _OURS:
            return text
        text = self._clean(text).encode("utf-8", "replace").decode()
        return text if len(text) <= limit else text[: limit - 1] + "…"


class Names:
    """Which tools and prompts metrics tell apart: a bounded number of them.

    A server that answers anything it is asked, or says of every name that its tool has failed, would let a
    client invent as many as it likes. Names that were only ever said to have failed have less room.
    """

    def __init__(self, most: int = NAMES_MOST, failed: int = NAMES_FAILED) -> None:
        self._most = most
        self._failed = failed
        self._known: set[str | int] = set()
        self._doubtful: set[str | int] = set()

    def __repr__(self) -> str:
        return f"<Names {len(self._known)} known, {len(self._doubtful)} doubtful>"

    def allow(self, name: str | int, error: str | None) -> bool:
        """Whether a call of that name, which ended so, may be told with it."""
        if name in self._known:
            return True
        if error is None and len(self._known) < self._most:
            self._known.add(name)
            self._doubtful.discard(name)
            return True
        if error == TOOL_ERROR and len(self._doubtful) < self._failed:
            self._doubtful.add(name)
        return name in self._doubtful


def measured(attributes: Attributes, error: str | None, names: Names) -> Attributes:
    """The attributes of a span that a metric may have, too: those with few values."""
    found = {key: value for key, value in attributes.items() if key in _MEASURED}
    method = attributes["mcp.method.name"]
    found["mcp.method.name"] = method if method in METHODS else OTHER
    if error is None or error == TOOL_ERROR:  # else the name may be invented
        for key in _NAMED.values():
            if key in attributes and names.allow(attributes[key], error):
                found[key] = attributes[key]
    if error is not None:
        found["error.type"] = error
    return found
