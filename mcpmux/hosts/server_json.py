"""Translate a `server.json` of the MCP registry, or a server card, to an upstream of ours.

| in the document | becomes |
| --- | --- |
| a package of npm, PyPI, NuGet or OCI, in its version | a command with `npx`, `uvx`, `dnx` or `docker` |
| a remote | its URL |
| a value, or a default | itself; a secret one becomes `${VAR}` |
| a required value with neither | `${VAR}` |
| an optional value with neither | nothing |

The first package whose program is installed is taken, else the first remote, Streamable HTTP before HTTP+SSE.

The document is not trusted. Its texts are not expanded: `${` stays text. The name of a package is never
an option, a path or a URL. Its program looks for it where it always looks; another place in the document is
only noted. Other settings of the document are taken over if they are on a list of harmless ones (arguments of
that program and of the package, variables and headers with a value), or if the user trusts them by name. The
user's own values are the user's, but those that a remote gets must be trusted by name, too.

Source: `server.json` of 2025-12-11, in the MCP registry; server cards of the experimental extension
(SEP-2127), which have remotes only.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec
from attrs import define, field

from mcpmux.config.listener import is_loopback
from mcpmux.config.report import InvalidValue
from mcpmux.config.scalars import HEADER_VALUE
from mcpmux.errors import ConfigError
from mcpmux.hosts.entry import Table
from mcpmux.hosts.reference import NotTakenOver, escape, reference, variable_name, variables_in

_SHOWN_CHARACTERS = 200  # of a description


class Input(msgspec.Struct, rename="camel", kw_only=True):
    """A value that is fixed, or given by the user. `variables` are those in braces in `value`."""

    value: str | None = None
    default: str | None = None
    description: str = ""
    is_required: bool = False
    is_secret: bool = False
    format: str = ""
    placeholder: str = ""
    choices: tuple[str, ...] = ()
    variables: dict[str, Input] = {}


class KeyValue(Input, rename="camel", kw_only=True):
    """A header or an environment variable."""

    name: str


class Argument(Input, rename="camel", kw_only=True):
    """A word of a command line, or an option and its value."""

    type: Literal["positional", "named"]
    name: str = ""
    value_hint: str = ""


class Remote(msgspec.Struct, rename="camel", kw_only=True):
    """An address of a server."""

    type: str
    url: str = ""
    headers: tuple[KeyValue, ...] = ()
    variables: dict[str, Input] = {}


class Package(msgspec.Struct, rename="camel", kw_only=True):
    """A program that can be fetched and started."""

    registry_type: str
    identifier: str
    transport: Remote
    version: str = ""
    registry_base_url: str = ""
    runtime_hint: str = ""
    runtime_arguments: tuple[Argument, ...] = ()
    package_arguments: tuple[Argument, ...] = ()
    environment_variables: tuple[KeyValue, ...] = ()
    file_sha256: str = msgspec.field(default="", name="fileSha256")


class Document(msgspec.Struct, kw_only=True):
    """A server of the registry. `status`: in the registry, "" if not given."""

    name: str
    packages: tuple[Package, ...] = ()
    remotes: tuple[Remote, ...] = ()
    status: str = ""


class Described(NamedTuple):
    """The translation of a document: the keys of the upstream, and notes for its user."""

    table: Table
    notes: tuple[str, ...]


def parse_server_json(data: bytes) -> Document:
    """Return the document, perhaps out of an answer of a registry. Raises ConfigError."""
    try:
        document = msgspec.json.decode(data)
        inner = document.get("server") if isinstance(document, dict) else None
        if not isinstance(inner, dict):
            return msgspec.convert(document, Document)
        meta = document.get("_meta")
        official = meta.get("io.modelcontextprotocol.registry/official") if isinstance(meta, dict) else None
        status = official.get("status", "") if isinstance(official, dict) else ""
        return msgspec.convert({**inner, "status": status}, Document)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError([f"not a server.json of the MCP registry: {error}"]) from None


def choose(
    document: Document,
    name: str,
    has_program: Callable[[str], bool],
    trusted: Collection[str] = (),
    own_headers: Collection[str] = (),
) -> Described:
    """Return the first offer of the document that can be used. Raises NotTakenOver with all reasons.

    `name`: of the upstream. `has_program`: whether a program is on this machine. `trusted`: arguments,
    variables, headers and URLs that the user accepts from the document. `own_headers`: those
    that the user gives instead of the document's.
    """
    remotes = sorted(document.remotes, key=lambda remote: remote.type == "sse")
    offers: list[tuple[str, Callable[[], Described]]] = [
        *(
            (package.identifier, partial(_take_package, package, name, has_program, trusted))
            for package in document.packages
        ),
        *((remote.url, partial(_take_remote, remote, name, trusted, own_headers)) for remote in remotes),
    ]
    reasons: list[str] = []
    for number, (what, take) in enumerate(offers, start=1):
        try:
            taken = take()
        except NotTakenOver as reason:
            reasons.append(f"{what}: {reason}")
            continue
        notes = [*reasons, *taken.notes]
        if others := [what for what, _ in offers[number:]]:
            notes.append(f"it is offered in other ways, too: {', '.join(others)}")
        if document.status not in ("", "active"):
            notes.append(f"the registry says that it is {document.status}")
        return Described(taken.table, tuple(notes))
    raise NotTakenOver("; ".join(reasons) or "it offers neither packages nor remotes")


# Packages.


_SOURCE = "changes where packages come from"
_OTHER = "runs something else than the package"
_OPEN = "opens the container to this machine"
_UNKNOWN = "is not one that mcpmux knows to be harmless"
_CODE = "may be code, a place or an address to a program that reads it"
_CLEAR = "is reached without encryption"
_MASKED = "has a user in front of its host, as in names that deceive"
_IDENTITY = "may say who you are, or where a request goes"


class _Kind(NamedTuple):
    """The way to start packages of one kind: PROGRAM `before` PACKAGE `joint` VERSION `after`.

    `name`: pattern of names of packages. `harmless`: pattern of the words of one more argument, with spaces
    between them, that changes neither which program is run nor what it may do. `effects`: of other options.
    """

    programs: tuple[str, ...]
    name: str
    harmless: str
    effects: Mapping[str, str]
    joint: str = "@"
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


def _effects(**options: str) -> dict[str, str]:
    """Return the effect of each option. `options`: those with one effect, which is named by the key."""
    effects = {"source": _SOURCE, "other": _OTHER, "open": _OPEN}
    return {option: effects[key] for key, texts in options.items() for option in texts.split()}


_GIVEN = r"\$\{\w+\}"  # by the user; `$${` is text of the document
_ASKED_FOR = re.compile(rf"(?<!\$){_GIVEN}")

# Settings that a document may have: how a server talks, logs and counts, in words that are no code, place or
# address.
_VALUE = rf"(?:\w[\w.-]*(?:,\w[\w.-]*)*|{_GIVEN})"
_SETTING = (
    "(?i:transport|port|mode|read[-_]?only|region|locale|lang|lc[-_]all|language|timezone|tz|"
    "log[-_]?(?:level|format)|verbose|quiet|no[-_]color|(?:no|disable)[-_]telemetry|"
    "timeout(?:[-_]m?s|[-_]seconds)?|limit|max[-_](?:results|retries|tokens))"
)
_HARMLESS_VARIABLE = (
    rf"(?:(?:\w+_)?{_SETTING}|DEBUG|NODE_ENV|NODE_NO_WARNINGS|"
    r"DOTNET_(?:ENVIRONMENT|NOLOGO|CLI_TELEMETRY_OPTOUT)|"
    rf"PYTHON(?:UNBUFFERED|IOENCODING|UTF8|DONTWRITEBYTECODE|HASHSEED))={_VALUE}?|\w+={_GIVEN}"
)
_HARMLESS_ARGUMENT = (
    rf"\.|mcp|mcp-server|run|serve|server|start|stdio|--(?:mcp|stdio|debug)|--{_SETTING}(?:[ =]{_VALUE})?|"
    rf"(?:-\w|--\w[\w-]*)[ =]{_GIVEN}|{_GIVEN}"
)

_NPM_NAME = r"(?:@[\w.~-]+/)?\w[\w.~-]*"
_IMAGE_NAME = r"\w[\w.-]*(?::[0-9]+(?=/))?(?:/[\w.-]+)*(?::[\w.-]+)?(?:@sha256:[0-9a-f]{64})?"
_ARCHIVE = re.compile(r"\.(tgz|tar|tar\.gz)$", re.IGNORECASE)  # npm takes such a name or version for a file
_VERSION = r"\w[\w.+!-]*"
_KINDS = {
    "npm": _Kind(
        ("npx", "bunx"),
        _NPM_NAME,
        harmless="-y|--yes|-q|--quiet|--silent|--offline|--prefer-offline|--prefer-online|--ignore-scripts",
        effects=_effects(
            source="--registry --userconfig --globalconfig --proxy --https-proxy --cafile --prefix",
            other="-p --package -c --call -e --eval -n --node-arg --node-options --script-shell --shell",
        ),
        before=("-y",),
    ),
    "pypi": _Kind(
        ("uvx",),
        r"\w[\w.-]*",
        harmless=r"-q|--quiet|-v|--verbose|-n|--no-cache|--isolated|--offline|--refresh|--no-progress|"
        rf"(?:-p|--python)[ =](?:[0-9]+(?:\.[0-9]+)*|{_GIVEN})",
        effects=_effects(
            source="-i --index --index-url --default-index --extra-index-url -f --find-links --config-file "
            "--allow-insecure-host --directory",
            other="--from -w --with --with-editable --with-requirements -p --python --env-file",
        ),
    ),
    "nuget": _Kind(
        ("dnx",),
        r"\w[\w.-]*",
        harmless=r"-y|--yes|--prerelease|--allow-roll-forward|(?:-v|--verbosity)[ =]\w+",
        effects=_effects(source="--source --add-source --configfile"),
        after=("--yes",),
    ),
    "oci": _Kind(
        ("docker", "podman"),
        _IMAGE_NAME,
        harmless=r"run|-i|-t|-it|--interactive|--tty|--rm|--init|-q|--quiet|--read-only|"
        r"(?:-m|--memory|--cpus|--pids-limit|--cap-drop|--platform|--pull|--name)[ =]"
        rf"(?:\w[\w.:/-]*|{_GIVEN})|(?:-e|--env)[ =](?:{_HARMLESS_VARIABLE})|"
        "--network[ =]none|--security-opt[ =]no-new-privileges",
        effects=_effects(
            open="-v --volume --volumes-from --mount --privileged --cap-add --device --network --net --pid "
            "--ipc --uts --userns --cgroupns --security-opt --gpus --group-add -p -P --publish "
            "--publish-all --add-host -e --env --env-file",
            other="--entrypoint --runtime",
        ),
        joint=":",
        before=("run", "-i", "--rm"),
    ),
}

# Headers whose values reveal no fact about the user, and contain no address.
_HARMLESS_HEADER = re.compile("Accept(-Language)?|Content-Type|User-Agent|[A-Za-z-]*-Version", re.IGNORECASE)


def _take_package(
    package: Package, name: str, has_program: Callable[[str], bool], trusted: Collection[str]
) -> Described:
    kind = _KINDS.get(package.registry_type)
    if kind is None:
        raise NotTakenOver(f"mcpmux cannot run packages of `{package.registry_type}`")
    if package.transport.type != "stdio":
        raise NotTakenOver(f"it speaks {package.transport.type}: somebody has to start it first")
    program = package.runtime_hint if package.runtime_hint in kind.programs else kind.programs[0]
    if package.runtime_arguments and package.runtime_hint not in ("", program):
        raise NotTakenOver(f"its arguments are for `{package.runtime_hint}`, which mcpmux does not use")
    if not has_program(program):
        raise NotTakenOver(f"there is no `{program}` on this machine")
    reading = _Reading(name)
    env = reading.pairs(package.environment_variables, same_names=True)
    forwarded = [["-e", key] for key in env] if package.registry_type == "oci" else []
    runtime = [
        words
        for words in reading.arguments(package.runtime_arguments)
        if not {*words} <= {*kind.before} and words not in forwarded
    ]
    of_package = list(reading.arguments(package.package_arguments))
    effects = _find_effects(runtime, kind.harmless, kind.effects, _OTHER)
    effects |= _find_effects(of_package, _HARMLESS_ARGUMENT, {}, _CODE)
    effects |= {
        key: _CODE
        for key, value in env.items()
        if not re.fullmatch(_HARMLESS_VARIABLE, f"{key}={value}", re.ASCII)
    }
    _refuse(effects, trusted)
    own = [*chain(*of_package)]
    after = [*kind.after, "--"] if kind.after and own else kind.after
    table: Table = {
        "command": program,
        "args": [*kind.before, *chain(*forwarded, *runtime), _name_package(package, kind), *after, *own],
        **({"env": env} if env else {}),
    }
    notes = [f"the document has an argument for `{program}`: {shlex.join(words)}" for words in runtime]
    notes += [f"the document has an argument for the package: {shlex.join(words)}" for words in of_package]
    notes += reading.notes
    if place := package.registry_base_url:
        notes.append(f"the document says that it is at {place}; `{program}` looks where it is set up to look")
    if package.file_sha256:
        notes.append(f"its hash is not checked: `{program}` fetches it, not mcpmux")
    return Described(table, tuple(notes))


def _find_effects(
    arguments: list[list[str]], harmless: str, effects: Mapping[str, str], of_word: str
) -> dict[str, str]:
    """Return the name of each argument that is not known to be harmless, and its effect.

    `harmless`: pattern of the words of an argument, with spaces between them. `effects`: of some options.
    `of_word`: the effect of words that are no options.
    """
    dangers: dict[str, str] = {}
    for words in arguments:
        if re.fullmatch(harmless, " ".join(words), re.ASCII):
            continue
        is_option = words[0].startswith("-")
        name = words[0].partition("=")[0] if is_option else words[0]
        # A short option may have its value in the same word: `-v/:/host`.
        short = name[:2] if not name.startswith("--") else name
        dangers[name] = (effects.get(name) or effects.get(short, _UNKNOWN)) if is_option else of_word
    return dangers


def _refuse(effects: Mapping[str, str], trusted: Collection[str]) -> None:
    """Raise NotTakenOver if anything has an effect and is not trusted."""
    if refused := [
        f"`{option}` {effect} (allow it with `--trust {shlex.quote(option)}`)"
        for option, effect in effects.items()
        if option not in trusted
    ]:
        raise NotTakenOver(f"not without your consent: {'; '.join(refused)}")


def _name_package(package: Package, kind: _Kind) -> str:
    name, version = package.identifier, package.version
    is_file = package.registry_type == "npm" and (_ARCHIVE.search(name) or _ARCHIVE.search(version))
    if (
        is_file
        or not re.fullmatch(kind.name, name, re.ASCII)
        or not re.fullmatch(f"({_VERSION})?", version, re.ASCII)
    ):
        raise NotTakenOver(f"that is no name and version of a package of `{package.registry_type}`")
    has_version = package.registry_type == "oci" and (":" in name.rpartition("/")[2] or "@" in name)
    return f"{name}{kind.joint}{version}" if version and not has_version else name


# Remotes.


def _take_remote(
    remote: Remote, name: str, trusted: Collection[str], own_headers: Collection[str]
) -> Described:
    if remote.type not in ("streamable-http", "sse"):
        raise NotTakenOver(f"mcpmux does not know the transport `{remote.type}`")
    reading = _Reading(name)
    url = reading.value("url", Input(value=remote.url, variables=remote.variables, is_required=True)) or ""
    if not re.match("https?://", url):  # a user who gives the scheme may give one that others can read
        raise NotTakenOver("it has no URL with https://")
    own = {own_header.lower() for own_header in own_headers}
    headers = reading.pairs(tuple(header for header in remote.headers if header.name.lower() not in own))
    effects = _find_url_effects(url)
    sent = dict.fromkeys(variables_in(url), f"is sent to {url}")
    for key, value in headers.items():
        try:
            HEADER_VALUE.read(value)
        except InvalidValue as mistake:
            raise NotTakenOver(f"its header `{key}`: {mistake}") from None
        variables = [*variables_in(value)]
        sent |= dict.fromkeys(variables, f"is sent to {url} in the header {key}")
        if not variables and not _HARMLESS_HEADER.fullmatch(key):
            effects[key] = _IDENTITY
    _refuse({**effects, **sent}, trusted)
    table: Table = {
        "url": url,
        **({"transport": "sse"} if remote.type == "sse" else {}),
        **({"headers": headers} if headers else {}),
    }
    notes = [f"the variable {variable} {where}" for variable, where in sent.items()]
    return Described(table, (f"the document sends requests to {url}", *notes, *reading.notes))


def _find_url_effects(url: str) -> dict[str, str]:
    """Return a URL with its effect, if others can read what is sent there, or its host is disguised."""
    filled = _ASKED_FOR.sub("0", url)
    authority = re.split(r"[/?#]", filled.partition("://")[2], maxsplit=1)[0]
    if "@" in authority or "\\" in authority:
        return {url: _MASKED}
    if not filled.startswith("http:"):
        return {}
    with suppress(ValueError):
        if is_loopback(urlsplit(filled).hostname or ""):
            return {}
    return {url: _CLEAR}


# Values.

_IN_BRACES = re.compile(r"(\{[^{}]+\})")
_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")

Piece = tuple[str, bool]
"""A part of a text, and whether it is a reference of ours."""


@define
class _Reading:
    """Makes our texts out of inputs. `asked`: values the user has to give; `left_out`: optional ones."""

    upstream: str
    asked: dict[str, str] = field(factory=dict)
    left_out: list[str] = field(factory=list)

    @property
    def notes(self) -> list[str]:
        """Sentences about `asked` and `left_out`."""
        notes = [f"{variable}: {about or 'needed'}" for variable, about in self.asked.items()]
        optional = [f"left out, as it is optional: {', '.join(self.left_out)}"] if self.left_out else []
        return [*notes, *optional]

    def pairs(self, inputs: tuple[KeyValue, ...], *, same_names: bool = False) -> dict[str, str]:
        """Return names and values. `same_names`: an asked-for value is a variable of the same name."""
        values: dict[str, str] = {}
        for input_ in inputs:
            variable = input_.name if same_names and _VARIABLE.fullmatch(input_.name) else ""
            if (value := self.value(input_.name, input_, variable)) is not None:
                values[input_.name] = value
        return values

    def arguments(self, inputs: tuple[Argument, ...]) -> Iterator[list[str]]:
        """Yield the words of each argument."""
        for number, input_ in enumerate(inputs, start=1):
            is_named = input_.type == "named"
            if is_named and not input_.name:
                raise NotTakenOver(f"its argument {number} is an option without a name")
            option = [escape(input_.name)] if is_named else []
            if is_named and input_ == Argument(
                type="named", name=input_.name, is_required=input_.is_required
            ):
                yield option  # it has no member about a value
                continue
            key = input_.name or input_.value_hint or f"argument-{number}"
            if (value := self.value(key, input_)) is not None:
                yield [*option, value]

    def value(self, key: str, given: Input, variable: str = "") -> str | None:
        """Return the text for an input; None when it is optional and absent. `variable`: to ask for it."""
        pieces: list[Piece | None]
        if given.value is None or (given.is_secret and not given.variables):
            pieces = [self._fill(variable or variable_name(self.upstream, key), given, given)]
        else:
            pieces = [self._read_piece(text, given) for text in _IN_BRACES.split(given.value)]
        present = [piece for piece in pieces if piece is not None]
        if len(present) < len(pieces):
            self.left_out.append(key)
            return None
        joined = ""
        for is_reference, group in groupby(present, itemgetter(1)):
            text = "".join(text for text, _ in group)
            if is_reference and joined.endswith("$"):
                raise NotTakenOver("a `$` stands before one of its variables, which mcpmux cannot say")
            joined += text if is_reference else escape(text)  # only references are expanded
        return joined

    def _read_piece(self, text: str, whole: Input) -> Piece | None:
        inner = whole.variables.get(text[1:-1]) if _IN_BRACES.fullmatch(text) else None
        return (
            (text, False) if inner is None else self._fill(variable_name(self.upstream, text), inner, whole)
        )

    def _fill(self, variable: str, given: Input, whole: Input) -> Piece | None:
        """Return the replacement for `given`, which is `whole` or a variable in it."""
        is_secret = given.is_secret or whole.is_secret
        text = given.default if given.value is None else given.value
        if text is not None and not is_secret:
            return text, False
        is_required = whole.is_required or any(variable.is_required for variable in whole.variables.values())
        if text is None and not is_required:
            return None
        about = [given.description[:_SHOWN_CHARACTERS]] if given.description else []
        about += [f"one of {', '.join(given.choices)}"] if given.choices else []
        self.asked[variable] = "; ".join(about)
        return reference(variable), True
