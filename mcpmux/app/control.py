"""What administrators can do to a running mux: reload its configuration, turn upstreams off and on.

One thing is done after the other, and a broken configuration changes nothing. What was enabled or disabled by
hand stays so until mcpmux is restarted. A disabled upstream is as if it were not configured; a drained one is
there but gets no exchange.

The configuration file is polled, one `stat` each LOOK_SECONDS. That works on every file system, through
symbolic links, and however an editor writes; inotify misses changes behind links and on network file systems.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import attrs
import structlog
import trio

from mcpmux.app.listeners import check_listeners
from mcpmux.config import Config, Upstream
from mcpmux.config.plan import Plan, plan_change
from mcpmux.config.report import closest
from mcpmux.errors import ConfigError
from mcpmux.traffic.admin.route import BadRequest

log = structlog.get_logger()

LOOK_SECONDS = 0.5  # between two looks at the file
NO_FILE = "there is no configuration file to read again: mcpmux was started without one"


Look = tuple[int, int, int]
"""When a file was written (ns), its inode, its size."""


class ConfigFile:
    """One file, and how to read it. `read` is called in a thread; it raises ConfigError.

    It counts as changed once two looks in a row are alike, so a half-written or missing file is left alone.
    `known`: how the file looked when it was last read.
    """

    def __init__(self, path: str, read: Callable[[], Config]) -> None:
        self.path = path
        self.known: Look | None = None
        self._last: Look | None = None
        self._read = read

    def see(self, look: Look | None) -> bool:
        """Take one more look (None: no file). Returns whether the file is to be read."""
        settled, self._last = look == self._last, look
        return settled and look is not None and look != self.known

    def load(self) -> Config:
        """Read the file. It is looked at first, so that no change is missed. Raises ConfigError."""
        self.known = look_at(self.path)
        if Path(self.path).is_fifo():  # reading it would wait for a writer, and everybody for us
            raise ConfigError([f"{self.path}: expected a file, this is a pipe"])
        return self._read()

    async def changed(self) -> None:
        """Wait until the file has changed since it was last loaded, and is complete."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            if self.see(await trio.to_thread.run_sync(look_at, self.path, abandon_on_cancel=True)):
                return


def look_at(path: str) -> Look | None:
    """How the file looks, or None if there is no file."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _load(file: ConfigFile) -> Config:
    config = file.load()
    check_listeners(config)
    return config


class Controlled(Protocol):
    """A mux, or the supervisor of several processes with one each. `Mux` says what each does."""

    config: Config

    def apply(self, config: Config) -> Plan: ...
    def act(self, action: str, name: str) -> None: ...
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
        self.endpoint: str | None = None

    def noting(self, announce: Callable[[str], None]) -> Callable[[str], None]:
        """The same, and the first URL for HTTP is the `endpoint`."""

        def note(url: str) -> None:
            if self.endpoint is None and url.startswith(("http:", "https:")):
                self.endpoint = url
            announce(url)

        return note

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
        """Do one of `ACTIONS`. Raises BadRequest."""
        async with self._lock:
            known = {upstream.name: upstream for upstream in self._mux.config.upstreams}
            upstream = known.get(name)
            if upstream is None:
                close = closest(name.lower(), known)
                hint = f"there are {', '.join(known)}" if close is None else f"did you mean {close}?"
                raise BadRequest(f"there is no upstream {name}; {hint}", 404)
            if action in ("enable", "disable"):
                self._choose(upstream, action == "enable")
            elif not upstream.enabled:
                raise BadRequest(f"{name} is disabled; enable it first", 409)
            else:
                self._mux.act(action, name)
            await self._mux.settled()
        log.warning("done by an administrator", action=action, upstream=name)

    def _choose(self, upstream: Upstream, enabled: bool) -> None:
        if upstream.enabled is not enabled:
            before, self._by_hand = self._by_hand, {**self._by_hand, upstream.name: enabled}
            try:
                self._mux.apply(self._with_choices(self._filed))
            except ConfigError as error:
                self._by_hand = before
                what = "enabled" if enabled else "disabled"
                raise BadRequest(f"{upstream.name} cannot be {what}: {error}", 409) from None
        if enabled:
            self._mux.act("release", upstream.name)

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
