"""The inspector's files: read once, served with an entity tag each."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import NamedTuple

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
ETAG_BYTES = 12
INDEX = "index.html"


class Page(NamedTuple):
    """A file as it is served."""

    content_type: str
    etag: str
    body: bytes


def load_pages() -> dict[str, Page]:
    """Every file of the inspector by its path in URLs; `/` is the page itself."""
    pages = {}
    for file in resources.files("mcpmux.traffic").joinpath("inspector").iterdir():
        content_type = _TYPES.get("." + file.name.rpartition(".")[2])
        if content_type is None:
            continue
        body = file.read_bytes()
        etag = f'"{hashlib.sha256(body).hexdigest()[: 2 * ETAG_BYTES]}"'
        pages["/" if file.name == INDEX else f"/{file.name}"] = Page(content_type, etag, body)
    return pages
