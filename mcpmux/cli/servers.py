"""`mcpmux add` and `mcpmux remove`: one server into a configuration file or out of it. Comments stay."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import click
import trio

from mcpmux.cli.console import tell
from mcpmux.cli.options import DEFAULT_FILE, PATH, Decorator, complete_server, pairs_of
from mcpmux.cli.process import Mistake, naming, run
from mcpmux.config import Missing
from mcpmux.config.argument import split_command
from mcpmux.config.expansion import display_url
from mcpmux.config.layout import SERVER_PLACES, SERVER_URL, UPSTREAMS
from mcpmux.config.model import NO_UPSTREAM
from mcpmux.config.report import hint_at
from mcpmux.config.scalars import derive_name, is_name
from mcpmux.errors import ConfigError, Problem, RemoteProtocolError, TransportError
from mcpmux.files import read_named_file, read_text, replace_text
from mcpmux.hosts.configuration import read_mapping
from mcpmux.hosts.document import parse, put, remove
from mcpmux.hosts.importing import STAND_IN
from mcpmux.hosts.reference import NotTakenOver, has_reference, variables_in
from mcpmux.hosts.secrecy import looks_secret, names_secret
from mcpmux.hosts.server_json import Described, choose, parse_server_json
from mcpmux.protocol.envelope import value_at
from mcpmux.transports.http.route import HttpOrigin, choose_proxy, is_loopback

# A document from a file, or from a URL that the user names, bounded in size and time.

DOCUMENT_BYTES = 1024 * 1024  # a hundred times what documents have
FETCH_SECONDS = 20.0

LOOKS_LIKE_URL = re.compile(r"[^/\\:${]{2,}:.*", re.DOTALL)  # also `htp:/x`, but no drive of Windows


def read_document(option: str, source: str, accept: str) -> bytes:
    """Return the contents of the file or URL `source`. Raises Mistake that names the option, McpmuxError."""
    if LOOKS_LIKE_URL.fullmatch(source):
        data: bytes = run(_fetch, option, source, accept)
        return data
    try:
        return read_named_file(source, DOCUMENT_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no name of a file"
        raise Mistake(f"{option}: {source}: cannot read the file: {reason}") from None


async def _fetch(option: str, url: str, accept: str) -> bytes:
    try:
        origin = HttpOrigin.from_url(url)
    except ValueError:
        raise Mistake(f"{option}: expected a file, or a URL with https://") from None
    if not origin.secure and not is_loopback(origin.host):
        raise Mistake(f"{option}: expected https://, as {origin.authority} is another machine")
    from mcpmux.transports.web_client import WebClient  # httpx is large

    client = WebClient(proxy=choose_proxy(origin, None), body_bytes=DOCUMENT_BYTES)
    with trio.move_on_after(FETCH_SECONDS):
        answer = await client.ask("GET", url, (("Accept", accept),))
        if answer.status != 200:
            raise RemoteProtocolError(f"{display_url(url)} answered with status {answer.status}")
        return answer.body
    raise TransportError(f"{origin.authority} did not answer within {FETCH_SECONDS:g} s")


DOCUMENT_TYPES = "application/mcp-server-card+json, application/json"

file_option: Decorator = click.option(
    "-f",
    "--file",
    type=PATH,
    default=DEFAULT_FILE,
    show_default=True,
    help="Configuration file: TOML, or the JSON of a host app.",
)


class AddCommand(click.Command):
    """Refuses a command line without NAME, whose first word would be taken for it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See click.Command."""
        if "--" in args:
            values, _, _ = self.make_parser(ctx).parse_args(args[: args.index("--")])
            if not isinstance(values.get("name"), str):
                raise click.UsageError("expected NAME in front of --, as in `mcpmux add time -- uvx x`", ctx)
        return super().parse_args(ctx, args)


@click.command(cls=AddCommand)
@click.argument("name", required=False)
@click.argument("target", nargs=-1, metavar="[URL | -- COMMAND...]", type=click.UNPROCESSED)
@file_option
@click.option(
    "--registry",
    metavar="FILE|URL",
    help="Take it from a server.json of the MCP registry, or a server card.",
)
@click.option(
    "--trust",
    "trusted",
    multiple=True,
    metavar="NAME",
    help="Take over this argument, variable, header or URL of the document, whatever it does. Repeatable.",
)
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="Variable for the command.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="Header for the URL, also as 'NAME: VALUE'.",
)
def add(
    name: str | None,
    target: tuple[str, ...],
    file: Path,
    registry: str | None,
    trusted: tuple[str, ...],
    env: tuple[str, ...],
    headers: tuple[str, ...],
) -> None:
    """Add a server to a configuration file, by its URL, its command, or a document about it.

    The file is made if there is none. Everything else in it stays as it is, with its comments. Nothing is
    written when mcpmux would not accept the result. Values may have references such as ${TOKEN}, so that no
    secret has to be in the file.

    With --registry, the first package is added whose program (npx, uvx, docker, dnx) is here, else a URL.
    NAME is the last part of the name in the document by default. Values that the server needs become
    ${VARIABLE}, and are listed; no question is asked, and no program started or installed. Arguments, and
    values of variables and headers, are refused if mcpmux does not know them to be harmless, unless you
    --trust them by name, as are variables of yours that are sent to a URL, and URLs without encryption.

    \b
    Examples:
      mcpmux add time -- uvx mcp-server-time
      mcpmux add time "uvx mcp-server-time"
      mcpmux add docs https://docs.example.com/mcp --header 'Authorization: Bearer ${DOCS_TOKEN}'
      mcpmux add files --file my-mux.toml --env MODE=ro -- npx -y files-server .
      mcpmux add --registry server.json
      mcpmux add --registry server.json --trust --volume
    """
    if (registry is None) != bool(name and target):
        raise click.UsageError("expected NAME and a URL or a command, or --registry and perhaps NAME")
    if trusted and registry is None:
        raise click.UsageError("--trust is for the document of --registry")
    notes: tuple[str, ...] = ()
    own_env, own_headers = pairs_of("--env", env), pairs_of("--header", headers, is_header=True)
    if registry is not None:
        name, (entry, notes) = read_registry(registry, name, {*trusted, *own_env}, own_headers)
        notes = (*notes_about_values(entry, own_env), *notes)
    else:
        entry = make_entry(target)
    assert name is not None
    check_name(name)
    entry = with_values(entry, own_env, own_headers)
    old_text = read_text(file)
    document, format_ = read_file(file, old_text)
    place = find_place(document, format_)
    if taken := find_key(document, place, name):
        raise Mistake(f"{file}: there is `{taken}` already; remove it first, or take another name")
    for note in notes:  # before anything is written
        tell(note)
    change(file, old_text, format_, lambda text: put(text, format_, (*place, name), entry), entry)
    click.echo(f"{name}: added to {file}")
    tell_about(entry)


@click.command("remove")
@click.argument("name", shell_complete=complete_server)
@file_option
def remove_command(name: str, file: Path) -> None:
    """Remove a server from a configuration file. Everything else in it stays as it is.

    \b
    Example:
      mcpmux remove time
    """
    old_text = read_text(file)
    if old_text is None:
        raise Mistake(f"{file}: there is no such file")
    document, format_ = read_file(file, old_text)
    place = find_place(document, format_)
    key = find_key(document, place, name)
    if key is None:
        hint = hint_at(name, value_at(document, place) or ())
        raise Mistake(f"{file}: there is no server `{name}`{hint}")
    change(file, old_text, format_, lambda text: remove(text, format_, (*place, key)))
    click.echo(f"{name}: removed from {file}")


def check_name(name: str) -> None:
    """Check that NAME can be the name of an upstream. Raises Mistake."""
    if not is_name(name):
        expected = f"a name of a-z, 0-9, `.` and `-`, at most 32 characters, such as `{derive_name(name)}`"
        raise Mistake(f"NAME: expected {expected}")


def read_registry(
    source: str, name: str | None, trusted: Collection[str], own_headers: Collection[str]
) -> tuple[str, Described]:
    """Return the name of the server, by default the document's, and its entry. Raises McpmuxError."""
    try:
        document = parse_server_json(read_document("--registry", source, DOCUMENT_TYPES))
        name = name or derive_name(document.name.rpartition("/")[2])
        return name, choose(document, name, has_program, trusted, own_headers)
    except (ConfigError, NotTakenOver) as error:
        raise ConfigError([f"--registry: {error}"]) from None


