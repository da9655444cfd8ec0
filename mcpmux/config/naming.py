"""Names of upstreams: what is one, and how a host app's free-form server name becomes one."""

from __future__ import annotations

import re
from collections.abc import Sequence

# A name stands before `+` in exposed URIs and before `__` in exposed tool names, so it can hold
# neither; 32 characters leave half of the 64 that hosts allow for a tool name to the tool.
NAME_PATTERN = "[a-z][a-z0-9.-]{0,31}"
_MAX_LENGTH = 32
_FALLBACK = "server"

_VALID = re.compile(NAME_PATTERN)


def is_name(text: str) -> bool:
    return _VALID.fullmatch(text) is not None


def derive_name(text: str) -> str:
    """A valid name that resembles `text`: "My Server" -> "my-server", "@scope/pkg" -> "scope-pkg"."""
    if is_name(text):
        return text
    name = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")
    if not name:
        return _FALLBACK
    if not name[0].isalpha():
        name = f"{_FALLBACK}-{name}"
    return name[:_MAX_LENGTH].rstrip("-.")


def derive_names(texts: Sequence[str]) -> list[str]:
    """A name for each text, all different. A text that is a name keeps it; of others that would collide
    the later ones get `-2`, `-3` and so on.
    """
    taken = {text for text in texts if is_name(text)}
    names: list[str] = []
    for text in texts:
        name = text if is_name(text) and text not in names else _unused(derive_name(text), taken)
        taken.add(name)
        names.append(name)
    return names


def _unused(name: str, taken: set[str]) -> str:
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        suffix = f"-{number}"
        candidate = name[: _MAX_LENGTH - len(suffix)] + suffix
    return candidate
