"""The configuration as values: frozen, complete with defaults, independent of file formats.

Each part of mcpmux gets the small value that it needs, and none gets the whole `Config`. The reader and the
JSON Schema are made from the types and docstrings of the fields.
"""

from __future__ import annotations

import base64
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Annotated, Final, TypeAlias
from urllib.parse import parse_qsl, urlsplit

from attrs import Factory, field, frozen

from mcpmux.config.auth import METHODS, PRINCIPALS, UPSTREAMS, AccessRule, Auth, OAuth
from mcpmux.config.cluster import Cluster, find_lacking
from mcpmux.config.expansion import Secret, display_url
from mcpmux.config.intercept import Intercept, find_clashing_names
from mcpmux.config.listener import VIEW_NAME, Admin, ClientTls, Listeners, ServerTls, join_address
from mcpmux.config.report import closest, suggestion
from mcpmux.config.scalars import (
    KEY_TEXT,
    NAME_PATTERN,
    Choice,
    Duration,
    Filled,
    Flag,
    Seconds,
    Size,
    Text,
    Whole,
    derive_prefix,
    is_name,
    read_only,
)
from mcpmux.config.traffic import Audit, Capture, CaptureRule, Redaction, Tracing
from mcpmux.config.views import Override, View, find_clashing, find_mistakes
from mcpmux.errors import ConfigError, KeyPath, Problem

TIMED_METHODS = (
    *("tools/call", "resources/read", "prompts/get", "completion/complete"),
    *("tools/list", "resources/list", "resources/templates/list", "prompts/list"),
    *("tasks/get", "tasks/result", "tasks/list", "tasks/cancel", "tasks/update"),
)
"""Methods that may have a timeout of their own."""

