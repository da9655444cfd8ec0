"""Whether the modules that every exchange passes through are compiled; pyproject.toml names them."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import mcpmux

_PACKAGE = Path(mcpmux.__file__).parent


def is_compiled() -> bool:
    """Whether they are; else they are interpreted, and do the same."""
    return any((_PACKAGE / f"transports/wire{suffix}").exists() for suffix in EXTENSION_SUFFIXES)
