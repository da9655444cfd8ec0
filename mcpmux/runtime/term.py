"""How long one exchange with an upstream may take.

Progress renews it, up to a maximum. Most waits of an exchange are for its HTTP response, and the connection
pool ends those at `deadline` by itself; every other wait is put under `limit`.

Raises Overdue when it is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import trio

from mcpmux.errors import Overdue


class Term:
    """`seconds` from now, less those that were `waited`; with all progress `maximum` seconds."""

    __slots__ = ("_latest", "_maximum", "_scope", "deadline", "seconds")

    def __init__(self, seconds: float, waited: float, maximum: float) -> None:
        self.seconds = seconds
        self.deadline = trio.current_time() + seconds - waited
        self._maximum = maximum
        self._latest: float | None = None  # with all progress, once there was some
        self._scope: trio.CancelScope | None = None

    def __repr__(self) -> str:
        return f"<Term {self.left:.1f} s left of {self.seconds:g}>"

    @property
    def left(self) -> float:
        """Seconds until it is over."""
        return self.deadline - trio.current_time()

    @property
    def exhausted(self) -> bool:
        """Whether progress has used up all that it may."""
        return self._latest is not None and self.deadline >= self._latest

    def renew(self) -> None:
        """There was progress."""
        if self._latest is None:
            self._latest = self.deadline + max(0.0, self._maximum - self.seconds)
        self.deadline = max(self.deadline, min(self._latest, trio.current_time() + self.seconds))
        if self._scope is not None:
            self._scope.deadline = self.deadline

    @contextmanager
    def limit(self) -> Iterator[None]:
        """Whatever waits in here is over with the term. May be nested. Raises Overdue."""
        if self._scope is not None:
            yield
            return
        self._scope = scope = trio.CancelScope(deadline=self.deadline)
        try:
            with scope:
                yield
        finally:
            self._scope = None
        if scope.cancelled_caught:
            raise Overdue(f"not within {self.seconds:g} s")


def limited(term: Term | None) -> AbstractContextManager[None]:
    """Under the limit of `term`, if there is one."""
    return nullcontext() if term is None else term.limit()
