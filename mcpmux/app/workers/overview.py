"""The keeper's admin listener: one for all workers, who are asked, or have brought what has passed.

Promises: what is shown is of all workers; one that does not answer is told in the log and is missing.
"""

from __future__ import annotations

import trio

from mcpmux.app.control import Control
from mcpmux.app.listeners import Announce
from mcpmux.app.watching import new_run
from mcpmux.app.workers.courier import Gathering
from mcpmux.app.workers.crew import Crew
from mcpmux.app.workers.home import Homes
from mcpmux.app.workers.merged import merge_states, merge_upstreams
from mcpmux.config import Config
from mcpmux.traffic.admin.listener import serve_admin
from mcpmux.traffic.admin.scrape import text_route
from mcpmux.traffic.admin.upstreams import UpstreamState
from mcpmux.traffic.live.ring import LiveRing
from mcpmux.traffic.live.view import LiveView
from mcpmux.traffic.redaction.replaceable import ReplaceableRedactor
from mcpmux.traffic.telemetry.summing import Totals
from mcpmux.transports.tls.context import TlsContexts


class Overview:
    """Of all workers. `gathering` is given what they bring."""

    def __init__(self, config: Config, crew: Crew, homes: Homes) -> None:
        """For a configuration with an admin listener."""
        self._config = config.admin
        self._crew = crew
        self._homes = homes
        self._redactor = ReplaceableRedactor(config.redaction)
        self._ring = LiveRing(config.admin.keep_exchanges, config.admin.keep_bytes)
        self._totals = Totals()
        self.gathering = Gathering(self._ring, crew.count)

    def __repr__(self) -> str:
        return f"<Overview {self._ring!r}>"

    def follow(self, config: Config) -> None:
        """The configuration has changed."""
        self._redactor.adopt(config.redaction)

    async def serve(
        self,
        control: Control,
        stopping: trio.Event,
        announce: Announce,
        certificates: TlsContexts,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the admin listener until we stop. Raises TransportError, ConfigError."""
        view = LiveView(self._ring, self._redactor, new_run())
        routes = [text_route(self._metrics)]
        await serve_admin(
            self._config,
            view,
            self,
            stopping,
            announce,
            routes,
            control,
            certificates,
            task_status=task_status,
        )

    async def told(self) -> list[UpstreamState]:
        """See `Upstreams`."""
        homes = self._homes.states(self._redactor)
        return merge_upstreams(await self._crew.ask("upstreams"), homes)

    async def told_states(self) -> dict[str, str]:
        """See `Upstreams`."""
        return merge_states((await self._crew.ask("states")).values())

    async def _metrics(self) -> bytes:
        texts = await self._crew.ask("metrics")
        lives = self._crew.lives
        named: dict[object, str] = {(number, lives[number]): text for number, text in texts.items()}
        return self._totals.add_up(named, lives.items()).encode()
