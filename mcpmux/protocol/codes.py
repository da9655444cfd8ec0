"""Error codes, in one place.

Source: JSON-RPC 2.0 section 5.1; "Error Codes" in the Base Protocol overview, revision 2026-07-28;
`server/resources` (error handling) of 2025-11-25 and earlier for -32002; 2025-11-25 for -32042.
"""

from __future__ import annotations

from typing import Final

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
SERVER_ERROR: Final = -32000  # servers' own; SDKs say it to a request without a session
# Servers' own; the TypeScript SDK says it of an unknown session.
SESSION_NOT_FOUND: Final = -32001

# 2026-07-28
HEADER_MISMATCH: Final = -32020
MISSING_CLIENT_CAPABILITY: Final = -32021
UNSUPPORTED_VERSION: Final = -32022

# 2025-11-25 and earlier; never sent to a modern peer
RESOURCE_NOT_FOUND: Final = -32002
URL_ELICITATION_REQUIRED: Final = -32042

RESERVED: Final = range(-32768, -31999)
"""JSON-RPC's and MCP's; every other code is the server's own."""

MODERN_ONLY: Final = frozenset({HEADER_MISMATCH, MISSING_CLIENT_CAPABILITY, UNSUPPORTED_VERSION})

# Outside the range that JSON-RPC and MCP reserve, as revision 2026-07-28 asks for codes of one's own.
# An upstream cannot be reached, or died while it worked on the request.
UPSTREAM_UNAVAILABLE: Final = -31001
# An upstream did not answer within its deadline.
UPSTREAM_TIMEOUT: Final = -31002
# Too much is in flight; nothing was done, so the same request can be sent again.
BUSY: Final = -31003

OWN: Final = frozenset({UPSTREAM_UNAVAILABLE, UPSTREAM_TIMEOUT, BUSY})
"""Ours, which an upstream that is a mcpmux says, too."""
