"""`mcpmux auth`: tokens for clients, and logins at upstreams."""

from __future__ import annotations

import os
import re
import secrets
import sys
import time
import webbrowser
from operator import itemgetter
from typing import Any

import click
import trio

from mcpmux.auth.bearer import LEAST_CHARACTERS, PREFIX, TOKEN_BYTES, hash_token
from mcpmux.auth.token_store import StoreTrouble, login_file
from mcpmux.cli.console import Columns, show_items, tell
from mcpmux.cli.main import Group
from mcpmux.cli.options import (
    DEFAULT_FILE,
    Parsed,
    config_option,
    load_config,
    quiet_option,
    upstream_json_option,
)
from mcpmux.cli.process import run
from mcpmux.config import Config, Http, Missing, WebSocket
from mcpmux.config.auth import CLIENT_CREDENTIALS, PRINCIPAL_NAME, SCOPE, OAuth
from mcpmux.config.scalars import Text
from mcpmux.errors import ConfigError
from mcpmux.hosts.toml_text import format_table
from mcpmux.printable import printable

LOGIN_SECONDS = 300.0  # for a person to find a password and to agree
SECONDS_A_MINUTE = 60

A_NAME = Parsed("NAME", Text("letters, digits, and . _ @ -, at most 64", PRINCIPAL_NAME.pattern).read)
A_SCOPE = Parsed("TEXT", Text("printable text without spaces and quotes", SCOPE.pattern).read)

file_option = config_option("The configuration file.", DEFAULT_FILE)


@click.group(cls=Group)
def auth() -> None:
    """Manage client tokens (mcpmux stores only their hashes) and logins at upstreams.

    \b
    Examples:
      mcpmux auth new-token alice --scope read      a token for alice, and its table for the configuration
      mcpmux auth login search                      log in at the upstream `search`, in a browser
    """


@auth.command()
@click.argument("upstream")
@file_option
@click.option("--scope", "scopes", multiple=True, help="An additional scope to request. May be repeated.")
@click.option("--no-browser", is_flag=True, help="Only print the URL.")
@click.option(
    "--timeout",
    type=click.FloatRange(1, 3600),
    default=LOGIN_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Time to wait for the login.",
)
@quiet_option
def login(upstream: str, config: str, scopes: tuple[str, ...], no_browser: bool, timeout: float) -> None:
    """Log in at UPSTREAM, whose table in the configuration has `oauth`.

    Prints a URL on stdout and opens it in a browser if there is one. The browser comes back to a port on this
    machine. A mcpmux that is running uses the login when it connects next.

    \b
    Examples:
      mcpmux auth login search
      mcpmux auth login search -c mcpmux.toml --scope files:write --no-browser
    """
    target, oauth = find_upstream(load_config(config), upstream)
    if (how := without_login(oauth)) is not None:
        raise ConfigError([f"upstreams.{upstream}: no login needed: it uses {how}"])
    from mcpmux.auth.authorization_code import log_in  # oauthlib is large
    from mcpmux.auth.upstream_auth import http_of_login

    async def show(url: str) -> None:
        tell("Open this URL to log in:")
        click.echo(url)
        if not no_browser and has_screen():
            await trio.to_thread.run_sync(webbrowser.open, url, abandon_on_cancel=True)

    file = login_file(upstream, target)
    done = run(log_in, http_of_login(target), file, time.time, show, scopes, timeout)
    tokens, duration = done.tokens, ""
    if tokens.refresh is None and tokens.expires is not None:
        duration = f", for {(tokens.expires - time.time()) / SECONDS_A_MINUTE:.0f} minutes"
    tell(f"Logged in at {printable(done.issuer)}{duration}.")


COLUMNS: Columns = {
    **{key.upper(): itemgetter(key) for key in ("upstream", "state", "issuer")},
    "SCOPES": lambda state: " ".join(state["scopes"]),
}


@auth.command()
@file_option
@upstream_json_option
def status(config: str, as_json: bool) -> None:
    """Show the OAuth state of every upstream. No server is contacted, and no token is shown.

    The exit code is 0 if every upstream has what it needs, and 1 if a login is missing.
    """
    states = [describe(name, *parts) for name, parts in _with_oauth(load_config(config)).items()]
    if states or as_json:
        show_items(states, as_json, COLUMNS)
    else:
        tell("no upstream has an `oauth` table, so none needs a login")
    if not all(state["ready"] for state in states):
        raise click.exceptions.Exit(1)