REVISIONS = ("2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The revisions of MCP, newest first."""

TOOL_SECONDS: Final = 300.0
"""Time for a tool call, unless `timeouts` says otherwise: host apps wait for tools for minutes."""

Transport: TypeAlias = Annotated[str, Choice(("auto", "streamable", "sse"))]
PREFIX = Text('a name (a letter, then up to 31 of a-z, 0-9, "." and "-") or ""', f"(?:{NAME_PATTERN})?")

NO_UPSTREAM = "expected at least one upstream that is enabled"


SAFE_VARIABLES = (
    ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
    if sys.platform != "win32"
    else (
        *("APPDATA", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATH", "PATHEXT", "PROCESSOR_ARCHITECTURE"),
        *("SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "USERNAME", "USERPROFILE"),
    )
)
"""Environment variables that the official SDKs hand on to servers: no secrets are in them."""


# Where a server is. `display` is what logs and tables show; it holds no secret.


@frozen
class Stdio:
    """A server that mcpmux starts as a child process."""

    command: str
    args: tuple[str, ...] = field(default=(), repr=lambda args: f"<{len(args)}>")  # they may hold secrets
    env: Mapping[str, Secret] = field(factory=dict, converter=read_only)
    cwd: str | None = None
    inherited: tuple[str, ...] | None = None  # environment variables of ours that it gets; None: all

    @property
    def display(self) -> str:
        return f"{self.command} …" if self.args else self.command


@frozen
class _UrlTarget:
    url: str = field(repr=display_url)
    headers: Mapping[str, Secret] = field(factory=dict, converter=read_only)
    tls: ClientTls = field(factory=ClientTls)
    oauth: OAuth | None = None

    @property
    def display(self) -> str:
        return display_url(self.url)


@frozen
class Http(_UrlTarget):
    """A running server at an http:// or https:// URL."""

    proxy: Secret | None = None  # "": never one; None: as the environment says
    transport: Transport = "auto"


@frozen
class WebSocket(_UrlTarget):
    """A running server at a ws:// or wss:// URL."""


@frozen
class Tcp:
    """A server that speaks lines of JSON at a TCP port, inside TLS when `tls` is given."""

    host: str
    port: int
    tls: ClientTls | None = None

    @property
    def display(self) -> str:
        return f"{'tcp' if self.tls is None else 'tls'}://{join_address(self.host, self.port)}"


@frozen
class Unix:
    """A server that speaks lines of JSON at a Unix socket."""

    path: str

    @property
    def display(self) -> str:
        return f"unix:{self.path}"


@frozen
class Missing:
    """A server that cannot be used as its entry is now. `reason` says why, and has no value of the entry."""

    reason: str
    display = "-"


Target: TypeAlias = Stdio | Http | WebSocket | Tcp | Unix | Missing


def transport_of(target: Target) -> str:
    """Return `stdio`, `http`, `websocket`, `tcp` or `unix`; `missing` when it is not known."""
    return type(target).__name__.lower()


def _of_basic(credentials: str) -> Iterator[str]:
    """Yield user and password of the scheme Basic (RFC 7617), together and the password alone."""
    with suppress(ValueError):
        pair = base64.b64decode(credentials).decode()
        yield from (pair, pair.partition(":")[2])


def secrets_of(target: Target) -> Iterator[str]:
    """Yield the secrets for a server, which must not appear in its texts: values, tokens, passwords."""
    if isinstance(target, Stdio):
        yield from (secret.reveal() for secret in target.env.values())
    if not isinstance(target, Http | WebSocket):
        return
    urls = [target.url]
    if isinstance(target, Http) and target.proxy is not None:
        urls.append(target.proxy.reveal())
    for url in urls:
        parts = urlsplit(url)
        yield from filter(None, (parts.password, parts.username))
        yield from (value for _, value in parse_qsl(parts.query))
    for name, secret in target.headers.items():
        value = secret.reveal()
        scheme, _, rest = value.rpartition(" ")
        yield from (value, rest)
        if name.lower() == "cookie":
            yield from (pair.partition("=")[2].strip() for pair in value.split(";"))
        elif scheme.lower() == "basic":
            yield from _of_basic(rest)
    if target.oauth is not None:
        kept = (target.oauth.client_secret, target.oauth.private_key)
        yield from (secret.reveal() for secret in kept if secret is not None)


@frozen(kw_only=True)
class UpstreamHandling:
    """How to treat one upstream: its sessions, its timeouts and its limits."""

    session: Annotated[str, Choice(("shared", "per-client"))] = "shared"
    """`shared`: all clients use one session. `per-client`: each client has a session of its own."""
    era: Annotated[str, Choice(("auto", "mirror", "newest", "legacy"))] = "auto"
    """Which revision to speak with a server that knows both 2026-07-28 and older ones. `mirror`: with each
    client the era that the client speaks. `newest`: the newest revision. `legacy`: never 2026-07-28. `auto`:
    `newest` for a server that mcpmux starts, `mirror` for one that is running already.
    """
    revision: Annotated[str, Choice(REVISIONS)] | None = None
    """Only this revision is spoken with the server, regardless of `era`; a server that answers with another
    one is an error. Default: the newest that both know.
    """
    connect_timeout: Seconds = 30.0
    """Time to start or reach the server and to finish the handshake."""
    request_timeout: Seconds = 60.0
    """Time for any other request to the server. Progress notifications renew it. A tool call has 5 minutes at
    least.
    """
    timeouts: Mapping[Annotated[str, Choice(TIMED_METHODS)], Seconds] = field(factory=dict)
    """Time for requests of single methods, in place of `request_timeout` and of the 5 minutes for tools."""
    max_request_timeout: Seconds = 3600.0
    """Time for one request with all its progress. It is never less than the request's own timeout."""
    health_interval: Annotated[float, Duration(off=True)] = 30.0
    """A server that has been silent and idle for this long is asked whether it is alive. 0: never."""
    list_timeout: Seconds = 10.0
    """Time for the server's part of a merged list. A slower server is left out of the page.

    Clients wait seven tenths of it, and at least 7 seconds, for a server that starts.
    """
    max_in_flight: Annotated[int, Whole(1, 100_000)] = 256
    """Number of exchanges with the server at the same time. More of them wait, and clients take turns.
    Workers, and replicas of a cluster, have equal parts of it.
    """
    max_waiting: Annotated[int, Whole(0, 1_000_000)] = 4096
    """Number of exchanges that may wait for the server. More are refused, first those of the client with
    the most.
    """
    max_list_items: Annotated[int, Whole(1, 10_000_000)] = 100_000
    """Number of items in one list of the server. A longer list is cut, and clients see a note about it."""
    caching: Annotated[bool, Flag()] = True
    """`false`: nothing of the server is cached, and identical requests are not combined."""
    per_worker: Annotated[bool, Flag()] = False
    """`true`: with `--workers` each worker starts the server for itself. `false`: it runs once for all."""
    overrides: tuple[Override, ...] = ()
    """Changes to the server's tools and prompts as clients see them."""


@frozen
class ToolSelection:
    """Which of a server's tools its table wants: of those `included` (None: all) the not `excluded`.

    In the names * stands for any text.
    """

    included: tuple[str, ...] | None = None
    excluded: tuple[str, ...] = ()

    @property
    def is_all(self) -> bool:
        return self == ToolSelection()


@frozen(kw_only=True)
class Upstream(UpstreamHandling):
    """One MCP server. `prefix` marks its names and URIs for clients; "" leaves them unchanged."""

    name: str
    target: Target
    enabled: bool = True
    prefix: str = Factory(lambda upstream: derive_prefix(upstream.name), takes_self=True)
    tools: ToolSelection = ToolSelection()


@frozen(kw_only=True)
class Merging:
    """Settings for merging the lists of all upstreams."""

    change_window: Seconds = 0.1
    """List changes within this time reach clients as one notification."""
    page_size: Annotated[int, Whole(1, 100_000)] = 1000
    """A merged page is filled with pages of the upstreams up to this number of items."""
    strict: Annotated[bool, Flag()] = False
    """Answer with an error if the part of an upstream is missing in a merged list."""
    name_limit: Annotated[int, Whole(44, 128)] = 51
    """Longest name of a tool or prompt with its prefix. A longer one is shortened, with a hash at its end.
    Model APIs allow 64 characters, of which host apps use up some: `mcp__mcpmux__` has 13.
    """
    cursor_key: Annotated[Secret, KEY_TEXT] | None = None
    """Key that authenticates cursors. With it cursors stay valid after a restart and on other replicas."""


@frozen(kw_only=True)
class Caching:
    """The cache that all upstreams share."""

    enabled: Annotated[bool, Flag()] = True
    """`true`: reuse what upstreams mark as fresh (`ttlMs`) until a client does something there, and combine
    identical requests at the same time. `false`: every request goes to its upstream.
    """
    max_bytes: Annotated[int, Size(1024)] = 64 * 2**20
    """Approximate memory for the cache. What was not used for longest is removed first."""
    max_entries: Annotated[int, Whole(1, 10_000_000)] = 100_000
    """Number of responses to keep."""
    trust_announcements: Annotated[bool, Flag()] = False
    """Also keep lists without a `ttlMs` if their upstream says that it announces changes (`listChanged`). It
    is off because many servers say so and announce nothing, so clients would get old lists.
    """
    max_list_age: Seconds = 60.0
    """With `trust_announcements`, such a list is fetched again after this time even without a change."""


@frozen(kw_only=True)
class RateLimit:
    """A limit on the requests that may begin in a time."""

    requests: Annotated[int, Whole(1, 1_000_000)]
    """That many may begin in `per`, evenly."""
    per: Seconds = 1.0
    """The time in which they may."""
    burst: Annotated[int, Whole(1, 1_000_000)] = field(
        default=Factory(lambda limit: limit.requests, takes_self=True)
    )
    """How many may begin at once when none has for a while. Default: `requests`."""
    each: tuple[Annotated[str, Choice(("principal", "upstream", "method"))], ...] = ("principal",)
    """For what there is a count of its own: each `principal` (all who have no name count together),
    `upstream`, `method`. []: one count for all.
    """
    principals: tuple[Annotated[str, PRINCIPALS], ...] = ()
    """Whose requests count. * stands for any text. Default: those of all clients."""
    upstreams: tuple[Annotated[str, UPSTREAMS], ...] = ()
    """Exchanges with which upstreams count. * stands for any text. Default: requests of clients count, not
    what mcpmux asks of upstreams for them.
    """
    methods: tuple[Annotated[str, METHODS], ...] = ()
    """Which methods count, such as "tools/call" or "tools/*". Default: all."""

    @property
    def is_about_upstreams(self) -> bool:
        """Whether exchanges with upstreams count, in place of requests of clients."""
        return bool(self.upstreams) or "upstream" in self.each


@frozen(kw_only=True)
class Limits:
    """Limits on the resources of one peer."""

    max_message_bytes: Annotated[int, Size(1024)] = 64 * 2**20
    """Longest JSON-RPC message, in both directions."""
    max_head_bytes: Annotated[int, Size(1024)] = 64 * 2**10
    """Longest head (request line and header fields) of an HTTP message."""
    max_sessions: Annotated[int, Whole(1, 1_000_000)] = 1000
    """Number of legacy sessions that are open at the same time."""
    max_sessions_per_principal: Annotated[int, Whole(1, 1_000_000)] | None = None
    """Number of those of one principal. Clients without a name are one principal. Workers, and replicas of a
    cluster, count together. Default: no limit.
    """
    max_connections: Annotated[int, Whole(1, 1_000_000)] = 800
    """Number of open connections of one listener. Each takes a file descriptor."""
    max_connections_per_address: Annotated[int, Whole(1, 1_000_000)] | None = None
    """Number of those of one address outside of this machine; an IPv6 network (/64) is one address. A reverse
    proxy is one, too. Default: seven eighths of `max_connections`.
    """
    max_streams_per_client: Annotated[int, Whole(1, 1_000_000)] | None = None
    """Number of streams (listens, GET streams, HTTP+SSE) of one client at one HTTP listener: of a principal,
    or of an address if it has no name. Also of the WebSocket or TCP connections of one principal. Default:
    half of `max_connections`.
    """
    max_in_flight: Annotated[int, Whole(1, 100_000)] = 1024
    """Number of requests of one session or stream at the same time. More are refused as busy."""
    max_body_bytes_in_flight: Annotated[int, Size(1024)] = 256 * 2**20
    """Size of all requests over HTTP, WebSocket, TCP and Unix sockets at the same time, per process. Those
    of 64 KiB or less do not count. What does not fit is refused as busy; a request always fits when no other
    is there. One principal, or one address outside of this machine, has half of it for several.
    """
    max_header_fields: Annotated[int, Whole(8, 10_000)] = 100
    """Number of header fields of one HTTP message, in both directions."""
    head_timeout: Seconds = 15.0
    """Time for the head of an HTTP request, from its first byte."""
    body_timeout: Seconds = 60.0
    """Longest pause in the body of an HTTP request, which must also send 1 KiB a second on average."""
    connection_idle: Seconds = 120.0
    """An HTTP connection is closed after this time without a request."""
    client_stall: Seconds = 60.0
    """A client that reads nothing of what waits for it is closed after this time."""
    session_idle: Seconds = 300.0
    """A session ends after this time without a request or an open stream."""
    rate: tuple[RateLimit, ...] = ()
    """Limits on requests that begin in a time. Workers, and replicas of a cluster, count together."""

    def address_share(self, connections: int) -> int:
        """Return how many of so many connections one address may have: the rest is a reserve for others."""
        most = self.max_connections_per_address
        return most if most is not None else max(1, connections - connections // 8)

    def stream_share(self) -> int:
        """Return how many streams one client may have."""
        most = self.max_streams_per_client
        return most if most is not None else max(1, self.max_connections // 2)


@frozen(kw_only=True)
class Identity:
    """The facts about mcpmux for clients."""

    name: Filled = "mcpmux"
    """Server name."""
    title: Annotated[str, Text()] | None = None
    """Server name for people."""
    instructions: Annotated[str, Text()] | None = None
    """Instructions for the model. They come before those of the upstreams."""

    @property
    def shown(self) -> str:
        """The name for people."""
        return self.title or self.name


@frozen(kw_only=True)
class Logging:
    """Events on standard error."""

    level: Annotated[str, Choice(("debug", "info", "warning", "error"))] = "info"
    """The least important events to write."""
    format: Annotated[str, Choice(("console", "json"))] = "console"
    """`console` for people, or `json`: one JSON object on each line."""


@frozen(kw_only=True)
class Settings:
    """Everything but the upstreams."""

    env_file: Filled | None = None
    """A file of `NAME=value` lines: variables for `${NAME}`. Servers do not get them. The path is relative to
    the folder of the configuration.
    """
    listeners: Listeners = field(factory=Listeners)
    merging: Merging = field(factory=Merging)
    caching: Caching = field(factory=Caching)
    limits: Limits = field(factory=Limits)
    identity: Identity = field(factory=Identity)
    logging: Logging = field(factory=Logging)
    capture: Capture = field(factory=Capture)
    admin: Admin = field(factory=Admin)
    audit: Audit = field(factory=Audit)
    auth: Auth = field(factory=Auth)
    access: tuple[AccessRule, ...] = ()
    """Who may use what: what one rule allows and none denies. Without rules everything is allowed."""
    intercept: tuple[Intercept, ...] = ()
    """What steps into exchanges: to change them, refuse them, or have a person asked. In this order."""
    views: Mapping[Annotated[str, VIEW_NAME], View] = field(factory=dict, converter=read_only)
    """Selections of what clients see, by name. Each is served below the path of every listener."""
    redaction: Redaction = field(factory=Redaction)
    tracing: Tracing = field(factory=Tracing)
    cluster: Cluster = field(factory=Cluster)


@frozen(kw_only=True)
class Config(Settings):
    """The whole configuration. Raises ConfigError when the upstreams do not go together.

    `notes`: warnings about what the file says and mcpmux does not use.
    """

    upstreams: tuple[Upstream, ...]
    notes: tuple[str, ...] = field(default=(), eq=False)

    @property
    def enabled(self) -> dict[str, Upstream]:
        """The upstreams that are enabled, by name."""
        return {upstream.name: upstream for upstream in self.upstreams if upstream.enabled}

    @property
    def prefixes(self) -> dict[str, str]:
        """The prefix of each upstream that is enabled, by name."""
        return {name: upstream.prefix for name, upstream in self.enabled.items()}

    @property
    def tls(self) -> tuple[ServerTls | ClientTls, ...]:
        """The settings of TLS of all listeners, and towards replicas, and upstreams over HTTP."""
        cluster, targets = self.cluster, [upstream.target for upstream in self.upstreams]
        ours = [cluster.listener.tls, self.admin.tls, *(listener.tls for listener in self.listeners.bound)]
        theirs = [cluster.peers, *(target.tls for target in targets if isinstance(target, Http))]
        return (*filter(None, ours), *theirs)

    def __attrs_post_init__(self) -> None:
        problems = [problem.under("upstreams", name) for name, problem in find_conflicts(self.upstreams)]
        if not self.enabled:
            problems.append(Problem((), NO_UPSTREAM))
        names = [upstream.name for upstream in self.upstreams]
        problems += find_misnamed(
            self, names, {upstream.prefix: upstream.name for upstream in self.upstreams}
        )
        problems += find_dead_targets(self.access, list(self.enabled.values()))
        problems += find_lacking(
            self.cluster, self.merging.cursor_key, has_audit=self.audit.directory is not None
        )
        if problems:
            raise ConfigError(problems)


def find_misnamed(settings: Settings, names: Sequence[str], prefixes: Mapping[str, str]) -> Iterator[Problem]:
    """Yield every mistake in settings that only appears beside the `names` of the upstreams.

    `prefixes`: prefix → name. None stands for a name with other mistakes.
    """
    for place, name in _upstreams_named(settings):
        if is_name(name) and name not in names:
            hint = suggestion(prefixes.get(name) or closest(name, names))
            yield Problem(place, f"no upstream has the name `{name}`{hint}")
    for number, text in find_clashing_names(settings.intercept):
        yield Problem(("intercept", number, "name"), text)
    yield from find_mistakes(settings.views, names, settings.listeners)


def find_idle_globs(settings: Settings, names: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each glob that fits none of the upstreams' `names`: it may fit one some day."""
    for place, glob in _upstreams_named(settings):
        if not is_name(glob) and not any(fnmatchcase(name, glob) for name in names):
            yield str(Problem(place, f"`{glob}` fits no upstream"))


def _upstreams_named(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """Yield (place, name or glob) of the rules that do nothing, or too much, if a name is misspelt."""
    groups: dict[KeyPath, Sequence[AccessRule | Intercept | RateLimit | CaptureRule | None]] = {
        ("access",): settings.access,
        ("intercept",): settings.intercept,
        ("limits", "rate"): settings.limits.rate,
        ("capture", "rules"): settings.capture.rules,
    }
    for place, rules in groups.items():
        for number, rule in enumerate(rules):
            if isinstance(rule, CaptureRule):
                if rule.upstream is not None:
                    yield (*place, number, "upstream"), rule.upstream
            elif rule is not None:
                yield from (((*place, number, "upstreams"), glob) for glob in rule.upstreams)
            if isinstance(rule, Intercept) and rule.server is not None:
                yield (*place, number, "server"), rule.server


_OF_URIS: Final = frozenset({"read", "subscribe", "resources/read", "resources/subscribe"})
_OF_NAMES: Final = frozenset({"call", "get", "tools/call", "prompts/get"})
_PREFIXED: Final = re.compile(r"(?:ui://([a-z][a-z0-9.-]*)/|([a-z][a-z0-9.-]*)(\+|__))(.*)", re.DOTALL)


def find_dead_targets(rules: Sequence[AccessRule | None], upstreams: Sequence[Upstream]) -> Iterator[Problem]:
    """Yield a mistake for each target of a `deny` rule that can never have the intended effect.

    None stands for a rule with other mistakes. `mux/naming` reads targets.
    """
    marks = {upstream.prefix or upstream.name: upstream for upstream in upstreams}
    if len(upstreams) == 1 and not upstreams[0].prefix:
        marks = {}
    for number, rule in enumerate(rules):
        if rule is None or rule.effect != "deny":
            continue
        for target in rule.targets:
            problem = _dead_target(rule, target, marks)
            if problem is not None:
                yield Problem(("access", number, "targets"), f"`{target}` denies nothing: {problem}")


def _dead_target(rule: AccessRule, target: str, marks: Mapping[str, Upstream]) -> str | None:
    match = _PREFIXED.match(target)
    app, mark, joint, rest = match.groups() if match is not None else (None, None, None, target)
    mark = app or mark or ""
    owner = marks.get(mark)
    is_uri = ":" in rest or "%" in rest or app is not None
    methods = set(rule.methods)
    if owner is not None:
        if rule.upstreams and not any(fnmatchcase(owner.name, glob) for glob in rule.upstreams):
            return f"`{mark}` is the prefix of {owner.name}, whose name its `upstreams` leave out"
        if joint == "+" and not is_uri and "*" not in rest:
            return f"a tool or prompt is written `{mark}__{rest}`"
        if joint == "__" and "://" in rest:
            return f"a resource is written `{mark}+{rest}`"
    if methods and methods <= _OF_URIS and not is_uri and "*" not in target:
        return "this rule is about resources, whose URIs have a scheme such as `file:`"
    if methods and methods <= _OF_NAMES and owner is not None and joint != "__":
        return f"this rule is about tools or prompts, which are written `{mark}__…`"
    return None


def find_conflicts(upstreams: Sequence[Upstream]) -> Iterator[tuple[str, Problem]]:
    """Yield (name, mistake) for each enabled upstream that cannot stand beside the others."""
    upstreams = [upstream for upstream in upstreams if upstream.enabled]
    names = Counter(upstream.name for upstream in upstreams)
    prefixes = Counter(upstream.prefix for upstream in upstreams)
    for upstream in upstreams:
        name, prefix = upstream.name, upstream.prefix
        yield from (
            (name, override)
            for override in find_clashing([(name, override) for override in upstream.overrides])
        )
        text = None
        if names[name] > 1:
            text = "another upstream has the same name"
        elif prefixes[prefix] > 1 and not prefix:
            text = "another upstream is unprefixed too; only one may be"
        elif prefixes[prefix] > 1:
            text = f'another upstream has the same prefix "{prefix}"'
        elif prefix != name and prefix in names:
            text = f'the prefix "{prefix}" is the name of another upstream'
        if text is not None:
            yield name, Problem((), text)
