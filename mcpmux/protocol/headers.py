"""Make the HTTP headers of requests, and check those of clients against the body.

Headers come as a dict with lower-case names. A tool whose `x-mcp-header` annotations break the rules is
left out of the list; a call carries a `Mcp-Param-*` header for each annotated argument. Only Streamable
HTTP of 2026-07-28 has that. Independent of how headers were received.

Source: "Streamable HTTP" (Request Metadata, Server Validation, Custom Headers from Tool Parameters) and
`server/tools` (x-mcp-header), 2026-07-28; RFC 9110 section 10.2.3 (Retry-After); Fetch, "CORS protocol".
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Any, Final
from urllib.parse import urlsplit

from mcpmux.errors import RpcError
from mcpmux.lru import Lru
from mcpmux.protocol import method as m
from mcpmux.protocol.call import Call, Meta, check_call, stated_version
from mcpmux.protocol.codes import HEADER_MISMATCH, METHOD_NOT_FOUND
from mcpmux.protocol.envelope import UNREADABLE, objects_in, raw, text_decoder, text_of, value_at, value_of
from mcpmux.protocol.raw_json import Fields
from mcpmux.protocol.revisions import SUPPORTED

Headers = tuple[tuple[str, str], ...]
Path = tuple[str, ...]
"""Names of properties, from the outermost to the innermost."""

VERSION_HEADER: Final = "mcp-protocol-version"
METHOD_HEADER: Final = "mcp-method"
NAME_HEADER: Final = "mcp-name"
PARAM_PREFIX: Final = "mcp-param-"
SESSION_HEADER: Final = "mcp-session-id"
SESSION_KEY: Final = "session_id"  # the same in the query of a POST, over HTTP+SSE
LAST_EVENT_ID: Final = "last-event-id"

TOOL_LIMIT: Final = (
    10_000  # annotated tools remembered of one server; those that are forgotten get no headers
)
TOOL_BYTES: Final = 4 * 2**20  # of those tools
HEADER_CHARS: Final = 128  # of the name of a header; real ones are a word or two
LONGEST_SECONDS = 24 * 3600.0  # a longer wish is cut to a day; no client waits so long for an answer

_MARK: Final = b"x-mcp-header"
_NAMED_BY: Final = {m.TOOLS_CALL: "name", m.PROMPTS_GET: "name", m.RESOURCES_READ: "uri"}
_NAMED_TASKS: Final = frozenset({m.TASKS_GET, m.TASKS_UPDATE, m.TASKS_CANCEL})
"""The Tasks extension names them by `taskId`: we send it, and check it if a client sends it."""
_NAMING: Final = {**_NAMED_BY, **dict.fromkeys(_NAMED_TASKS, "taskId")}
_PLAIN_METHODS: Final = m.READ_ONLY.union(_NAMING)  # known to be valid header values
_SHOWN: Final = {VERSION_HEADER: "MCP-Protocol-Version", METHOD_HEADER: "Mcp-Method", NAME_HEADER: "Mcp-Name"}
_PACKED: Final = "=?base64?"
_SENTINEL: Final = re.compile(r"=\?base64\?(.*)\?=", re.DOTALL)
_PLAIN: Final = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)?")
# Characters that may stand around a header value (RFC 9110 section 5.5); other blanks are content.
_WHITESPACE: Final = " \t"
_INTEGER: Final = re.compile(r"(-?[0-9]{1,20})(?:\.0{1,20})?")  # a safe integer has 16 digits at most
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NAMED_SCHEMAS: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
_NO_SCHEMA: Final = frozenset({"const", "default", "enum", "examples", "required", "dependentRequired"})


class HeaderMismatch(RpcError):
    """-32020: a header is missing, malformed, or contradicts the body."""

    def __init__(self, message: str) -> None:
        super().__init__(HEADER_MISMATCH, f"Header mismatch: {message}")


class InvalidHeaderSchema(ValueError):
    """An `x-mcp-header` annotation breaks the rules; its tool must not be offered over HTTP."""


def encode_value(text: str) -> str:
    """Return `text` as a header value: unchanged when that is safe, else in the base64 form."""
    # True for most texts, and faster than the pattern.
    is_plain = text.isascii() and text.isprintable() and " " not in text
    # A text that looks like the base64 form is encoded as well, or its reader would decode it.
    if (is_plain or _PLAIN.fullmatch(text)) and not (text.startswith(_PACKED) and text.endswith("?=")):
        return text
    packed = base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()
    return f"{_PACKED}{packed}?="


def decode_value(value: str) -> str:
    """Return the text that a header value stands for. Raises HeaderMismatch when it is malformed."""
    wrapped = _SENTINEL.fullmatch(value)
    if wrapped is None:
        return _plain(value)
    try:
        return base64.b64decode(wrapped.group(1), validate=True).decode()
    except ValueError:  # bad base64, or not UTF-8
        raise HeaderMismatch(f"{value!r} is not valid base64") from None


def _plain(value: str) -> str:
    if not _PLAIN.fullmatch(value):
        raise HeaderMismatch("a value has characters that a header must not have")
    return value


def method_headers(method: str, revision: str) -> Headers:
    """Return the headers that every modern request has. Raises RpcError for a method that none can carry."""
    if not _PLAIN.fullmatch(method):
        raise RpcError(METHOD_NOT_FOUND, f"Method not found: {method}")
    return (("MCP-Protocol-Version", revision), ("Mcp-Method", method))


def name_headers(method: str, params: Fields) -> Headers:
    """Return the standard header with the name or URI of a modern request, if its method has one."""
    key = _NAMING.get(method)
    if key is None or key not in params:
        return ()
    try:
        name = text_decoder.decode(params[key])
    except UNREADABLE:
        return ()
    return (("Mcp-Name", encode_value(name)),)


def check_request(headers: dict[str, str], call: Call) -> None:
    """Check that a modern request's `_meta` is complete and agrees with its headers. Raises RpcError."""
    meta = call.meta
    # A `_meta` checked before needs only its version compared: most requests repeat the same one.
    if not (isinstance(meta, Meta) and meta.sound and headers.get(VERSION_HEADER) == meta.version):
        version = stated_version(call)
        if version is not None and (headers.get(VERSION_HEADER) != version or version not in SUPPORTED):
            _expect(headers, VERSION_HEADER, version, encoded=False)
        check_call(call)
    if headers.get(METHOD_HEADER) != call.method or call.method not in _PLAIN_METHODS:
        _expect(headers, METHOD_HEADER, call.method, encoded=False)
    key = _NAMED_BY.get(call.method)
    if key is not None:
        field, name = headers.get(NAME_HEADER), call.text(key)
        plain = (
            field is not None and field.isascii() and field.isprintable() and not field.startswith(_PACKED)
        )
        if name is None or field != name or not plain or " " in name:
            _expect(headers, NAME_HEADER, name, encoded=True)
    elif call.method in _NAMED_TASKS and NAME_HEADER in headers:
        _expect(headers, NAME_HEADER, call.text("taskId"), encoded=True)


