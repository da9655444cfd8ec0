"""What may be shown of values that must not be shown."""

from __future__ import annotations

from urllib.parse import urlsplit

MASK = "***"


class Secret:
    """Text that appears in no log, error or repr. `reveal` is the only way to it.

    It is no attrs class, because `attrs.asdict` would take it apart.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    def __str__(self) -> str:
        return MASK


def display_url(url: str) -> str:
    """The URL without what may be secret in it: user, password and query are masked."""
    try:
        parts = urlsplit(url)
    except ValueError:  # no URL, so nothing is known about what it holds
        return MASK
    user, _, host = parts.netloc.rpartition("@")
    netloc = f"{MASK}@{host}" if user else host
    query = f"?{MASK}" if parts.query else ""
    return f"{parts.scheme}://{netloc}{parts.path}{query}"
