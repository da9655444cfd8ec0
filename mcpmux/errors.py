"""The exception tree. Imports nothing, so every room may use it.

`LocalProtocolError`: mcpmux (or its caller) broke a rule. `RemoteProtocolError`: the peer did.
`RpcError` is the only one that reaches the wire, as a JSON-RPC error object, written in one place.
"""

from __future__ import annotations

from typing import Any


class McpmuxError(Exception):
    """Root of every exception that mcpmux raises on purpose."""


class LocalProtocolError(McpmuxError):
    """Our side tried something that the protocol or the peer's state does not allow."""


class RemoteProtocolError(McpmuxError):
    """The peer sent something that the protocol does not allow."""


class MessageTooLarge(RemoteProtocolError):
    """The peer's message is longer than the limit; it was discarded, the stream goes on."""


class TransportError(McpmuxError):
    """Bytes cannot be moved: refused, reset, closed, timed out, not found."""


class ConnectFailed(TransportError):
    """Nobody there could be reached at all, so nothing was sent: refused, unknown host, no program."""


class TransportClosed(TransportError):
    """The other side is gone or has finished; nothing more can be sent or received."""


class Overdue(McpmuxError):
    """What was waited for did not come within the time that the caller gave."""


class ConfigError(McpmuxError):
    """The configuration is wrong. `problems` holds every mistake found, one sentence each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class RpcError(McpmuxError):
    """A JSON-RPC error object (JSON-RPC 2.0 section 5.1) on its way to a client.

    `code` is an integer, `message` one sentence, `data` any JSON value or None for absent.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    def __repr__(self) -> str:
        return f"RpcError({self.code}, {self.message!r}, data={self.data!r})"


class Refused(RpcError):
    """mcpmux itself does not let an exchange happen; nothing was done. `rule` names what forbids it."""

    def __init__(self, code: int, message: str, rule: str, data: Any = None) -> None:
        super().__init__(code, message, data)
        self.rule = rule
