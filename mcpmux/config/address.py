"""The short ways to write a listener: `HOST:PORT`, or the path of a Unix socket."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from mcpmux.config.listener import HttpListener, TcpListener, UnixListener, WebSocketListener
from mcpmux.config.report import Unfit
from mcpmux.config.scalars import Text

ADDRESS_PATTERN = r"(?:\[([0-9A-Fa-f:.%]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})"
PATH_PATTERN = r"[^\x00]+"
MAX_PORT = 65535


def split_address(text: str) -> tuple[str, int]:
    """Host and port of "127.0.0.1:8484", "localhost:0" or "[::1]:8484". Raises Unfit."""
    match = re.fullmatch(ADDRESS_PATTERN, text)
    if match is None or int(match[3]) > MAX_PORT:
        raise Unfit('expected "HOST:PORT", for example "127.0.0.1:8484" or "[::1]:8484"')
    return match[1] or match[2], int(match[3])


def parse_address(text: str) -> HttpListener:
    """The HTTP listener at an address. Raises Unfit."""
    host, port = split_address(text)
    return HttpListener(host=host, port=port)


def _parse_websocket(text: str) -> WebSocketListener:
    host, port = split_address(text)
    return WebSocketListener(host=host, port=port)


def _parse_tcp(text: str) -> TcpListener:
    host, port = split_address(text)
    return TcpListener(host=host, port=port)


def _parse_unix(text: str) -> UnixListener:
    return UnixListener(path=Text("the path of a socket", PATH_PATTERN).read(text))


SHORT_FORMS: Mapping[type, tuple[str, Callable[[str], Any]]] = {
    HttpListener: (ADDRESS_PATTERN, parse_address),
    WebSocketListener: (ADDRESS_PATTERN, _parse_websocket),
    TcpListener: (ADDRESS_PATTERN, _parse_tcp),
    UnixListener: (PATH_PATTERN, _parse_unix),
}
"""Of each class that may also be text: the pattern of that text, and what reads it."""
