"""Error codes, in one place.

Source: JSON-RPC 2.0 section 5.1; "Error Codes" in the Base Protocol overview, revision 2026-07-28;
`server/resources` (error handling) of 2025-11-25 and earlier for -32002; 2025-11-25 for -32042.
"""

from __future__ import annotations

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
SERVER_ERROR = -32000  # servers' own; SDKs say it to a request without a session
SESSION_NOT_FOUND = -32001  # servers' own; the TypeScript SDK says it of a session that it does not know

# 2026-07-28
HEADER_MISMATCH = -32020
MISSING_CLIENT_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022

# 2025-11-25 and earlier; never sent to a modern peer
RESOURCE_NOT_FOUND = -32002
URL_ELICITATION_REQUIRED = -32042

MODERN_ONLY = frozenset({HEADER_MISMATCH, MISSING_CLIENT_CAPABILITY, UNSUPPORTED_VERSION})

# Outside the range that JSON-RPC and MCP reserve, as revision 2026-07-28 asks for codes of one's own.
# An upstream cannot be reached, or died while it worked on the request.
UPSTREAM_UNAVAILABLE = -31001
# An upstream did not answer within its deadline.
UPSTREAM_TIMEOUT = -31002
# Too much is in flight; nothing was done, so the same request can be sent again.
BUSY = -31003