def has_program(name: str) -> bool:
    """Return whether a program is on this machine."""
    return shutil.which(name) is not None


def notes_about_values(entry: Mapping[str, Any], env: Collection[str]) -> list[str]:
    """Return a sentence for each variable and header to which the document gives a value.

    `env`: the variables of the user.
    """
    variables = {key: value for key, value in entry.get("env", {}).items() if key not in env}
    settings = [(f"{key}={value}", value) for key, value in variables.items()]
    settings += [(f"the header {key}: {value}", value) for key, value in entry.get("headers", {}).items()]
    return [f"the document sets {what}" for what, value in settings if not has_reference(value)]


def make_entry(target: tuple[str, ...]) -> dict[str, Any]:
    """Return the keys of the server. Raises Mistake."""
    if len(target) == 1 and LOOKS_LIKE_URL.fullmatch(target[0]):
        if not has_reference(target[0]):
            with naming("URL"):
                SERVER_URL.read(target[0])
        return {"url": target[0]}
    words = target
    if len(target) == 1 and (" " in target[0] or "\\" not in target[0]):  # no path of Windows
        with naming("COMMAND"):
            words = split_command(target[0]) or target
    command, *args = words
    return {"command": command, **({"args": args} if args else {})}


def with_values(
    entry: Mapping[str, Any], env: Mapping[str, str], headers: Mapping[str, str]
) -> dict[str, Any]:
    """Return the keys of the server with the values of the options. Raises Mistake."""
    if env and "url" in entry:
        raise Mistake("--env: a URL has no environment; it is for a command")
    if headers and "url" not in entry:
        raise Mistake("--header: a command has no headers; they are for a URL")
    more = {"env": env, "headers": headers}
    return {**entry, **{key: {**entry.get(key, {}), **value} for key, value in more.items() if value}}