def _expect(headers: dict[str, str], header: str, body: str | None, *, encoded: bool) -> None:
    value = headers.get(header)
    if value is None:
        raise HeaderMismatch(f"the {_SHOWN[header]} header is missing")
    if value == body and not value.startswith(_PACKED) and _PLAIN.fullmatch(value):
        return
    value = value.strip(_WHITESPACE)
    stated = decode_value(value) if encoded else _plain(value)
    if stated != body:
        raise HeaderMismatch(f"{_SHOWN[header]} header value {stated!r} does not match body value {body!r}")


def header_params(schema: Any) -> dict[str, Path]:
    """Return header name → path of property names, of a decoded `inputSchema`. Raises InvalidHeaderSchema."""
    paths: dict[str, Path] = {}
    used: set[str] = set()
    for path, inner in _schemas(schema):
        if "x-mcp-header" not in inner:
            continue
        if not path:
            raise InvalidHeaderSchema("x-mcp-header on something that is not reached by `properties` alone")
        header, where = inner["x-mcp-header"], ".".join(path)
        if not isinstance(header, str) or not _TOKEN.fullmatch(header):
            raise InvalidHeaderSchema(f"x-mcp-header of {where} is not a header name")
        if inner.get("type") not in ("string", "integer", "boolean"):
            raise InvalidHeaderSchema(f"x-mcp-header of {where} needs the type string, integer or boolean")
        if len(header) > HEADER_CHARS:
            raise InvalidHeaderSchema(f"x-mcp-header of {where} has more than {HEADER_CHARS} characters")
        if header.lower() in used:
            raise InvalidHeaderSchema(f"x-mcp-header {header} is used twice")
        used.add(header.lower())
        paths[header] = path
    return paths


