"""A server as a `server.json` of the MCP registry or a server card describes it, as an upstream of ours.

| of the document | becomes |
| --- | --- |
| a package of npm, PyPI, NuGet or OCI, in its version | a command with `npx`, `uvx`, `dnx` or `docker` |
| a remote | its URL |
| a value, or a default | itself; a secret one becomes `${VAR}` |
| what is required and has neither | `${VAR}` |
| what is optional and has neither | nothing |

The first package whose program is here is taken, else the first remote, Streamable HTTP before HTTP+SSE.

Nothing in the document is trusted. No text of it is expanded: `${` stays text. The name of a package is never
an option, a path or a URL. Its program looks for it where it always looks; what the document says is told.

Source: `server.json` of 2025-12-11, in the MCP registry; server cards of the experimental extension
(SEP-2127), which have remotes only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import Literal, NamedTuple

import msgspec
from attrs import define, field

from mcpmux.errors import ConfigError
from mcpmux.hosts.entry import Table
from mcpmux.hosts.reference import NotTakenOver, escape, reference, variable_name

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
    """How a server is reached."""

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
    """`status`: what the registry says of it, "" for nothing."""

    name: str
    packages: tuple[Package, ...] = ()
    remotes: tuple[Remote, ...] = ()
    status: str = ""


class Described(NamedTuple):
    """What is taken of a document: the keys of the upstream, and what its user should know."""

    table: Table
    notes: tuple[str, ...]


def parse_server_json(data: bytes) -> Document:
    """The document, which an answer of a registry may have around it. Raises ConfigError."""
    try:
        found = msgspec.json.decode(data)
        inner = found.get("server") if isinstance(found, dict) else None
        if not isinstance(inner, dict):
            return msgspec.convert(found, Document)
        said = found.get("_meta")
        official = said.get("io.modelcontextprotocol.registry/official") if isinstance(said, dict) else None
        status = official.get("status", "") if isinstance(official, dict) else ""
        return msgspec.convert({**inner, "status": status}, Document)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError([f"not a server.json of the MCP registry: {error}"]) from None


def choose(document: Document, name: str, has_program: Callable[[str], bool]) -> Described:
    """The first that can be used of what the document offers. Raises NotTakenOver with all reasons.

    `name`: of the upstream. `has_program`: whether a program is on this machine.
    """
    remotes = sorted(document.remotes, key=lambda remote: remote.type == "sse")
    offers: list[tuple[str, Callable[[], Described]]] = [
        *((each.identifier, partial(_take_package, each, name, has_program)) for each in document.packages),
        *((each.url, partial(_take_remote, each, name)) for each in remotes),
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


class _Kind(NamedTuple):
    """How packages of one kind are started: PROGRAM `before` PACKAGE `joint` VERSION `after`.

    `name`: what names of packages match.
    """

    programs: tuple[str, ...]
    name: str
    joint: str = "@"
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


_NPM_NAME = r"(?:@[\w.~-]+/)?\w[\w.~-]*"
_IMAGE_NAME = r"\w[\w.-]*(?::[0-9]+(?=/))?(?:/[\w.-]+)*(?::[\w.-]+)?(?:@sha256:[0-9a-f]{64})?"
_VERSION = r"\w[\w.+!-]*"
_KINDS = {
    "npm": _Kind(("npx", "bunx"), _NPM_NAME, before=("-y",)),
    "pypi": _Kind(("uvx",), r"\w[\w.-]*"),
    "nuget": _Kind(("dnx",), r"\w[\w.-]*", after=("--yes",)),
    "oci": _Kind(("docker", "podman"), _IMAGE_NAME, ":", before=("run", "-i", "--rm")),
}


def _take_package(package: Package, name: str, has_program: Callable[[str], bool]) -> Described:
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
    forwarded = [word for key in env for word in ("-e", key)] if package.registry_type == "oci" else []
    runtime = [
        words for words in reading.arguments(package.runtime_arguments) if not {*words} <= {*kind.before}
    ]
    own = [*chain(*reading.arguments(package.package_arguments))]
    after = [*kind.after, "--"] if kind.after and own else kind.after
    table: Table = {
        "command": program,
        "args": [*kind.before, *forwarded, *chain(*runtime), _name_package(package, kind), *after, *own],
        **({"env": env} if env else {}),
    }
    notes = reading.notes
    if place := package.registry_base_url:
        notes.append(f"the document says that it is at {place}; `{program}` looks where it is set up to look")
    if package.file_sha256:
        notes.append(f"its hash is not checked: `{program}` fetches it, not mcpmux")
    return Described(table, tuple(notes))


def _name_package(package: Package, kind: _Kind) -> str:
    name, version = package.identifier, package.version
    if not re.fullmatch(kind.name, name, re.ASCII) or not re.fullmatch(f"({_VERSION})?", version, re.ASCII):
        raise NotTakenOver(f"that is no name and version of a package of `{package.registry_type}`")
    has_version = package.registry_type == "oci" and (":" in name.rpartition("/")[2] or "@" in name)
    return f"{name}{kind.joint}{version}" if version and not has_version else name


# Remotes.


def _take_remote(remote: Remote, name: str) -> Described:
    if remote.type not in ("streamable-http", "sse"):
        raise NotTakenOver(f"mcpmux does not know the transport `{remote.type}`")
    if not re.match(r"https?://|\{", remote.url):
        raise NotTakenOver("it has no URL with https://")
    reading = _Reading(name)
    url = reading.value("url", Input(value=remote.url, variables=remote.variables, is_required=True))
    headers = reading.pairs(remote.headers)
    table: Table = {
        "url": url,
        **({"transport": "sse"} if remote.type == "sse" else {}),
        **({"headers": headers} if headers else {}),
    }
    return Described(table, tuple(reading.notes))


# Values.

_IN_BRACES = re.compile(r"(\{[^{}]+\})")
_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")

Piece = tuple[str, bool]
"""A part of a text, and whether it is a reference of ours."""


@define
class _Reading:
    """Makes texts of ours out of inputs. `asked`: what the user has to give; `left_out`: what may be."""

    upstream: str
    asked: dict[str, str] = field(factory=dict)
    left_out: list[str] = field(factory=list)

    @property
    def notes(self) -> list[str]:
        """The same as sentences."""
        notes = [f"{variable}: {about or 'needed'}" for variable, about in self.asked.items()]
        optional = [f"left out, as it is optional: {', '.join(self.left_out)}"] if self.left_out else []
        return [*notes, *optional]

    def pairs(self, inputs: tuple[KeyValue, ...], *, same_names: bool = False) -> dict[str, str]:
        """Names and values. `same_names`: what is asked for is a variable of the same name."""
        said: dict[str, str] = {}
        for each in inputs:
            variable = each.name if same_names and _VARIABLE.fullmatch(each.name) else ""
            if (value := self.value(each.name, each, variable)) is not None:
                said[each.name] = value
        return said

    def arguments(self, inputs: tuple[Argument, ...]) -> Iterator[list[str]]:
        """Yields the words of each argument."""
        for number, each in enumerate(inputs, start=1):
            is_named = each.type == "named"
            if is_named and not each.name:
                raise NotTakenOver(f"its argument {number} is an option without a name")
            option = [escape(each.name)] if is_named else []
            if is_named and each == Argument(type="named", name=each.name, is_required=each.is_required):
                yield option  # nothing is said of a value: it has none
                continue
            key = each.name or each.value_hint or f"argument-{number}"
            if (value := self.value(key, each)) is not None:
                yield [*option, value]

    def value(self, key: str, given: Input, variable: str = "") -> str | None:
        """The text for an input; None when it is optional and has no value. `variable`: to ask for it by."""
        pieces: list[Piece | None]
        if given.value is None or (given.is_secret and not given.variables):
            pieces = [self._fill(variable or variable_name(self.upstream, key), given, given)]
        else:
            pieces = [self._read_piece(text, given) for text in _IN_BRACES.split(given.value)]
        known = [piece for piece in pieces if piece is not None]
        if len(known) < len(pieces):
            self.left_out.append(key)
            return None
        return _join(known)

    def _read_piece(self, text: str, whole: Input) -> Piece | None:
        inner = whole.variables.get(text[1:-1]) if _IN_BRACES.fullmatch(text) else None
        return (
            (text, False) if inner is None else self._fill(variable_name(self.upstream, text), inner, whole)
        )

    def _fill(self, variable: str, given: Input, whole: Input) -> Piece | None:
        """What stands for `given`, which is `whole` or a variable in it."""
        is_secret = given.is_secret or whole.is_secret
        text = given.default if given.value is None else given.value
        if text is not None and not is_secret:
            return text, False
        is_required = whole.is_required or any(each.is_required for each in whole.variables.values())
        if text is None and not is_required:
            return None
        about = [given.description[:_SHOWN_CHARACTERS]] if given.description else []
        about += [f"one of {', '.join(given.choices)}"] if given.choices else []
        self.asked[variable] = "; ".join(about)
        return reference(variable), True


def _join(pieces: list[Piece]) -> str:
    """The text that our configuration reads as that: only references are expanded."""
    joined = ""
    for is_reference, group in groupby(pieces, itemgetter(1)):
        text = "".join(text for text, _ in group)
        if is_reference and joined.endswith("$"):
            raise NotTakenOver("a `$` stands before one of its variables, which mcpmux cannot say")
        joined += text if is_reference else escape(text)
    return joined
