"""What replicas say to each other."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from mcpmux.protocol.call import Call
from mcpmux.protocol.envelope import decode_fields, encode
from mcpmux.protocol.principal import Principal
from mcpmux.transports.http.message import HttpRequest


class HandedRequest(msgspec.Struct, array_like=True, tag="request", frozen=True):
    """A client's request. `listener`: the number of that where it came in; the rest as in HttpRequest."""

    listener: int
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    peer: str
    holder: str

    @classmethod
    def of(cls, listener: int, request: HttpRequest) -> HandedRequest:
        target = request.method, request.path, request.query
        return cls(listener, *target, request.headers, request.body, request.peer, request.holder)

    def request(self) -> HttpRequest:
        target = self.method, self.path, self.query
        return HttpRequest(*target, self.headers, self.body, self.peer, False, True, self.holder)


class HandedCall(msgspec.Struct, array_like=True, tag="call", frozen=True):
    """A modern client's call, as in Call: `params` and `meta` as JSON. `principal`: who the client is."""

    method: str
    params: bytes
    meta: bytes
    principal: Principal

    @classmethod
    def of(cls, call: Call) -> HandedCall:
        return cls(call.method, encode(call.params), encode(call.meta), call.principal)

    def call(self) -> Call:
        return Call(
            self.method, decode_fields(self.params), decode_fields(self.meta), principal=self.principal
        )


class News(msgspec.Struct, array_like=True, tag="news", frozen=True):
    """What has changed. `slots`: of generations, see `mux/cache`; `lists`: (upstream, notification) pairs."""

    slots: list[int]
    lists: list[tuple[str, str]]


class StateWanted(msgspec.Struct, array_like=True, tag="state", frozen=True):
    """How are you?"""


class ListenWanted(msgspec.Struct, array_like=True, tag="listen", frozen=True):
    """Tell me of changes of an upstream's `uris`, as the upstream has them.

    `stream`: what this listen is called; `replaces`: another one, which is to end when this is acknowledged.
    """

    upstream: str
    uris: list[str]
    stream: str
    replaces: str = ""


Content: TypeAlias = HandedRequest | HandedCall | News | StateWanted | ListenWanted


class Letter(msgspec.Struct, array_like=True, frozen=True):
    """`to`: the id of a replica; `at`: seconds since 1970; `nonce`: used once."""

    to: str
    at: float
    nonce: str
    content: Content