def _schemas(root: Any) -> Iterator[tuple[Path | None, dict[str, Any]]]:
    """Yield every schema in `root`, with its path of property names; None if it has no such path."""
    # A stack instead of recursion, as a schema can be nested as deeply as JSON can.
    waiting: list[tuple[Path | None, Any]] = [((), root)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, list):
            waiting += [(None, part) for part in value]
        elif isinstance(value, dict):
            yield path, value
            waiting += reversed(list(_inner(path, value)))


def _inner(path: Path | None, schema: dict[str, Any]) -> Iterator[tuple[Path | None, Any]]:
    """Yield values in `schema` that may be schemas."""
    for key, part in schema.items():
        # The name of a property, which may be x-mcp-header, too, is no annotation.
        if key == "properties" and path is not None and isinstance(part, dict):
            yield from (((*path, name), inner) for name, inner in part.items())
        elif key in _NAMED_SCHEMAS and isinstance(part, dict):
            yield from ((None, inner) for inner in part.values())
        elif key not in _NO_SCHEMA:
            yield None, part


def param_headers(params: Mapping[str, Path], arguments: Any) -> list[tuple[str, str]]:
    """Return the `Mcp-Param-*` headers for a call's decoded arguments; absent values are left out."""
    headers = []
    for header, path in params.items():
        text = _spell(value_at(arguments, path))
        if text is not None:
            headers.append((f"Mcp-Param-{header}", encode_value(text)))
    return headers


def check_param_headers(headers: Mapping[str, str], params: Mapping[str, Path], arguments: Any) -> None:
    """Check that every `Mcp-Param-*` header of the tool agrees with the arguments. Raises HeaderMismatch."""
    for header, path in params.items():
        value = value_at(arguments, path)
        spelled = _spell(value)
        field = headers.get(PARAM_PREFIX + header.lower())
        if spelled is None:
            if field is not None:
                raise HeaderMismatch(f"Mcp-Param-{header} is given, but the body has no such argument")
            continue
        if field is None:
            raise HeaderMismatch(f"the Mcp-Param-{header} header is missing")
        text = decode_value(field.strip(_WHITESPACE))
        if text != spelled and not _same_number(text, value):
            raise HeaderMismatch(f"Mcp-Param-{header} does not match the body")


