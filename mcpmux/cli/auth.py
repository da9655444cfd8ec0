"""`mcpmux auth`: tokens for clients, and logins at upstreams."""

from __future__ import annotations

import re
import secrets
import sys

import click

from mcpmux.auth.static_token import LEAST_CHARACTERS, PREFIX, TOKEN_BYTES, hash_token
from mcpmux.cli.auth_login import login, logout, status
from mcpmux.cli.lazy import Commands
from mcpmux.errors import ConfigError

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
