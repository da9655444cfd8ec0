"""`mcpmux auth`: tokens for clients, and logins at upstreams."""

from __future__ import annotations

import os
import re
import secrets
import sys
import time
import webbrowser
from collections.abc import Iterator
from typing import Any

import click
import trio

from mcpmux.auth.bearer import LEAST_CHARACTERS, PREFIX, TOKEN_BYTES, hash_token
from mcpmux.auth.token_store import Login, StoreTrouble, TokenStore, default_store
from mcpmux.cli.console import make_table, show_json, show_table, tell
from mcpmux.cli.lazy import Commands
from mcpmux.cli.options import load_config, quiet_option
from mcpmux.cli.process import run
from mcpmux.config import Config, Http, WebSocket
from mcpmux.config.auth import CLIENT_CREDENTIALS
from mcpmux.errors import ConfigError
from mcpmux.printable import printable
from mcpmux.protocol.envelope import raw

# `mcpmux auth login`, `status` and `logout`: a person's logins at upstreams that ask for OAuth tokens.

LOGIN_SECONDS = 300.0  # for a person to find a password and agree
SECONDS_A_MINUTE = 60

config_option = click.option(
    "-c", "--config", default="mcpmux.toml", show_default=True, metavar="FILE", help="The configuration."
)

Found = tuple[str, Http | WebSocket]


@click.command()
@click.argument("upstream")
@config_option
@click.option("--scope", "scopes", multiple=True, help="A scope to ask for besides. May be repeated.")
@click.option("--no-browser", is_flag=True, help="Only print the URL.")
@click.option(
    "--timeout", type=click.FloatRange(1, 3600), default=LOGIN_SECONDS, show_default=True, metavar="SECONDS"
)
@quiet_option
def login(upstream: str, config: str, scopes: tuple[str, ...], no_browser: bool, timeout: float) -> None:
    """Log in at UPSTREAM, whose table in the configuration has `oauth`.

    Prints a URL on stdout and opens it in a browser where there is one; the browser comes back to a port on
    this machine. A mcpmux that is running uses the login from the next attempt to connect on.

    \b
    Examples:
      mcpmux auth login search -c mcpmux.toml
      mcpmux auth login search -c mcpmux.toml --scope files:write --no-browser
    """
    name, target = find_upstream(load_config(config), upstream)
    assert target.oauth is not None
    if target.oauth.grant == CLIENT_CREDENTIALS:
        raise ConfigError([f"upstreams.{name}: it uses client credentials, so nobody has to log in"])
    from mcpmux.auth.upstream_auth import make_login  # oauthlib is large

    flow = make_login(name, target, default_store())

    async def show(url: str) -> None:
        tell("Open this URL to log in:")
        click.echo(url)
        if not no_browser and has_screen():
            await trio.to_thread.run_sync(webbrowser.open, url, abandon_on_cancel=True)

    done = run(flow.run, show, scopes, timeout)
    tell(f"Logged in at {printable(done.issuer)}{_until(done)}.")


@click.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line and upstream.")
def status(config: str, as_json: bool) -> None:
    """Say which upstreams ask for tokens, and how far there are any. No server is asked, no token is shown.

    Exit code 0 when every one has what it needs, 1 when a login is missing.
    """
    store, missing = default_store(), False
    table = make_table(["UPSTREAM", "STATE", "ISSUER", "SCOPES"])
    for name, target in _upstreams_of(load_config(config)):
        said = describe(name, target, store)
        missing = missing or not said["ready"]
        if as_json:
            show_json(raw(said))
        else:
            table.add_row(name, said["state"], printable(said["issuer"]), printable(" ".join(said["scopes"])))
    if not as_json:
        show_table(table)
    if missing:
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("upstream")
@config_option
@quiet_option
def logout(upstream: str, config: str) -> None:
    """Forget the login at UPSTREAM. Its authorization server is not told: tokens last until they expire."""
    name, target = find_upstream(load_config(config), upstream)
    tell("Forgotten." if default_store().remove(name, target.url) else "Nobody was logged in.")


def has_screen() -> bool:
    """Whether a browser would get a window; one that runs in the terminal would take that over."""
    return sys.platform in ("darwin", "win32") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )


