"""`HOST:PORT`, the short way to write an HTTP listener."""

from __future__ import annotations

import re

from mcpmux.config.model import HttpListener
from mcpmux.config.report import Unfit

ADDRESS_PATTERN = r"(?:\[([0-9A-Fa-f:.%]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})"
MAX_PORT = 65535


def parse_address(text: str) -> HttpListener:
    """The listener at "127.0.0.1:8484", "localhost:0" or "[::1]:8484". Raises Unfit."""
    match = re.fullmatch(ADDRESS_PATTERN, text)
    if match is None or int(match[3]) > MAX_PORT:
        raise Unfit('expected "HOST:PORT", for example "127.0.0.1:8484" or "[::1]:8484"')
    return HttpListener(host=match[1] or match[2], port=int(match[3]))
