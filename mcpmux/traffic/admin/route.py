"""The routes of the admin listener, and the parts of their requests.

path in the table      "/api/exchanges/{row}"
path of a request      "/api/exchanges/17"        arguments {"row": "17"}
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote

import msgspec

from mcpmux.protocol.envelope import UNREADABLE
from mcpmux.transports.http.message import HeaderFields, HttpRequest
from mcpmux.transports.http.reply import HttpReply

T = TypeVar("T")

SECURITY: HeaderFields = (
    (
        "Content-Security-Policy",
        # `data:` is for contents of messages: images, sound, and pages, which get this policy and a sandbox.
        "default-src 'self'; img-src 'self' data:; media-src data:; frame-src data:; "
        "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
NO_STORE = ("Cache-Control", "no-store")
JSON: HeaderFields = (("Content-Type", "application/json"), NO_STORE, *SECURITY)
TEXT: HeaderFields = (("Content-Type", "text/plain; charset=utf-8"), NO_STORE, *SECURITY)

_encoder = msgspec.json.Encoder()
_ARGUMENT = re.compile(r"\\\{(\w+)\\\}")  # with backslashes before both braces


@dataclass(frozen=True, slots=True)
class HttpExchange:
    """One request. `path`: the arguments in its path, `query`: the first value of each."""

    request: HttpRequest
    reply: HttpReply
    path: Mapping[str, str]
    query: Mapping[str, str]

    def body(self, kind: type[T]) -> T:
        """Return the JSON in the body, of this type. Raises BadRequest."""
        try:
            return msgspec.json.decode(self.request.body, type=kind)
        except UNREADABLE as error:
            raise BadRequest(str(error)) from None

    async def send(self, value: Any, status: int = 200) -> None:
        """Answer with JSON."""
        await self.reply.send(status, JSON, _encoder.encode(value))

    async def answer(self, handle: Handle) -> None:
        """Answer with what `handle` sends, or with its BadRequest.

        Refuses a POST that a form of a foreign page could send.
        """
        try:
            content_type = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if self.request.method == "POST" and content_type != "application/json":
                raise BadRequest("send `Content-Type: application/json`")
            await handle(self)
        except BadRequest as problem:
            await self.send({"error": str(problem)}, problem.status)


Handle = Callable[[HttpExchange], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Route:
    """One route. `open`: it needs no token, so its answer must be harmless."""

    path: str
    handle: Handle
    method: str = "GET"
    open: bool = False

    def match(self, path: str) -> dict[str, str] | None:
        """Return the arguments in a path of this route; None for any other path."""
        match = re.fullmatch(_ARGUMENT.sub(r"(?P<\1>[^/]*)", re.escape(self.path)), path)
        return {name: unquote(value) for name, value in match.groupdict().items()} if match else None


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request that says everything by its path."""


class BadRequest(ValueError):
    """A request that is refused. The text is the reason; `status` is that of the answer."""

    def __init__(self, problem: str, status: int = 400) -> None:
        super().__init__(problem)
        self.status = status


def read_query(query: str) -> dict[str, str]:
    """Return the first value of each name."""
    return {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}


def whole_number(arguments: Mapping[str, str], name: str, low: int, high: int, default: int) -> int:
    """Return an argument that is a whole number. Raises BadRequest."""
    text = arguments.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 16 and low <= int(text) <= high):
        raise BadRequest(f"`{name}` must be a whole number from {low} to {high}")
    return int(text)
