"""Which arguments of a server's tools go into headers, as far as its lists have told.

Only for Streamable HTTP of 2026-07-28: a tool whose annotations break the rules is left out of the list, and
a call carries a `Mcp-Param-*` header for each annotated argument.

Source: "Custom Headers from Tool Parameters" in "Streamable HTTP", `server/tools`; 2026-07-28.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import decode_list, raw, text_of, value_of
from mcpmux.protocol.headers import (
    InvalidHeaderSchema,
    Path,
    check_param_headers,
    header_params,
    param_headers,
)
from mcpmux.protocol.method import TOOLS_CALL
from mcpmux.protocol.raw_json import Fields

MARK = b"x-mcp-header"
TOOL_LIMIT = 10_000  # tools remembered of one server; those beyond get no headers until the server objects


class Rejected(NamedTuple):
    """A tool that must not be offered, and why."""

    name: str
    reason: str


class ToolHeaders:
    """The annotated tools of one server. Learns from its lists, one page after the other.

    `params`: by tool, the path of the argument for each header.
    """

    def __init__(self) -> None:
        self.params: dict[str, dict[str, Path]] = {}

    def __repr__(self) -> str:
        return f"<ToolHeaders of {len(self.params)} tools>"

    def learn(self, result: Fields) -> list[Rejected]:
        """Take in a page of `tools/list` and cut the invalid tools out of it (in place)."""
        if "tools" not in result or (not self.params and MARK not in bytes(result["tools"])):
            return []
        try:
            tools = decode_list(result["tools"])
        except ValueError:
            return []
        rejected: list[Rejected] = []
        kept = [tool for tool in tools if self._take(tool, rejected)]
        if rejected:
            result["tools"] = raw(kept)
        return rejected

    def _take(self, tool: Fields, rejected: list[Rejected]) -> bool:
        name = text_of(tool.get("name")) or ""
        self.params.pop(name, None)
        schema = tool.get("inputSchema")
        if schema is None or MARK not in bytes(schema):
            return True
        try:
            params = header_params(value_of(schema))
        except InvalidHeaderSchema as error:
            rejected.append(Rejected(name, str(error)))
            return False
        if params and len(self.params) < TOOL_LIMIT:
            self.params[name] = params
        return True

    def headers_of(self, call: Call) -> tuple[tuple[str, str], ...]:
        """The `Mcp-Param-*` headers of a tool call; none for a tool that is not known to have any."""
        params = self.params.get(call.text("name") or "")
        return tuple(param_headers(params, value_of(call.params.get("arguments")))) if params else ()

    def check(self, headers: Mapping[str, str], call: Call) -> None:
        """The headers of a tool call say the same as its arguments. Raises HeaderMismatch."""
        params = self.params.get(call.text("name") or "") if call.method == TOOLS_CALL else None
        if params:
            check_param_headers(headers, params, value_of(call.params.get("arguments")))
