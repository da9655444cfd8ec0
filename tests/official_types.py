"""The official Python types of MCP as judges, for machines without the official schemas.

They know which methods a revision has, but judge every legacy revision by the shapes of 2025-11-25, let
unknown members pass, and take any string for a URI; the one that a request is about is judged here.
"""

from __future__ import annotations

from typing import Any

from mcp_types import methods
from pydantic import ValidationError

from tests.official_schema import is_uri

_CALLS = {
    "ClientRequest": methods.validate_client_request,
    "ServerRequest": methods.parse_server_request,
    "ClientNotification": methods.validate_client_notification,
    "ServerNotification": methods.parse_server_notification,
}


class OfficialTypes:
    """One revision, with the interface of `OfficialSchema`."""

    def __init__(self, revision: str) -> None:
        self._revision = revision

    def check_call(self, union: str, message: dict[str, Any]) -> None:
        """See `OfficialSchema`."""
        params = message.get("params") or {}
        assert "uri" not in params or is_uri(params["uri"]), f"{params['uri']!r} is not a URI"
        self._judge(_CALLS[union], union, message["method"], message.get("params"))

    def check_result(self, method: str, result: dict[str, Any]) -> None:
        """See `OfficialSchema`."""
        by_server = (method, self._revision) in methods.SERVER_RESULTS
        judge = methods.validate_server_result if by_server else methods.validate_client_result
        self._judge(judge, "result", method, result)

    def check_error(self, message: dict[str, Any]) -> None:
        """Check nothing more, as the types know no error by its code."""

    def _judge(self, judge: Any, what: str, method: str, payload: Any) -> None:
        try:
            judge(method, self._revision, payload)
        except KeyError:
            raise AssertionError(f"{method!r} is no {what} of {self._revision}") from None
        except ValidationError as error:
            raise AssertionError(f"not a {what} of {method}: {error}") from None
