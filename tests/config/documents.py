"""Reading a configuration out of a string, for the tests of this directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mcpmux.config import Config
from mcpmux.errors import ConfigError
from mcpmux.hosts.configuration import read_config


def read(document: str | dict[str, Any], environ: Mapping[str, str] | None = None) -> Config:
    """Read a configuration in TOML text, or in a dictionary that is written as JSON."""
    text = document if isinstance(document, str) else json.dumps(document)
    return read_config("-", environ or {}, text.encode)


def problems_of(document: str | dict[str, Any], environ: Mapping[str, str] | None = None) -> list[str]:
    """Return the mistakes in a configuration, without the name of the source; empty when there are none."""
    try:
        read(document, environ)
    except ConfigError as error:
        return [str(problem) for problem in error.found]
    return []
