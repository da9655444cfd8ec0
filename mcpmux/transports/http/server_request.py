"""A request as its handler has it."""

from __future__ import annotations

from mcpmux.protocol.envelope import Value
from mcpmux.protocol.principal import ANYONE, Principal


class HttpRequest(Value):
    """One complete request.

    `path` and `query` are as sent, percent-escapes included; `headers` have lower-case names, repeated
    fields are joined by ", ". `peer`: the client's address and port. `keep_alive` says whether the connection
    outlives the answer. `holder`: of the client's certificate, see `holder_of`; `principal`: set by whoever
    finds out who it is.
    """

    __slots__ = (
        "body",
        "headers",
        "holder",
        "http_1_0",
        "keep_alive",
        "method",
        "path",
        "peer",
        "principal",
        "query",
    )

    def __init__(
        self,
        method: str,
        path: str,
        query: str,
        headers: dict[str, str],
        body: bytes,
        peer: str,
        http_1_0: bool,
        keep_alive: bool,
        holder: str = "",
        principal: Principal = ANYONE,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.body = body
        self.peer = peer
        self.http_1_0 = http_1_0
        self.keep_alive = keep_alive
        self.holder = holder
        self.principal = principal

    def parts(self) -> tuple[object, ...]:
        target = (self.method, self.path, self.query)
        where = (self.peer, self.http_1_0, self.keep_alive, self.holder, self.principal)
        return *target, self.headers, self.body, *where
