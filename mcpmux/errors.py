"""The exception tree. This module imports no other of mcpmux, so every room may use it.

`LocalProtocolError`: mcpmux or its caller broke a rule. `RemoteProtocolError`: the peer broke one.
Only `RpcError` is sent to clients, as a JSON-RPC error object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self, TypeAlias

CAUSES_LIMIT: Final = 16  # errors behind one that are looked at; ours have three at most
MORE: Final = " (mcpmux's log has the rest)"


class McpmuxError(Exception):
    """Root of every exception that mcpmux raises on purpose.

    Its text may go to clients. `quoted` is what a peer wrote to people, such as a page or lines of its log,
    with what joins it to the text: only the operator of mcpmux reads that.
    """

    quoted: str = ""

    def quoting(self, words: str) -> Self:
        """Return this error, with words of the peer for the operator."""
        self.quoted = words
        return self

    def anew(self) -> Self:
        """Return an equal error that was not raised yet.

        An error that is kept, such as the reason why a channel has ended, is raised as another one: else its
        traceback keeps each caller that it was raised in, with all that they have at hand.
        """
        other = type(self).__new__(type(self), *self.args)
        if not hasattr(other, "__dict__"):  # of a compiled class: its attributes cannot be copied
            return self.with_traceback(None)
        other.__dict__.update(self.__dict__)
        return other

    @property
    def in_full(self) -> str:
        """The text for the operator."""
        return f"{str(self).replace(MORE, '')}{self.quoted}" if self.quoted else str(self)

    @property
    def told(self) -> str:
        """The text for clients, which names the place where the words of the peer are."""
        return f"{self}{MORE}" if self.quoted else str(self)


class LocalProtocolError(McpmuxError):
    """mcpmux tried something that the protocol or the state of the peer does not allow."""


class RemoteProtocolError(McpmuxError):
    """The peer sent something that the protocol does not allow."""


class MessageTooLarge(RemoteProtocolError):
    """A message of the peer is longer than the limit. It was discarded, and the stream goes on.

    `excerpt`: its beginning and its end, as far as they are known.
    """

    def __init__(self, text: str, excerpt: bytes = b"") -> None:
        super().__init__(text)
        self.excerpt = excerpt


class TransportError(McpmuxError):
    """Bytes cannot be sent or received: refused, reset, closed, timed out, not found."""


class AddressInUse(TransportError):
    """Another process listens at an address already."""


class ConnectFailed(TransportError):
    """The peer could not be reached, so no byte was sent: refused, unknown host, no such program."""


class TransportClosed(TransportError):
    """The peer is gone or has finished, so sending and receiving are over."""


class PeerFinished(TransportClosed):
    """The peer has ended in order: a process with status 0."""


class Overdue(McpmuxError):
    """The deadline of the caller has passed.

    `unanswered`: methods of the questions to the client that were open then.
    """

    def __init__(self, message: str, unanswered: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.unanswered = unanswered


KeyPath: TypeAlias = tuple[str | int, ...]

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_$-]+")


def format_path(path: KeyPath) -> str:
    """Return `upstreams.docs.args[1]`, with keys quoted as in TOML: `mcpServers."My Server".url`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step if _BARE_KEY.fullmatch(step) else json.dumps(step, ensure_ascii=False)}"
    return text.removeprefix(".")


class Problem(NamedTuple):
    """A mistake in the value at a key path of a document, () for the whole document.

    `is_lack`: the document is right, but what it refers to is not there. `line`: of the document, from 1; 0
    if it is not known.
    """

    path: KeyPath
    text: str
    is_lack: bool = False
    line: int = 0

    def __str__(self) -> str:
        return f"{format_path(self.path)}: {self.text}" if self.path else self.text

    def under(self, *path: str | int) -> Problem:
        """Return the same problem of a document that has this one at `path`."""
        return self._replace(path=(*path, *self.path))


class ConfigError(McpmuxError):
    """The configuration is wrong. `found` has every mistake in the document `origin`, which may be ""."""

    def __init__(self, found: Sequence[Problem | str], origin: str = "") -> None:
        self.found = [each if isinstance(each, Problem) else Problem((), each) for each in found]
        self.origin = origin
        super().__init__("\n".join(self.problems))

    @property
    def problems(self) -> list[str]:
        """The mistakes as sentences for people."""
        sentences = []
        for problem in self.found:
            place = f"{self.origin}:{problem.line}" if problem.line else self.origin
            sentences.append(f"{place}: {problem}" if self.origin else str(problem))
        return sentences


class RpcError(McpmuxError):
    """A JSON-RPC error object (JSON-RPC 2.0 section 5.1) on its way to a client.

    `code` is an integer, `message` one sentence, `data` any JSON value, or None if it is absent.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    def __repr__(self) -> str:
        return f"RpcError({self.code}, {self.message!r}, data={self.data!r})"


class Refused(RpcError):
    """mcpmux itself refuses an exchange before it is carried out. `rule` names what forbids it."""

    def __init__(self, code: int, message: str, rule: str, data: Any = None) -> None:
        super().__init__(code, message, data)
        self.rule = rule


def forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error and of what led to it, once they are no longer shown.

    A frame that has raised a local variable is in a cycle with it, and so is all that it has at hand: a large
    message would stay in memory until the garbage collector comes, which it does rarely.
    """
    found: BaseException | None = error
    for _ in range(CAUSES_LIMIT):
        if found is None:
            return
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