def _spell(value: Any) -> str | None:
    """Return a value as a header has it; None for null, objects and arrays, which no header can carry."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, str | int | float) else None


def _same_number(text: str, value: Any) -> bool:
    """Return whether `text` is the integer `value`, spelled in another way (`42.0` for 42)."""
    # Not by way of floats, which are not exact from 2**53 on.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    written = _INTEGER.fullmatch(text)
    return written is not None and int(written[1]) == value


class ToolHeaders:
    """The annotated tools of one server, learned from its lists, page by page.

    `params`: by tool, the path of the argument for each header; `params.bytes`: their approximate size.
    """

    def __init__(self) -> None:
        self.params: Lru[str, dict[str, Path]] = Lru(TOOL_LIMIT, TOOL_BYTES)

    def learn(self, result: Fields) -> list[tuple[str, str]]:
        """Learn a page of `tools/list`, and remove its invalid tools in place. Return their (name, fault)."""
        # Most servers have no annotations: one search in the bytes saves decoding the page.
        if "tools" not in result or (not self.params and _MARK not in bytes(result["tools"])):
            return []
        try:
            tools = objects_in(result["tools"])
        except ValueError:
            return []
        kept: list[Fields] = []
        rejected: list[tuple[str, str]] = []
        for tool in tools:
            name, schema = text_of(tool.get("name")) or "", tool.get("inputSchema")
            # The annotations of an earlier list may be gone now.
            self.params.discard(name)
            try:
                params = header_params(value_of(schema)) if schema and _MARK in bytes(schema) else {}
            except InvalidHeaderSchema as error:
                rejected.append((name, str(error)))
                continue
            kept.append(tool)
            if params:
                self.params[name] = params
        if rejected:
            result["tools"] = raw(kept)
        return rejected

    def headers_of(self, call: Call) -> tuple[tuple[str, str], ...]:
        """Return the `Mcp-Param-*` headers of a tool call; none for a tool without known annotations."""
        params = self.params.get(call.text("name") or "")
        return tuple(param_headers(params, value_of(call.params.get("arguments")))) if params else ()

    def check(self, headers: Mapping[str, str], call: Call) -> None:
        """Check that the headers of a tool call agree with its arguments. Raises HeaderMismatch."""
        params = self.params.get(call.text("name") or "") if call.method == m.TOOLS_CALL else None
        if params:
            check_param_headers(headers, params, value_of(call.params.get("arguments")))


def read_retry_after(value: str | None, now: datetime) -> float | None:
    """Return seconds from `now` (aware), from 0 to a day; None for an absent or invalid value."""
    if value is None:
        return None
    value = value.strip()
    # Seconds or a date (RFC 9110 section 10.2.3).
    if re.fullmatch(r"[0-9]{1,10}", value):
        return min(float(value), LONGEST_SECONDS)
    from email.utils import parsedate_to_datetime  # not at the top: it is large, and few servers send a date

    try:
        then = parsedate_to_datetime(value)
    except ValueError:
        return None
    if then.tzinfo is None:  # "-0000" is an unknown zone; an HTTP date can only mean GMT
        then = then.replace(tzinfo=UTC)
    return min(max((then - now).total_seconds(), 0.0), LONGEST_SECONDS)


# Host and Origin: may this browser page, or this host name, reach the listener? Prevents DNS rebinding.
#
# Source: "Security Warning" of Streamable HTTP in every revision since 2025-03-26.

_HOST: Final = re.compile(r"(?:\[([^\]]*)\]|([^\[:]*))(?::[0-9]*)?|([^\[:]*(?::[^:]*){2,})")
"""A Host header: an address in brackets or a name, perhaps with a port; or an address without brackets."""

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_LOCAL_PAGE: Final = re.compile(r"https?://(?:localhost|127\.0\.0\.1|\[::1\])(?::[0-9]{1,5})?")
VERDICTS: Final = 256  # kept; requests repeat the same few names
VERDICT_CHARS: Final = 512  # of Host and Origin together; longer ones are judged anew, and no host has one
_ANYWHERE: Final = frozenset({"0.0.0.0", "::", ""})

ALLOW_ORIGIN: Final = "Access-Control-Allow-Origin"
_EXPOSED: Final = "Mcp-Session-Id, WWW-Authenticate, Retry-After"  # what clients act on
_METHODS: Final = "GET, POST, DELETE"
_SENT: Final = (
    *("accept", "authorization", "content-type", LAST_EVENT_ID, METHOD_HEADER, NAME_HEADER),
    *(VERSION_HEADER, SESSION_HEADER, "traceparent", "tracestate", "baggage"),
)
"""The header fields that clients send. `Mcp-Param-…` fields and those for a gateway have no fixed names."""
ASKED_FIELDS: Final = 32  # that a page may send in addition; a tool has few annotated arguments
ASKED_CHARACTERS: Final = 64  # of the name of one; longer names are not in use
PREFLIGHT_SECONDS: Final = 7200  # Chromium keeps no answer for longer


class OriginPolicy:
    """The Host and Origin headers that one listener accepts. Immutable, but for its memory of verdicts."""

    def __init__(
        self, host: str, allowed_hosts: Collection[str], allowed_origins: Collection[str] | None
    ) -> None:
        """`host`: the address of the listener. The rest is accepted besides it and the loopback names.

        `allowed_origins` is None for a listener that has no such setting.
        """
        # Listening on every address names no host, so `allowed_hosts` decides alone; when it is empty any
        # Host is accepted, as the person who opened the listener to the world must expect.
        self._any_host = host in _ANYWHERE and not allowed_hosts
        self._hosts = _LOOPBACK | {_normal(host)} | {_name(entry) for entry in allowed_hosts}
        self._hosts -= {""}  # an invalid name or Origin, which must match no entry
        self._exact = frozenset(entry.lower() for entry in allowed_hosts)
        self._origins = frozenset(entry.lower() for entry in allowed_origins or ())
        self._remedy = (
            "add its host to the listener's allowed_hosts"
            if allowed_origins is None
            else "add it to the listener's allowed_origins"
        )
        self._accepted: tuple[str, str | None] | None = None  # Host and Origin, those accepted last
        self._grant_again = lru_cache(VERDICTS)(self._grant)

    def refuses(self, host: str, origin: str | None) -> str | None:
        """Return why a request with this Host ("" for none) and Origin is refused; None when it is not."""
        last = self._accepted
        if last is not None and host == last[0] and origin == last[1]:  # most requests repeat the same
            return None
        refusal = self._judge(host, origin)
        if refusal is None and len(host) + len(origin or "") <= VERDICT_CHARS:
            self._accepted = host, origin
        return refusal

    def grants(self, origin: str) -> Headers:
        """Return the fields by which pages of an origin may read every answer; () if they may read none."""
        return self._grant_again(origin) if len(origin) <= VERDICT_CHARS else self._grant(origin)

    def _judge(self, host: str, origin: str | None) -> str | None:
        if not self._any_host and _name(host) not in self._hosts and host.lower() not in self._exact:
            return f"Host {host!r} is not served here; add it to the listener's allowed_hosts if it should be"
        if origin is None or (lowered := origin.lower()) in self._origins:
            return None
        try:
            is_accepted = _normal(urlsplit(lowered).hostname or "") in self._hosts
        except ValueError:
            is_accepted = False
        if not is_accepted:
            return f"Origin {origin!r} may not connect; {self._remedy} if it should"
        return None

    def _grant(self, origin: str) -> Headers:
        # Browsers compare the origin as it was sent. `*` would let pages of every origin in.
        lowered = origin.lower()
        if lowered not in self._origins and not _LOCAL_PAGE.fullmatch(lowered):
            return ()
        return (ALLOW_ORIGIN, origin), ("Access-Control-Expose-Headers", _EXPOSED), ("Vary", "Origin")

    def answer_preflight(self, headers: Mapping[str, str]) -> Headers | None:
        """Return the fields of the answer to an OPTIONS request that asks what a page may send.

        Returns None for any other OPTIONS request, and for a page that may not connect.
        """
        # By the headers alone: an answer that depended on the path would show strangers what is there.
        origin = headers.get("origin", "")
        if "access-control-request-method" not in headers or not self.grants(origin):
            return None
        if self.refuses(headers.get("host", ""), origin) is not None:
            return None
        fields = headers.get("access-control-request-headers", "").lower().split(",", ASKED_FIELDS)
        names = [name.strip() for name in fields[:ASKED_FIELDS]]
        sane = [name for name in names if len(name) <= ASKED_CHARACTERS and _TOKEN.fullmatch(name)]
        return (
            ("Access-Control-Allow-Methods", _METHODS),
            ("Access-Control-Allow-Headers", ", ".join(dict.fromkeys((*_SENT, *sane)))),
            ("Access-Control-Max-Age", str(PREFLIGHT_SECONDS)),
        )


def _name(host: str) -> str:
    """Return the host name in a Host header, see `_normal`, without port; "" when it is invalid."""
    match = _HOST.fullmatch(host)
    return _normal("".join(filter(None, match.groups()))) if match is not None else ""


def _normal(host: str) -> str:
    """Return one spelling for each name and address: lower case, an IPv6 address in its short form."""
    host = host.lower()
    if ":" not in host:
        return host
    try:
        return str(IPv6Address(host))
    except ValueError:
        return host
