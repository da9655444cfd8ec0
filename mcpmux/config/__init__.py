"""Files to frozen values, every mistake reported at once. Read before the event loop starts."""

from __future__ import annotations

from mcpmux.config.access import AccessRule
from mcpmux.config.admin import Admin
from mcpmux.config.argument import (
    parse_listen_argument,
    parse_listener_argument,
    parse_upstream_argument,
    parse_upstream_arguments,
)
from mcpmux.config.audit import Audit
from mcpmux.config.auth import Auth, Issuer, StaticToken, find_open_doors
from mcpmux.config.caching import Caching
from mcpmux.config.capture import Capture, CaptureRule
from mcpmux.config.listener import (
    AnyListener,
    HttpListener,
    Listeners,
    TcpListener,
    UnixListener,
    WebSocketListener,
)
from mcpmux.config.model import (
    Config,
    Handling,
    Http,
    Identity,
    Limits,
    Logging,
    Merging,
    Settings,
    Stdio,
    Target,
    Tcp,
    Unix,
    Upstream,
    WebSocket,
)
from mcpmux.config.oauth import OAuth
from mcpmux.config.reading import read_config
from mcpmux.config.redaction import Redaction
from mcpmux.config.schema import config_schema
from mcpmux.config.secret import Secret, display_url
from mcpmux.config.target import URL_STARTS
from mcpmux.config.tls import ClientTls, ServerTls
from mcpmux.config.tracing import Tracing

__all__ = [
    "URL_STARTS",
    "AccessRule",
    "Admin",
    "AnyListener",
    "Audit",
    "Auth",
    "Caching",
    "Capture",
    "CaptureRule",
    "ClientTls",
    "Config",
    "Handling",
    "Http",
    "HttpListener",
    "Identity",
    "Issuer",
    "Limits",
    "Listeners",
    "Logging",
    "Merging",
    "OAuth",
    "Redaction",
    "Secret",
    "ServerTls",
    "Settings",
    "StaticToken",
    "Stdio",
    "Target",
    "Tcp",
    "TcpListener",
    "Tracing",
    "Unix",
    "UnixListener",
    "Upstream",
    "WebSocket",
    "WebSocketListener",
    "config_schema",
    "display_url",
    "find_open_doors",
    "parse_listen_argument",
    "parse_listener_argument",
    "parse_upstream_argument",
    "parse_upstream_arguments",
    "read_config",
]
