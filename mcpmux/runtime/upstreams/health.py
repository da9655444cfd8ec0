"""Finds out whether a connected upstream is alive, by asking it something that every server answers.

Asked is `ping`, or `server/discover` in 2026-07-28:

    * when nothing was answered for `health_interval` and no call is on its way: traffic is proof enough;
    * when the breaker holds the server for suspect, and again whenever its pause is over.

Any answer will do, an error too. A server that has not answered twice in a row is given up: its connection
ends, and it is started or connected anew. But some servers ignore what they do not know: one that has never
answered such a question is not judged by its silence while it is idle.

Promises: nothing is asked while traffic flows. Refuses to know what follows from a breaker's state.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import trio

from mcpmux.errors import McpmuxError, RpcError, TransportClosed
from mcpmux.mux.breaker import State
from mcpmux.runtime.upstreams.connection import Connection
from mcpmux.runtime.upstreams.http_peer import HttpStatusError

if TYPE_CHECKING:
    from mcpmux.runtime.upstreams.upstream import Upstream

log = structlog.get_logger()

ANSWER_SECONDS = 10.0  # for the answer to a question that costs nothing
SILENCES = 2  # unanswered questions after which a server is given up
AGAIN_SECONDS = 1.0  # between the first doubt about an idle server and the next question
DEAF = f"it did not answer a health check within {ANSWER_SECONDS:g} s"


@dataclass(eq=False)
class Health:
    """One connection's. `run` has to run while it lasts."""

    _patient: Upstream
    _connection: Connection
    _silences: int = 0

    async def run(self) -> None:
        """Ask when it is time, until cancelled or until the connection is given up."""
        while True:
            await self._until_due()
            self._patient.breaker.begin_probe()
            trouble, wish = await self._ask()
            if trouble is None:
                self._silences = 0
                self._patient.speaks_up = True
                self._patient.heard()
            elif self._silences >= SILENCES and self._counts:
                self._connection.channel.give_up(TransportClosed(f"{DEAF}, {SILENCES} times in a row"))
                return
            elif self._counts and self._patient.breaker.suspect():
                self._patient.silent = True  # nothing but an idle server's silence speaks against it so far
                await trio.sleep(AGAIN_SECONDS)
            elif self._counts:
                self._patient.block(trouble, wish, random.random())

    @property
    def _counts(self) -> bool:
        """Whether a question without an answer speaks against the server."""
        return self._patient.speaks_up or self._patient.breaker.doubtful

    async def _until_due(self) -> None:
        patient = self._patient
        while patient.breaker.state is not State.SUSPECT:
            patient.alarm = trio.Event()
            if patient.breaker.retry_at is not None:
                with trio.move_on_at(patient.breaker.retry_at):
                    await patient.alarm.wait()
                if patient.breaker.retry_at is not None:
                    return
                continue
            patient.silent = True
            with trio.move_on_after(patient.config.health_interval or math.inf):
                await patient.alarm.wait()
                continue
            if patient.silent and not patient.running and not patient.breaker.blocks:
                return

    async def _ask(self) -> tuple[str | None, float]:
        """What is wrong, None for nothing, and how long the server wants to be left alone."""
        with trio.move_on_after(ANSWER_SECONDS):
            try:
                await self._connection.check()
            except RpcError:
                return None, 0.0
            except HttpStatusError as error:
                self._silences = 0
                return (str(error) if error.status >= 500 else None), error.retry_after or 0.0
            except McpmuxError as error:
                return str(error), 0.0
            return None, 0.0
        self._silences += 1
        return DEAF, 0.0
