"""The configuration: read from files into frozen values before the event loop starts."""

from __future__ import annotations

from mcpmux.config.auth import AccessRule, Auth, Issuer, OAuth, StaticToken, find_open_doors
from mcpmux.config.expansion import Secret, display_url
from mcpmux.config.listener import (
    Admin,
    AnyListener,
    ClientTls,
    HttpListener,
    Listeners,
    ServerTls,
    TcpListener,
    UnixListener,
    WebSocketListener,
)
from mcpmux.config.model import (
    Caching,
    Config,
    Http,
    Identity,
    Limits,
    Logging,
    Merging,
    Stdio,
    Target,
    Tcp,
    Unix,
    Upstream,
    WebSocket,
)
from mcpmux.config.reading import read_config
from mcpmux.config.target import (
    URL_STARTS,
    parse_http_argument,
    parse_listen_argument,
    parse_upstream_argument,
    parse_upstream_arguments,
)
from mcpmux.config.traffic import Audit, Capture, CaptureRule, Redaction, Tracing

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
    "display_url",
    "find_open_doors",
    "parse_http_argument",
    "parse_listen_argument",
    "parse_upstream_argument",
    "parse_upstream_arguments",
    "read_config",
]