def read_file(file: Path, text: str | None) -> tuple[Mapping[str, Any], str]:
    """Return the document and its format. Raises ConfigError."""
    is_json = file.suffix.lower() in (".json", ".jsonc") or (text or "").lstrip()[:1] in ("{", "/")
    format_ = "json" if is_json else "toml"
    try:
        return parse(text or "", format_), format_
    except ConfigError as error:
        raise ConfigError(error.found, str(file)) from None


def find_place(document: Mapping[str, Any], format_: str) -> tuple[str, ...]:
    """Return the key path of the servers."""
    if format_ == "toml" or UPSTREAMS in document:
        return (UPSTREAMS,)
    return next((place for place in SERVER_PLACES if value_at(document, place) is not None), SERVER_PLACES[0])


def find_key(document: Mapping[str, Any], place: tuple[str, ...], name: str) -> str | None:
    """Return the key of the server that has the name, or gets it; None if there is none."""
    servers = value_at(document, place)
    keys = servers if isinstance(servers, Mapping) else ()
    return next((key for key in keys if name in (key, derive_name(key))), None)


def change(
    file: Path,
    before: str | None,
    format_: str,
    edit: Callable[[str], str],
    entry: Mapping[str, Any] | None = None,
) -> None:
    """Edit the file if mcpmux accepts the result at least as well as before. Raises ConfigError."""
    environ = {**dict.fromkeys(variables_in(entry), STAND_IN), **os.environ}

    def find_problems(text: str) -> list[Problem]:
        try:
            document = parse(text, format_)
            upstreams = read_mapping(document, environ, str(file), is_json=format_ == "json").upstreams
        except ConfigError as error:
            return error.found
        targets = {upstream.name: upstream.target for upstream in upstreams}
        return [
            Problem((name,), target.reason) for name, target in targets.items() if isinstance(target, Missing)
        ]

    try:
        after = edit(before or "")
    except ConfigError as error:
        raise ConfigError(error.found, str(file)) from None
    known = {Problem((), NO_UPSTREAM), *find_problems(before or "")}
    if problems := [each for each in find_problems(after) if each not in known]:
        raise ConfigError(problems, str(file))
    replace_text(file, after, before)


def tell_about(entry: Mapping[str, Any]) -> None:
    """Print advice about secrets and unset variables on stderr."""
    for part in ("env", "headers"):
        for key, value in entry.get(part, {}).items():
            if not has_reference(value) and (names_secret(key) or looks_secret(value)):
                tell(f"{part} {key}: the value is in the file; better is ${{VARIABLE}} or ${{file:PATH}}")
    tell_unset(entry, os.environ)


def tell_unset(value: object, set_already: Collection[str]) -> None:
    """Print which variables in tables of servers have to be set before mcpmux starts."""
    if unset := [name for name in dict.fromkeys(variables_in(value)) if name not in set_already]:
        tell(f"set these variables first: {', '.join(unset)}")
