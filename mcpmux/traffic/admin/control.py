"""What the people who run mcpmux can do to it while it runs; `app.control` does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

ACTIONS = ("enable", "disable", "drain", "restart")
"""What can be done to one upstream."""


class NoSuchUpstream(LookupError):
    """The text says what there is instead."""


class NotPossible(Exception):
    """It would make no sense now; the text says why."""


class Control(Protocol):
    """Takes one of ACTIONS for an upstream, and reads the configuration again."""

    @property
    def pending(self) -> tuple[str, ...]:
        """Settings in the file that take effect when mcpmux is started again."""
        ...

    async def act(self, action: str, name: str) -> None:
        """Raises NoSuchUpstream, NotPossible."""
        ...

    async def reload(self) -> Mapping[str, Any]:
        """What has changed. Raises ConfigError, and nothing has changed then."""
        ...
