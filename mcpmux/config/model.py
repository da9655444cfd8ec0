"""The configuration as values: frozen, complete with defaults, free of file formats.

Every part of mcpmux is handed the small value it needs and none the whole `Config`. The field types
and descriptions are also what the reader checks against and what the JSON Schema is made from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, TypeAlias

from attrs import field, frozen

from mcpmux.config.access import AccessRule, find_unknown_upstreams
from mcpmux.config.auth import Auth, OAuth
from mcpmux.config.expansion import Secret, display_url
from mcpmux.config.listener import Admin, ClientTls, Listeners
from mcpmux.config.scalars import NAME_PATTERN, Choice, Duration, Flag, SecretText, Size, Text, Whole, about
from mcpmux.config.traffic import Audit, Capture, Redaction, Tracing
from mcpmux.errors import ConfigError

# What is remembered of upstreams' answers: whether, how much, and for how long.

Seconds: TypeAlias = Annotated[float, Duration()]


@frozen(kw_only=True)
class Caching:
    """The cache that all upstreams share."""

    enabled: Annotated[bool, Flag()] = field(
        default=True,
        metadata=about(
            "Serve again what upstreams mark as fresh (`ttlMs`), until a client does something there; ask "
            "identical requests at the same time once. false: every request goes to its upstream."
        ),
    )
    max_bytes: Annotated[int, Size(1024)] = field(
        default=64 * 2**20, metadata=about("Memory for it, about; what was not used for longest goes first.")
    )
    max_entries: Annotated[int, Whole(1, 10_000_000)] = field(
        default=100_000, metadata=about("Answers that are kept.")
    )
    trust_announcements: Annotated[bool, Flag()] = field(
        default=False,
        metadata=about(
            "Keep lists without a `ttlMs`, too, while their upstreams say that they announce changes "
            "(`listChanged`). Off, as many servers say so and announce nothing: clients would get old lists."
        ),
    )
    max_list_age: Seconds = field(
        default=60.0,
        metadata=about(
            "With `trust_announcements`: such a list is asked for again after this long, although its "
            "upstream has announced no change."
        ),
    )


SecondsOrNever: TypeAlias = Annotated[float, Duration(off=True)]
Era: TypeAlias = Annotated[str, Choice(("auto", "mirror", "newest", "legacy"))]
Transport: TypeAlias = Annotated[str, Choice(("auto", "streamable", "sse"))]
TimedMethod: TypeAlias = Annotated[
    str,
    Choice(
        (
            "tools/call",
            "resources/read",
            "prompts/get",
            "completion/complete",
            "tools/list",
            "resources/list",
            "resources/templates/list",
            "prompts/list",
            "tasks/get",
            "tasks/result",
            "tasks/list",
            "tasks/cancel",
            "tasks/update",
        )
    ),
]
Session: TypeAlias = Annotated[str, Choice(("shared", "per-client"))]
Prefix: TypeAlias = Annotated[
    str, Text('a name (a letter, then up to 31 of a-z, 0-9, "." and "-") or ""', f"(?:{NAME_PATTERN})?")
]

# Long enough that it cannot be guessed when it is random text, as it authenticates cursors.
MIN_CURSOR_KEY = 16
CursorKey: TypeAlias = Annotated[
    Secret, SecretText(f"at least {MIN_CURSOR_KEY} characters", rf"[^\x00]{{{MIN_CURSOR_KEY},}}")
]

NO_UPSTREAM = "expected at least one upstream that is enabled"


def _read_only(secrets: Mapping[str, Secret]) -> Mapping[str, Secret]:
    return MappingProxyType(dict(secrets))


def _count(args: tuple[str, ...]) -> str:
    return f"<{len(args)}>"


@frozen
class Stdio:
    """A server that is started as a child process. Its arguments may hold secrets and are not shown."""

    command: str
    args: tuple[str, ...] = field(default=(), repr=_count)
    env: Mapping[str, Secret] = field(factory=dict, converter=_read_only)
    cwd: str | None = None

    @property
    def display(self) -> str:
        return f"{self.command} …" if self.args else self.command


@frozen
class Http:
    """A server that is running already. `display` is the URL without what may be secret in it."""

    url: str = field(repr=display_url)
    headers: Mapping[str, Secret] = field(factory=dict, converter=_read_only)
    tls: ClientTls = field(factory=ClientTls)
    proxy: Secret | None = None  # "": never one; None: as the environment says
    transport: Transport = "auto"
    oauth: OAuth | None = None

    @property
    def display(self) -> str:
        return display_url(self.url)


@frozen
class WebSocket:
    """A server at a ws:// or wss:// URL. `display` is the URL without what may be secret in it."""

    url: str = field(repr=display_url)
    headers: Mapping[str, Secret] = field(factory=dict, converter=_read_only)
    tls: ClientTls = field(factory=ClientTls)
    oauth: OAuth | None = None

    @property
    def display(self) -> str:
        return display_url(self.url)


