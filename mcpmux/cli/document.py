"""A document in a file or at a URL that the user names, bounded in size and time. Only a URL is asked for."""

from __future__ import annotations

import re

import trio

from mcpmux.cli.process import Mistake, run
from mcpmux.config.expansion import display_url
from mcpmux.errors import RemoteProtocolError, TransportError
from mcpmux.files import read_named_file
from mcpmux.transports.http.route import HttpOrigin, choose_proxy, is_loopback

DOCUMENT_BYTES = 1024 * 1024  # a hundred times what documents have
FETCH_SECONDS = 20.0

LOOKS_LIKE_URL = re.compile(r"[^/\\:${]{2,}:.*", re.DOTALL)  # also `htp:/x`, but no drive of Windows


def read_document(option: str, source: str, accept: str) -> bytes:
    """What is in the file or at the URL `source`. Raises Mistake that names the option, and McpmuxError."""
    if LOOKS_LIKE_URL.fullmatch(source):
        data: bytes = run(_fetch, option, source, accept)
        return data
    try:
        return read_named_file(source, DOCUMENT_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no name of a file"
        raise Mistake(f"{option}: {source}: cannot read the file: {reason}") from None


async def _fetch(option: str, url: str, accept: str) -> bytes:
    try:
        origin = HttpOrigin.from_url(url)
    except ValueError:
        raise Mistake(f"{option}: expected a file, or a URL with https://") from None
    if not origin.secure and not is_loopback(origin.host):
        raise Mistake(f"{option}: expected https://, as {origin.authority} is another machine")
    from mcpmux.transports.web_client import WebClient  # httpx is large

    client = WebClient(proxy=choose_proxy(origin, None), body_bytes=DOCUMENT_BYTES)
    with trio.move_on_after(FETCH_SECONDS):
        answer = await client.ask("GET", url, (("Accept", accept),))
        if answer.status != 200:
            raise RemoteProtocolError(f"{display_url(url)} answered with status {answer.status}")
        return answer.body
    raise TransportError(f"{origin.authority} did not answer within {FETCH_SECONDS:g} s")
