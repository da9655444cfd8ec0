"""What administrators can do to a running mux: reload its configuration, turn upstreams off and on.

One thing is done after the other, and a broken configuration changes nothing. What was enabled or disabled by
hand stays so until mcpmux is restarted. A disabled upstream is as if it were not configured; a drained one is
there but gets no exchange.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import attrs
import structlog
import trio

from mcpmux.app.config_file import ConfigFile
from mcpmux.app.listeners import check_listeners
from mcpmux.config import Config, Upstream
from mcpmux.config.plan import Plan, plan_change
from mcpmux.config.report import closest
from mcpmux.errors import ConfigError
from mcpmux.traffic.admin.upstreams import NoSuchUpstream, NotPossible

log = structlog.get_logger()

NO_FILE = "there is no configuration file to read again: mcpmux was started without one"


def _load(file: ConfigFile) -> Config:
    """The configuration in the file. Raises ConfigError if mcpmux could not be started with it."""
    config = file.load()
    check_listeners(config)
    return config


class Controlled(Protocol):
    """A mux, or the supervisor of several processes with one each. `Mux` says what each does."""

    config: Config

    def apply(self, config: Config) -> Plan: ...
    def restart(self, name: str) -> None: ...
    def drain(self, name: str) -> None: ...
    def release(self, name: str) -> None: ...
    async def renew(self) -> tuple[str, ...]: ...
    async def settled(self) -> None: ...


class Control:
    """Of one mux. `file` is where its configuration comes from, None when that cannot be read again."""

    def __init__(self, mux: Controlled, file: ConfigFile | None) -> None:
        self._mux = mux
        self._file = file
        self._started = self._filed = mux.config
        self._by_hand: dict[str, bool] = {}
        self._lock = trio.Lock()

    def __repr__(self) -> str:
        return f"<Control of {self._file!r}, by hand: {self._by_hand}>"

    @property
    def pending(self) -> tuple[str, ...]:
        """Settings that take effect when mcpmux is started again."""
        return plan_change(self._started, self._mux.config).pending

    async def reload(self) -> Mapping[str, Any]:
        """Become what the file says now. Returns what was done. When it raises ConfigError nothing was."""
        async with self._lock:
            if self._file is None:
                raise ConfigError([NO_FILE])
            before = self.pending
            filed = await trio.to_thread.run_sync(_load, self._file, abandon_on_cancel=True)
            chosen = self._with_choices(filed)
            certificates = await self._mux.renew()
            plan = self._mux.apply(chosen)
            self._filed = filed
            await self._mux.settled()
        done = plan.as_json() | ({"certificates": list(certificates)} if certificates else {})
        log.info("configuration reloaded", **{key: names for key, names in done.items() if key != "pending"})
        if self.pending and (plan.pending or self.pending != before):
            log.warning("takes effect when mcpmux is started again", settings=list(self.pending))
        return done

    async def reload_or_tell(self) -> None:
        """Reload, and log what is wrong."""
        try:
            await self.reload()
        except ConfigError as error:
            for problem in error.problems:
                log.error("configuration not reloaded, everything stays as it was", problem=problem)

    async def act(self, action: str, name: str) -> None:
        """Do one of `ACTIONS`. Raises NoSuchUpstream, NotPossible."""
        async with self._lock:
            upstream = self._find(name)
            if action in ("enable", "disable"):
                self._choose(upstream, action == "enable")
            elif not upstream.enabled:
                raise NotPossible(f"{name} is disabled; enable it first")
            else:
                {"drain": self._mux.drain, "restart": self._mux.restart}[action](name)
            await self._mux.settled()
        log.warning("done by an administrator", action=action, upstream=name)

    def _find(self, name: str) -> Upstream:
        known = {upstream.name: upstream for upstream in self._mux.config.upstreams}
        if name in known:
            return known[name]
        close = closest(name.lower(), known)
        hint = f"there are {', '.join(known)}" if close is None else f"did you mean {close}?"
        raise NoSuchUpstream(f"there is no upstream {name}; {hint}")

    def _choose(self, upstream: Upstream, enabled: bool) -> None:
        if upstream.enabled is not enabled:
            before, self._by_hand = self._by_hand, {**self._by_hand, upstream.name: enabled}
            try:
                self._mux.apply(self._with_choices(self._filed))
            except ConfigError as error:
                self._by_hand = before
                raise NotPossible(
                    f"{upstream.name} cannot be {'enabled' if enabled else 'disabled'}: {error}"
                ) from None
        if enabled:
            self._mux.release(upstream.name)

    def _with_choices(self, config: Config) -> Config:
        """`config` with what was chosen by hand. Raises ConfigError if these do not go together."""
        chosen = {each.name: self._by_hand.get(each.name, each.enabled) for each in config.upstreams}
        try:
            return attrs.evolve(
                config,
                upstreams=tuple(attrs.evolve(each, enabled=chosen[each.name]) for each in config.upstreams),
            )
        except ConfigError as error:
            by_hand = [name for name in self._by_hand if name in chosen]
            note = f" (enabled or disabled by hand: {', '.join(by_hand)})" if by_hand else ""
            raise ConfigError([f"{problem}{note}" for problem in error.problems]) from None