def find_upstream(config: Config, name: str) -> Found:
    """The upstream of that name, which has `oauth`. Raises ConfigError."""
    found = dict(_upstreams_of(config))
    if name in found:
        return name, found[name]
    if name in [upstream.name for upstream in config.upstreams]:
        raise ConfigError([f'upstreams.{name}: it has no `oauth`; add the table "[upstreams.{name}.oauth]"'])
    known = ", ".join(found) or "none"
    raise ConfigError([f"UPSTREAM: there is no upstream of that name; those with `oauth`: {known}"])


def _upstreams_of(config: Config) -> Iterator[Found]:
    for upstream in config.upstreams:
        if isinstance(upstream.target, Http | WebSocket) and upstream.target.oauth is not None:
            yield upstream.name, upstream.target


def describe(name: str, target: Http | WebSocket, store: TokenStore) -> dict[str, Any]:
    """For people and machines: how far there is a token for an upstream, and nothing that is secret."""
    assert target.oauth is not None
    said: dict[str, Any] = {"upstream": name, "issuer": target.oauth.issuer or "", "scopes": []}
    if target.oauth.grant == CLIENT_CREDENTIALS:
        return said | {"ready": True, "state": "client credentials", "scopes": list(target.oauth.scopes)}
    try:
        kept = store.load(name, target.url)
    except StoreTrouble as error:
        return said | {"ready": False, "state": str(error)}
    if kept is None:
        return said | {"ready": False, "state": "not logged in"}
    expired = kept.tokens.until <= time.time()
    ready = not expired or kept.tokens.refresh is not None
    state = "logged in" if ready else "expired"
    if kept.wanted:
        state += f"; log in anew for {printable(' '.join(kept.wanted))}"
    return said | {"ready": ready, "state": state, "issuer": kept.issuer, "scopes": list(kept.tokens.scopes)}


def _until(login: Login) -> str:
    if login.tokens.refresh is not None or login.tokens.expires is None:
        return ""
    minutes = (login.tokens.expires - time.time()) / SECONDS_A_MINUTE
    return f", for {minutes:.0f} minutes"


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


@click.group(cls=Commands)
def auth() -> None:
    """Tokens for clients, of which mcpmux keeps only the hashes, and logins at upstreams.

    \b
    Examples:
      mcpmux auth new-token alice --scope read      a token for alice, and what goes into the configuration
      mcpmux auth login search -c mcpmux.toml       log in at the upstream `search`, in a browser
    """


for command in (login, status, logout):
    auth.add_command(command)


@auth.command("new-token")
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, help="A scope that the token has. May be repeated.")
def new_token(name: str, scopes: tuple[str, ...]) -> None:
    """Make a token for NAME. It is shown this once; the table goes into the configuration.

    The token is printed on stdout, all else on stderr.

    \b
    Examples:
      mcpmux auth new-token alice
      mcpmux auth new-token ci --scope read --scope call > ci.token
    """
    if NAME.fullmatch(name) is None:
        raise ConfigError(["NAME: expected letters, digits, and . _ @ -, at most 64"])
    if any(
        not scope or not scope.isascii() or not scope.isprintable() or set(scope) & set(' "\\')
        for scope in scopes
    ):
        raise ConfigError(["--scope: expected printable text without spaces and quotes"])
    token = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'
    lines = [f"[auth.tokens.{key}]", f'sha256 = "{hash_token(token)}"']
    if scopes:
        lines.append("scopes = [" + ", ".join(f'"{scope}"' for scope in scopes) + "]")
    click.echo("Put this into the configuration; the token below is shown this once.\n", err=True)
    click.echo("\n".join(lines) + "\n", err=True)
    click.echo(token)


@auth.command("hash-token")
def hash_given_token() -> None:
    """Print the hash of a token that was made elsewhere, read from standard input.

    It must be long and random: the hash of a word is found by trying words.

    \b
    Example:
      mcpmux auth hash-token < alice.token
    """
    if sys.stdin.isatty():
        click.echo("Paste the token and press Enter.", err=True)
    token = sys.stdin.readline().strip()
    if len(token) < LEAST_CHARACTERS or not re.fullmatch(r"[A-Za-z0-9._~+/-]+=*", token):
        raise ConfigError(
            [f"standard input: expected a token of at least {LEAST_CHARACTERS} letters, digits, . _ ~ + / -"]
        )
    click.echo(hash_token(token))
