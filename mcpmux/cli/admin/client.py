"""The admin listener of a running mcpmux, and the options of commands that name it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlencode, urlsplit

import click
import trio

from mcpmux.cli.completion import Items, offer, run_shortly
from mcpmux.cli.console import tell
from mcpmux.cli.options import ANYWHERE, Decorator, choose_config, config_option, load_config, quiet_option
from mcpmux.cli.process import Mistake
from mcpmux.config import ClientTls
from mcpmux.errors import ConfigError, ConnectFailed, McpmuxError, RemoteProtocolError
from mcpmux.printable import printable
from mcpmux.protocol.envelope import decode_any, decode_fields, encode, value_of
from mcpmux.traffic.record import Record, decode_record
from mcpmux.transports.http.route import HttpOrigin
from mcpmux.transports.sse import SseDecoder, SseEvent

if TYPE_CHECKING:
    from mcpmux.transports.web_client import WebResponse

T = TypeVar("T")

PATIENCE_SECONDS = 60.0  # for an answer; a reload reads a file, everything else is done at once
EVENT_BYTES = 512 * 2**20  # as long as a line of a capture may be
NOTHING_MORE: Mapping[str, Any] = {}
ANSWER_SHOWN = 300  # characters of an answer that is none of mcpmux
NO_ENTRY = "give its token: in the URL or the file, with --token, or in MCPMUX_ADMIN_TOKEN"


class NotDone(McpmuxError):
    """mcpmux has refused, or there is none; the text says why."""


class AdminClient(NamedTuple):
    """One admin listener. `ca`: file of the authorities to trust."""

    origin: HttpOrigin
    token: str | None
    ca: str | None = None

    @classmethod
    def at(cls, url: str, token: str | None, ca: str | None = None) -> AdminClient:
        """Return the listener at `url`, which may have the token in it, too. Raises Mistake."""
        try:
            origin = HttpOrigin.from_url(url)
            token = parse_qs(urlsplit(url).query).get("token", [token])[0]
        except (ValueError, UnicodeError):
            example = "http://127.0.0.1:8490"
            raise Mistake(f"--url: expected the URL of an admin listener, such as {example}") from None
        if token is not None and (not token.isascii() or not token.isprintable()):
            raise Mistake("--token: expected the token that mcpmux printed when it started")
        return cls(origin, token, ca)

    async def ask(self, method: str, path: str, members: Mapping[str, Any] = NOTHING_MORE) -> dict[str, Any]:
        """Return the answer, an object; that of a broken configuration has `problems`. Raises McpmuxError.

        `members`: of the body of a POST. It is a ConfigError if what the path names is not there.
        """
        return (await self.ask_text(method, path, members))[0]

    async def ask_text(
        self, method: str, path: str, members: Mapping[str, Any] = NOTHING_MORE
    ) -> tuple[dict[str, Any], bytes]:
        """Return the answer as `ask` does, and its bytes, with numbers as they were written."""
        with trio.move_on_after(PATIENCE_SECONDS):
            async with self._open(method, path, "application/json", members) as response:
                body, answer = await response.read(), None
                with suppress(ValueError):
                    answer = decode_any(body)
                is_fine = response.status == 200
                if not isinstance(answer, dict) or not (is_fine or isinstance(answer.get("error"), str)):
                    raise self._stranger(response.status, body)
                if "error" in answer and "problems" not in answer:
                    if response.status == 404:  # what was named is not there, as a mistyped upstream
                        raise ConfigError([str(answer["error"])])
                    raise NotDone(str(answer["error"]))
                return answer, body
        raise NotDone(f"{self.origin.url} does not answer within {PATIENCE_SECONDS:g} s")

    def watch(self, *, own: bool = False) -> AbstractAsyncContextManager[AsyncIterator[list[Record]]]:
        """Yield the messages that pass from now on, in lists that are empty now and then.

        `own`: also what mcpmux asks by itself. Leaving closes the connection. Raises McpmuxError.
        """
        return self._stream("/api/traffic/stream" + ("?own=true" if own else ""), _records_in)

    def watch_exchanges(
        self, wanted: str, since: int
    ) -> AbstractAsyncContextManager[AsyncIterator[list[dict[str, Any]]]]:
        """Yield the events `rows` of the exchanges that fit a filter; `since`: `messages` of their list.

        Leaving closes the connection. Raises McpmuxError.
        """
        query = urlencode({"filter": wanted, "since": since})
        return self._stream(f"/api/exchanges/stream?{query}", _rows_in)

    @asynccontextmanager
    async def _stream(
        self, path: str, read: Callable[[list[SseEvent]], T]
    ) -> AsyncIterator[AsyncIterator[T]]:
        async with self._open("GET", path, "text/event-stream") as response:
            if response.status != 200:
                raise self._stranger(response.status, await response.read())
            async with aclosing(self._read(response, read)) as values:
                yield values

    async def _read(
        self, response: WebResponse, read: Callable[[list[SseEvent]], T]
    ) -> AsyncGenerator[T, None]:
        decoder = SseDecoder(EVENT_BYTES)
        async for chunk in response:
            yield read(decoder.feed(chunk))
        raise RemoteProtocolError(f"{self.origin.url} has ended the stream; mcpmux was stopped")

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, accept: str, members: Mapping[str, Any] = NOTHING_MORE
    ) -> AsyncIterator[WebResponse]:
        from mcpmux.transports.web_client import WebClient  # httpx is large

        headers = [("Accept", accept), ("Content-Type", "application/json")]
        if self.token is not None:
            headers.append(("Authorization", f"Bearer {self.token}"))
        body = encode(members) if method == "POST" else b""
        client = WebClient(ClientTls(ca=self.ca))
        try:
            async with client.open(method, self.origin.url + path, tuple(headers), body) as response:
                if response.status in (401, 403):
                    refusal = f"{self.origin.url} refused the token (HTTP {response.status})"
                    raise NotDone(f"{refusal}; {NO_ENTRY}")
                yield response
        except ConnectFailed as error:
            raise NotDone(f"no mcpmux answers at {self.origin.url}: {error}; is it running?") from None

    def _stranger(self, status: int, body: bytes) -> RemoteProtocolError:
        answer = printable(body.decode("utf-8", "replace").strip()[:ANSWER_SHOWN])
        hint = "is it the admin listener of mcpmux?"
        return RemoteProtocolError(f"{self.origin.url} answers HTTP {status}: {answer}; {hint}")


def _records_in(events: list[SseEvent]) -> list[Record]:
    records = []
    for event in events:
        try:
            if event.event == "missed":
                count = value_of(decode_fields(event.data).get("missed"))
                tell(f"missed {count} messages: there were more than could be shown")
            else:
                records.append(decode_record(event.data))
        except ValueError as error:
            tell(f"not read: {error}")
    return records


def _rows_in(events: list[SseEvent]) -> list[dict[str, Any]]:
    try:
        return [decode_any(event.data) for event in events]
    except ValueError as error:
        raise RemoteProtocolError(f"an event of the admin listener cannot be read: {error}") from None


# The options that name a running mcpmux.

WHICH = "no mcpmux given: use --config with its configuration file, or --url"


def find_admin(config: str | None, url: str | None, token: str | None, ca: str | None) -> AdminClient:
    """Return the admin listener that the options describe. Raises Mistake, ConfigError."""
    if url is not None:
        return AdminClient.at(url, token, ca)
    from mcpmux.app.sharing import noted_admins  # not at the top: only a command without a URL needs it

    config = choose_config(config)
    noted: list[str] = []
    with suppress(McpmuxError, OSError):
        noted = noted_admins(config)
    if len(noted) == 1 and (config is None or ca is not None or not noted[0].startswith("https:")):
        return AdminClient.at(noted[0], token, ca)  # also where the file has mistakes by now
    if config is None:
        raise Mistake(WHICH)
    admin = load_config(config).admin
    if admin.port is None:
        raise Mistake(f"{config}: there is no admin listener; set `port` (and `token`) in [admin]")
    token = token or (admin.token.reveal() if admin.token is not None else None)
    ca = ca or (admin.tls.certificate if admin.tls is not None else None)
    if len(noted) == 1:
        return AdminClient.at(noted[0], token, ca)
    if admin.port == 0:
        raise Mistake(f"{config}: the admin listener has port 0; use --url with the URL that mcpmux printed")
    if token is None:
        raise Mistake(
            f"{config}: [admin] has no `token`, so there is a new one at each start; "
            "give it with --token, or the whole URL that was printed with --url"
        )
    origin = HttpOrigin(admin.tls is not None, ANYWHERE.get(admin.host, admin.host), admin.port)
    return AdminClient.at(origin.url, token, ca)


def complete_upstream(context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Return the upstreams of the mcpmux whose admin listener the options name."""

    def find() -> list[str]:
        admin = find_admin(*(context.params.get(key) for key in ("config", "url", "token", "ca")))
        answer = run_shortly(lambda: admin.ask("GET", "/api/upstreams"))
        return [upstream["name"] for upstream in answer["upstreams"]]

    return offer(incomplete, find)


Command = Callable[..., None]

token_option: Decorator = click.option(
    "--token",
    envvar="MCPMUX_ADMIN_TOKEN",
    help="Token of the admin listener. Default: MCPMUX_ADMIN_TOKEN.",
)
ca_option: Decorator = click.option("--ca", metavar="FILE", help="CA file (PEM) for an https admin listener.")


running_option = config_option("Configuration file of the running mcpmux. Default: mcpmux.toml.")


def admin_options(command: Command) -> Command:
    """Add the options that name a running mcpmux. The command gets its admin listener as `admin`."""

    @running_option
    @click.option(
        "--url",
        envvar="MCPMUX_ADMIN_URL",
        metavar="URL",
        help="URL of the admin listener. Default: MCPMUX_ADMIN_URL.",
    )
    @token_option
    @ca_option
    @quiet_option
    @wraps(command)
    def act(config: str | None, url: str | None, token: str | None, ca: str | None, **more: Any) -> None:
        command(admin=find_admin(config, url, token, ca), **more)

    decorated: Command = act
    return decorated
