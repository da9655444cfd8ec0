"""Files to frozen values, every mistake reported at once. Read before the event loop starts."""

from __future__ import annotations

from mcpmux.config.argument import (
    parse_listener_argument,
    parse_upstream_argument,
    parse_upstream_arguments,
)
from mcpmux.config.model import (
    Config,
    Handling,
    Http,
    HttpListener,
    Identity,
    Limits,
    Listeners,
    Logging,
    Merging,
    Settings,
    Stdio,
    Upstream,
)
from mcpmux.config.reading import read_config
from mcpmux.config.schema import config_schema
from mcpmux.config.secret import Secret, display_url

__all__ = [
    "Config",
    "Handling",
    "Http",
    "HttpListener",
    "Identity",
    "Limits",
    "Listeners",
    "Logging",
    "Merging",
    "Secret",
    "Settings",
    "Stdio",
    "Upstream",
    "config_schema",
    "display_url",
    "parse_listener_argument",
    "parse_upstream_argument",
    "parse_upstream_arguments",
    "read_config",
]
