"""The admin listener of a running mcpmux, asked one thing at a time."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import trio

from mcpmux.cli.source import load_config
from mcpmux.cli.traffic_live import read_url
from mcpmux.cli.wall import Mistake
from mcpmux.config import Admin, ClientTls
from mcpmux.errors import ConnectFailed, McpmuxError, RemoteProtocolError
from mcpmux.printable import printable
from mcpmux.protocol.envelope import decode_any
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin, Route
from mcpmux.transports.tls.context import client_context

PATIENCE_SECONDS = 60.0  # for an answer; a reload reads a file, everything else is done at once
ANYWHERE = ("0.0.0.0", "::")
ANSWER_SHOWN = 300  # characters of an answer that is none of mcpmux
WHICH = "say which mcpmux is meant: --config with the file that it was started with, or --url"


class NotDone(McpmuxError):
    """mcpmux has refused; the text is its own."""


class Remote:
    """One admin listener. A context: leaving it closes the connection."""

    def __init__(self, origin: HttpOrigin, token: str | None, ca: str | None) -> None:
        self._origin = origin
        self._token = token
        context = client_context(ClientTls(ca=ca)) if origin.secure else None
        self._pool = HttpPool(origin, route=Route(origin, context))

    def __repr__(self) -> str:
        return f"<Remote {self._origin.url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.close()

    @staticmethod
    def path(*parts: str) -> str:
        """The path with these parts, whatever is in them."""
        return "".join(f"/{quote(part, safe='')}" for part in parts)

    async def ask(self, method: str, path: str) -> dict[str, Any]:
        """The answer, an object; that of a broken configuration has `problems`. Raises McpmuxError."""
        headers = [("Accept", "application/json")]
        if self._token is not None:
            headers.append(("Authorization", f"Bearer {self._token}"))
        body = b""
        if method == "POST":
            headers.append(("Content-Type", "application/json"))
            body = b"{}"
        with trio.move_on_after(PATIENCE_SECONDS):
            try:
                async with self._pool.request(
                    method, path, headers, body, idempotent=method == "GET"
                ) as response:
                    return self._read(response.status, await response.read())
            except ConnectFailed as error:
                raise NotDone(f"no mcpmux answers at {self._origin.url}: {error}; is it running?") from None
        raise NotDone(f"{self._origin.url} does not answer within {PATIENCE_SECONDS:g} s")

    def _read(self, status: int, body: bytes) -> dict[str, Any]:
        if status in (401, 403):
            hint = "give its token: in the file, with --token, or in MCPMUX_ADMIN_TOKEN"
            raise NotDone(f"{self._origin.url} does not let us in (HTTP {status}); {hint}")
        try:
            answer = decode_any(body)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or (status != 200 and not isinstance(answer.get("error"), str)):
            said = printable(body.decode("utf-8", "replace").strip()[:ANSWER_SHOWN])
            hint = "is it the admin listener of mcpmux?"
            raise RemoteProtocolError(f"{self._origin.url} answers HTTP {status}: {said}; {hint}")
        if "error" in answer and "problems" not in answer:
            raise NotDone(str(answer["error"]))
        return answer


def find_remote(config: str | None, url: str | None, token: str | None, ca: str | None) -> Remote:
    """What a command line means. Raises Mistake, ConfigError."""
    if url is not None:
        return Remote(*read_url(url, token), ca)
    if config is None:
        raise Mistake(WHICH)
    admin = load_config(config).admin
    if admin.port is None:
        raise Mistake(f"{config}: there is no admin listener; set `port` (and `token`) in [admin]")
    if admin.port == 0:
        raise Mistake(f"{config}: the admin listener's port is 0, any; give the URL that it printed: --url")
    token = token or (admin.token.reveal() if admin.token is not None else None)
    if token is None:
        raise Mistake(
            f"{config}: [admin] has no `token`, so there is a new one at each start; "
            "give it with --token, or the whole URL that was printed with --url"
        )
    origin, token = read_url(_url_of(admin), token)
    return Remote(origin, token, ca or (admin.tls.certificate if admin.tls is not None else None))


def _url_of(admin: Admin) -> str:
    host = admin.host
    if host in ANYWHERE:
        host = "127.0.0.1" if "." in host else "::1"
    name = f"[{host}]" if ":" in host else host
    return f"{'https' if admin.tls is not None else 'http'}://{name}:{admin.port}/"