@auth.command()
@click.argument("upstream")
@file_option
@quiet_option
def logout(upstream: str, config: str) -> None:
    """Delete the login at UPSTREAM.

    Its authorization server is not notified, so the tokens stay valid until they expire.
    """
    target, _ = find_upstream(load_config(config), upstream)
    file = login_file(upstream, target)
    tell("Forgotten." if file.remove() else "Nobody was logged in.")


def has_screen() -> bool:
    """Return whether a browser would open a window, and not take over the terminal."""
    return sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


def find_upstream(config: Config, name: str) -> tuple[Http | WebSocket, OAuth]:
    """Return where the upstream `name` is, and its `oauth`. Raises ConfigError."""
    targets = _with_oauth(config)
    if name in targets:
        return targets[name]
    target = next((upstream.target for upstream in config.upstreams if upstream.name == name), None)
    if isinstance(target, Missing):
        raise ConfigError([f"upstreams.{name}: {target.reason}"])
    if target is not None:
        raise ConfigError([f'upstreams.{name}: it has no `oauth`; add the table "[upstreams.{name}.oauth]"'])
    names = ", ".join(targets) or "none"
    raise ConfigError([f"UPSTREAM: no upstream of that name; upstreams with `oauth`: {names}"])


def _with_oauth(config: Config) -> dict[str, tuple[Http | WebSocket, OAuth]]:
    targets = ((up.name, up.target) for up in config.upstreams if isinstance(up.target, Http | WebSocket))
    return {name: (target, target.oauth) for name, target in targets if target.oauth is not None}


def without_login(oauth: OAuth) -> str | None:
    """Return how tokens are obtained without a login; None when a login is needed."""
    if oauth.grant == CLIENT_CREDENTIALS:
        return "client credentials"
    provider = oauth.identity_provider
    return "an ID token in a file" if provider is not None and provider.token_file is not None else None


def describe(name: str, target: Http | WebSocket, oauth: OAuth) -> dict[str, Any]:
    """Return whether there is a token for an upstream, for people and machines, without secrets."""
    row: dict[str, Any] = {"upstream": name, "issuer": oauth.issuer or "", "scopes": []}
    if (how := without_login(oauth)) is not None:
        return row | {"ready": True, "state": how, "scopes": list(oauth.scopes)}
    try:
        kept = login_file(name, target).load()
    except StoreTrouble as error:
        return row | {"ready": False, "state": str(error)}
    if kept is None:
        return row | {"ready": False, "state": "not logged in"}
    expired = kept.tokens.until <= time.time()
    ready = not expired or kept.tokens.refresh is not None
    state = "logged in" if ready else "expired"
    if kept.wanted:
        state += f"; log in again for {printable(' '.join(kept.wanted))}"
    return row | {"ready": ready, "state": state, "issuer": kept.issuer, "scopes": list(kept.tokens.scopes)}


@auth.command("new-token")
@click.argument("name", type=A_NAME)
@click.option("--scope", "scopes", type=A_SCOPE, multiple=True, help="A scope of the token. May be repeated.")
def new_token(name: str, scopes: tuple[str, ...]) -> None:
    """Make a token for NAME, and its table for the configuration. The token is shown only once.

    Prints the token on stdout, and on stderr the table, which can be appended to the configuration as it is.

    \b
    Examples:
      mcpmux auth new-token alice
      mcpmux auth new-token bob > bob.token 2>> mcpmux.toml
      mcpmux auth new-token ci --scope read --scope call > ci.token
    """
    token = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    table = {"sha256": hash_token(token), **({"scopes": scopes} if scopes else {})}
    click.echo("# For the configuration. The token itself is shown only once.", err=True)
    click.echo(format_table(("auth", "tokens", name), table), err=True)
    click.echo(token)


@auth.command("hash-token")
def hash_given_token() -> None:
    """Print the hash of a token that was made elsewhere. The token is read from standard input.

    It must be long and random: the hash of a word can be found by trying words.

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