@frozen
class Tcp:
    """A server that speaks lines of JSON at a TCP port, inside TLS when `tls` is given."""

    host: str
    port: int
    tls: ClientTls | None = None

    @property
    def display(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tcp' if self.tls is None else 'tls'}://{host}:{self.port}"


@frozen
class Unix:
    """A server that speaks lines of JSON at a Unix socket."""

    path: str

    @property
    def display(self) -> str:
        return f"unix:{self.path}"


Target: TypeAlias = Stdio | Http | WebSocket | Tcp | Unix


@frozen(kw_only=True)
class Handling:
    """How one upstream is treated: its sessions, and how long it may take, in seconds."""

    session: Session = field(
        default="shared",
        metadata=about(
            "`shared`: all clients use one session. `per-client`: each client has a session of its own."
        ),
    )
    era: Era = field(
        default="auto",
        metadata=about(
            "How a server that speaks 2026-07-28 and older revisions is spoken to. `mirror`: with each "
            "client as that client speaks. `newest`: in the newest revision. `legacy`: never in 2026-07-28. "
            "`auto`: `newest` for a server that mcpmux starts, `mirror` for one that is running already."
        ),
    )
    connect_timeout: Seconds = field(
        default=30.0, metadata=about("Time to start or reach the server and finish the handshake.")
    )
    request_timeout: Seconds = field(
        default=60.0, metadata=about("Time for any other request to the server. Progress renews it.")
    )
    timeouts: Mapping[TimedMethod, Seconds] = field(
        factory=dict,
        metadata=about("Time for requests of single methods, in place of `request_timeout`."),
    )
    max_request_timeout: Seconds = field(
        default=3600.0,
        metadata=about("Time for one request with all progress that it reports; never less than its own."),
    )
    health_interval: SecondsOrNever = field(
        default=30.0,
        metadata=about(
            "After this long without an answer, an idle server is asked whether it is alive. 0: never."
        ),
    )
    list_timeout: Seconds = field(
        default=10.0,
        metadata=about(
            "Time for the server's part of a merged list; a slower server is left out of the page."
        ),
    )
    max_in_flight: Annotated[int, Whole(1, 100_000)] = field(
        default=256,
        metadata=about("Exchanges with the server at a time. More wait, and clients take turns."),
    )
    max_waiting: Annotated[int, Whole(0, 1_000_000)] = field(
        default=4096,
        metadata=about("Exchanges that wait for the server; more are refused, a flood first."),
    )
    max_list_items: Annotated[int, Whole(1, 10_000_000)] = field(
        default=100_000,
        metadata=about("Items of one list of the server; a longer one is cut, which clients are told."),
    )
    caching: Annotated[bool, Flag()] = field(
        default=True,
        metadata=about("false: nothing of the server is kept, and identical requests are not shared."),
    )
    per_worker: Annotated[bool, Flag()] = field(
        default=False,
        metadata=about(
            "true: with `--workers` each worker starts the server for itself. Otherwise it runs once for all."
        ),
    )


@frozen(kw_only=True)
class Upstream(Handling):
    """One MCP server. `prefix` marks its names and URIs towards clients; "" leaves them as they are."""

    name: str
    target: Target
    enabled: bool = True
    prefix: str = field()

    @prefix.default
    def _name_is_prefix(self) -> str:
        return self.name


@frozen(kw_only=True)
class Merging:
    """How the lists of all upstreams become one, and their changes."""

    change_window: Seconds = field(
        default=0.1, metadata=about("List changes within this time reach clients as one notification.")
    )
    page_size: Annotated[int, Whole(1, 100_000)] = field(
        default=1000, metadata=about("Items up to which a merged page is filled from pages of the upstreams.")
    )
    strict: Annotated[bool, Flag()] = field(
        default=False,
        metadata=about("An error in place of a merged list that lacks the part of an upstream."),
    )
    cursor_key: CursorKey | None = field(
        default=None,
        metadata=about("Authenticates cursors. With a key they outlive a restart and work on every replica."),
    )


@frozen(kw_only=True)
class Limits:
    """What one peer may use up."""

    max_message_bytes: Annotated[int, Size(1024)] = field(
        default=64 * 2**20, metadata=about("Longest JSON-RPC message, in both directions.")
    )
    max_head_bytes: Annotated[int, Size(1024)] = field(
        default=64 * 2**10, metadata=about("Longest head (request line and headers) of an HTTP message.")
    )
    max_sessions: Annotated[int, Whole(1, 1_000_000)] = field(
        default=1000, metadata=about("Legacy sessions that are open at the same time.")
    )
    max_connections: Annotated[int, Whole(1, 1_000_000)] = field(
        default=800, metadata=about("Open connections of one listener; each takes a file descriptor.")
    )
    max_in_flight: Annotated[int, Whole(1, 100_000)] = field(
        default=1024, metadata=about("Requests of one session or stream at a time; more are refused as busy.")
    )
    max_header_fields: Annotated[int, Whole(8, 10_000)] = field(
        default=100, metadata=about("Header fields of one HTTP message, in both directions.")
    )
    head_timeout: Seconds = field(
        default=15.0, metadata=about("Time for the head of an HTTP request, from its first byte.")
    )
    body_timeout: Seconds = field(
        default=60.0,
        metadata=about("Longest pause in the body of an HTTP request; it comes at 1 KiB a second or more."),
    )
    connection_idle: Seconds = field(
        default=120.0, metadata=about("An HTTP connection without a request is closed after this.")
    )
    client_stall: Seconds = field(
        default=60.0,
        metadata=about("A client that reads nothing of what waits for it for this long is closed."),
    )
    session_idle: Seconds = field(
        default=300.0, metadata=about("After this long without a request or an open stream a session ends.")
    )


@frozen(kw_only=True)
class Identity:
    """What mcpmux tells clients about itself."""

    name: Annotated[str, Text("text that is not empty", r"[^\x00]+")] = field(
        default="mcpmux", metadata=about("Server name.")
    )
    title: Annotated[str, Text()] | None = field(default=None, metadata=about("Server name for people."))
    instructions: Annotated[str, Text()] | None = field(
        default=None, metadata=about("Instructions to the model, put before those of the upstreams.")
    )


@frozen(kw_only=True)
class Logging:
    """Events on standard error."""

    level: Annotated[str, Choice(("debug", "info", "warning", "error"))] = field(
        default="info", metadata=about("Least important events to write.")
    )
    format: Annotated[str, Choice(("console", "json"))] = field(
        default="console", metadata=about("For people, or one JSON object a line for machines.")
    )


@frozen(kw_only=True)
class Settings:
    """Everything but the upstreams."""

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
    access: tuple[AccessRule, ...] = field(
        default=(),
        metadata=about("Who may use what: what one rule allows and none denies; without rules, everything."),
    )
    redaction: Redaction = field(factory=Redaction)
    tracing: Tracing = field(factory=Tracing)


@frozen(kw_only=True)
class Config(Settings):
    """The whole configuration. Raises ConfigError when the upstreams do not go together."""

    upstreams: tuple[Upstream, ...]

    def __attrs_post_init__(self) -> None:
        problems = [f"upstreams.{name}: {text}" for name, text in find_conflicts(self.upstreams)]
        if not any(upstream.enabled for upstream in self.upstreams):
            problems.append(NO_UPSTREAM)
        names = [upstream.name for upstream in self.upstreams]
        unknown = find_unknown_upstreams(self.access, names)
        problems += [f"access[{number}]: {text}" for number, text in unknown]
        if problems:
            raise ConfigError(problems)


def find_conflicts(upstreams: Sequence[Upstream]) -> Iterator[tuple[str, str]]:
    """Every (name, mistake) of enabled upstreams that cannot stand beside the others."""
    upstreams = [upstream for upstream in upstreams if upstream.enabled]
    names = Counter(upstream.name for upstream in upstreams)
    prefixes = Counter(upstream.prefix for upstream in upstreams)
    for upstream in upstreams:
        name, prefix = upstream.name, upstream.prefix
        if names[name] > 1:
            yield name, "another upstream has the same name"
        elif prefixes[prefix] > 1:
            yield (
                name,
                f'another upstream has the same prefix "{prefix}"'
                if prefix
                else ("another upstream is unprefixed too; only one may be"),
            )
        elif prefix != name and prefix in names:
            yield name, f'the prefix "{prefix}" is the name of another upstream'
