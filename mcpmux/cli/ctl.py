"""`mcpmux ctl`: show and control a running mcpmux over its admin listener."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any
from urllib.parse import quote

import click
import trio
from rich.table import Table
from rich.text import Text

from mcpmux.cli.console import make_table, show_rows, tell
from mcpmux.cli.lazy import Commands
from mcpmux.cli.options import load_config, quiet_option, upstream_json_option
from mcpmux.cli.process import Mistake, run
from mcpmux.cli.traffic_tail import read_url
from mcpmux.config import Admin, ClientTls
from mcpmux.errors import ConfigError, ConnectFailed, McpmuxError, RemoteProtocolError
from mcpmux.printable import printable
from mcpmux.protocol.envelope import decode_any
from mcpmux.transports.http.route import HttpOrigin

PATIENCE_SECONDS = 60.0  # for an answer; a reload reads a file, everything else is done at once
ANYWHERE = ("0.0.0.0", "::")
ANSWER_SHOWN = 300  # characters of an answer that is none of mcpmux
WHICH = "no mcpmux given: use --config with its configuration file, or --url"


class NotDone(McpmuxError):
    """mcpmux has refused; the text is its own."""


@dataclass
class Remote:
    """One admin listener. `ca`: file of the authorities to trust."""

    origin: HttpOrigin
    token: str | None
    ca: str | None

    def __repr__(self) -> str:
        return f"<Remote {self.origin.url}>"

    async def ask(self, method: str, path: str) -> dict[str, Any]:
        """The answer, an object; that of a broken configuration has `problems`. Raises McpmuxError."""
        from mcpmux.transports.web_client import WebClient  # httpx is large

        headers = [("Accept", "application/json"), ("Content-Type", "application/json")]
        if self.token is not None:
            headers.append(("Authorization", f"Bearer {self.token}"))
        body = b"{}" if method == "POST" else b""
        with trio.move_on_after(PATIENCE_SECONDS):
            try:
                url = self.origin.url + path
                answer = await WebClient(ClientTls(ca=self.ca)).ask(method, url, tuple(headers), body)
                return self._read(answer.status, answer.body)
            except ConnectFailed as error:
                raise NotDone(f"no mcpmux answers at {self.origin.url}: {error}; is it running?") from None
        raise NotDone(f"{self.origin.url} does not answer within {PATIENCE_SECONDS:g} s")

    def _read(self, status: int, body: bytes) -> dict[str, Any]:
        if status in (401, 403):
            hint = "give its token: in the file, with --token, or in MCPMUX_ADMIN_TOKEN"
            raise NotDone(f"{self.origin.url} does not let us in (HTTP {status}); {hint}")
        try:
            answer = decode_any(body)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or (status != 200 and not isinstance(answer.get("error"), str)):
            said = printable(body.decode("utf-8", "replace").strip()[:ANSWER_SHOWN])
            hint = "is it the admin listener of mcpmux?"
            raise RemoteProtocolError(f"{self.origin.url} answers HTTP {status}: {said}; {hint}")
        if "error" in answer and "problems" not in answer:
            raise NotDone(str(answer["error"]))
        return answer


def find_remote(config: str | None, url: str | None, token: str | None, ca: str | None) -> Remote:
    """The admin listener that the options describe. Raises Mistake, ConfigError."""
    if url is not None:
        return Remote(*read_url(url, token), ca)
    if config is None:
        raise Mistake(WHICH)
    admin = load_config(config).admin
    if admin.port is None:
        raise Mistake(f"{config}: there is no admin listener; set `port` (and `token`) in [admin]")
    if admin.port == 0:
        raise Mistake(f"{config}: the admin listener has port 0; use --url with the URL that mcpmux printed")
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


STYLES = {"ready": "green", "disabled": "dim"}
STYLES |= dict.fromkeys(("connecting", "draining", "drained"), "yellow")
NUMBERS = ("RESTARTS", "SESSIONS", "IN FLIGHT")


def fill_table(upstreams: Sequence[dict[str, Any]]) -> Table:
    """One row for each upstream of `/api/upstreams`. The last column says what is wrong."""
    headings = ["NAME", "STATE", "SINCE", *NUMBERS, "REVISION", "DETAILS"]
    table = make_table(headings, right_aligned=set(NUMBERS))
    for each in upstreams:
        state = str(each.get("state"))
        sessions = len(each.get("sessions", ())) + int(each.get("more_sessions", 0))
        table.add_row(
            printable(str(each.get("name"))),
            Text(printable(state), style=STYLES.get(state, "red")),
            printable(str(each.get("since") or "-")),
            str(each.get("restarts", 0)),
            str(sessions),
            str(each.get("in_flight", 0)),
            printable(str(each.get("revision") or "-")),
            printable(str(each.get("trouble") or each.get("target") or "")),
        )
    return table


Command = Callable[..., None]


def remote_options(command: Command) -> Command:
    """Options that say which mcpmux is meant. The command gets it as `remote`."""

    @wraps(command)
    def find(
        *args: Any, config: str | None, url: str | None, token: str | None, ca: str | None, **more: Any
    ) -> None:
        command(*args, remote=find_remote(config, url, token, ca), **more)

    decorated: Command = find
    for option in (
        quiet_option,
        click.option("--ca", metavar="FILE", help="CA file (PEM) for an https admin listener."),
        click.option(
            "--token",
            envvar="MCPMUX_ADMIN_TOKEN",
            help="Token of the admin listener. Default: MCPMUX_ADMIN_TOKEN.",
        ),
        click.option(
            "--url",
            envvar="MCPMUX_ADMIN_URL",
            metavar="URL",
            help="URL of the admin listener. Default: MCPMUX_ADMIN_URL.",
        ),
        click.option("-c", "--config", metavar="FILE", help="Configuration file of the running mcpmux."),
    ):
        decorated = option(decorated)
    return decorated


@click.group(cls=Commands)
def ctl() -> None:
    """Show and control a running mcpmux over its admin listener.

    The configuration file says where the listener is and which token it has (`[admin]` with `port` and
    `token`). Otherwise give them with --url and --token, or in MCPMUX_ADMIN_URL and MCPMUX_ADMIN_TOKEN.

    \b
    Examples:
      mcpmux ctl status -c mcpmux.toml
      mcpmux ctl restart search -c mcpmux.toml
      mcpmux ctl reload --url 'http://127.0.0.1:8490/?token=…'
    """


@ctl.command()
@upstream_json_option
@remote_options
def status(remote: Remote, as_json: bool) -> None:
    """Show the state of every upstream. The exit code is 0 even if some are down."""
    show_rows(run(remote.ask, "GET", "/api/upstreams")["upstreams"], as_json, fill_table)
    tell_pending(run(remote.ask, "GET", "/api/control")["pending"])


def tell_pending(settings: Sequence[str]) -> None:
    """Print on stderr which settings do not take effect yet."""
    if settings:
        tell(f"takes effect at the next start: {', '.join(settings)}")


@ctl.command()
@remote_options
def reload(remote: Remote) -> None:
    """Read the configuration file again. Only what changed is restarted."""
    answer = run(remote.ask, "POST", "/api/reload")
    if "problems" in answer:
        raise ConfigError(answer["problems"])
    for part, names in answer["changed"].items():
        if part != "pending":
            click.echo(f"{part}: {', '.join(names)}")
    if not answer["changed"]:
        click.echo("nothing has changed")
    tell_pending(answer["pending"])


ACTIONS = {
    "enable": ("enabled", "Enable an upstream that was disabled, drained or switched off in the file."),
    "disable": (
        "disabled",
        "Disable an upstream, as if it were not configured. Work in flight is finished.",
    ),
    "drain": ("drained", "Send an upstream nothing more. It stays connected until `enable` or `restart`."),
    "restart": ("restarted", "Restart an upstream. Work in flight is finished in the old session."),
}
"""What can be done to one upstream -> what is printed then, and the help."""


def _add_action(action: str, done: str, about: str) -> None:
    def act(remote: Remote, upstream: str) -> None:
        run(remote.ask, "POST", f"/api/upstreams/{quote(upstream, safe='')}/{action}")
        click.echo(f"{printable(upstream)}: {done}")

    with_upstream = click.argument("upstream", metavar="UPSTREAM")(remote_options(act))
    ctl.add_command(click.command(action, help=about)(with_upstream))


for name, (done, about) in ACTIONS.items():
    _add_action(name, done, about)
