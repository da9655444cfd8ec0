"""Control a running mux: reload its configuration, turn upstreams off and on.

A broken configuration has no effect. An upstream that was enabled or disabled by hand stays so until mcpmux
is restarted. A disabled upstream is treated as not configured; a drained one is listed but gets no exchange.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import attrs
import structlog
import trio

from mcpmux.app.interceptors import check_interceptors
from mcpmux.app.listeners import check_listeners
from mcpmux.config import Config, Upstream
from mcpmux.config.plan import Plan, in_force, plan_change
from mcpmux.config.report import closest
from mcpmux.errors import ConfigError
from mcpmux.traffic.admin.route import BadRequest
from mcpmux.transports.byte_stream import reason_of
from mcpmux.transports.thread import run_in_thread

log = structlog.get_logger()

LOOK_SECONDS = 0.5  # between two looks at the file
NO_FILE = "there is no configuration file to read again: mcpmux was started without one"


Look = tuple[int, int, int]
"""The time of a file's last change (ns), its inode, its size (bytes)."""


class ConfigFile:
    """A configuration file. `read` is called in a thread; it raises ConfigError.

    `known`: the look when the file was last read. `is_watched`: whether its changes are followed.
    """

    def __init__(self, path: str, read: Callable[[], Config], *, is_watched: bool = True) -> None:
        self.path, self.is_watched = path, is_watched
        self.known: Look | None = None
        self._last: Look | None = None
        self._read = read

    def see(self, look: Look | None) -> bool:
        """Take one more look (None: no file). Return whether the file is to be read."""
        # Two looks in a row are alike: it is not being written, or replaced by a file that is not there yet.
        settled, self._last = look == self._last, look
        return settled and look is not None and look != self.known

    def load(self) -> Config:
        """Read the file. Raises ConfigError."""
        self.known = look_at_file(self.path)  # before it is read, so that a change meanwhile is noticed
        with suppress(OSError):  # `_read` tells why
            # Reading it would wait for a writer, and the reload with it.
            if stat.S_ISFIFO(Path(self.path).stat().st_mode):
                raise ConfigError([f"{self.path}: expected a file, this is a pipe"])
        return self._read()

    async def changed(self) -> None:
        """Wait until the file has changed since it was last loaded, and is complete."""
        # By `stat`, which works on every file system, through symbolic links, and with every editor: inotify
        # misses changes behind links and on network file systems.
        while True:
            await trio.sleep(LOOK_SECONDS)
            # In a thread: a `stat` on a network file system may hang.
            with suppress(OSError):  # there is no thread: it is seen the next time
                if self.see(await run_in_thread(look_at_file, self.path)):
                    return


def look_at_file(path: str) -> Look | None:
    """Return the look of a file, or None if there is no file."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _load(file: ConfigFile) -> Config:
    config = file.load()
    check_listeners(config)
    check_interceptors(config)
    return config


class Controlled(Protocol):
    """The interface of a mux, or of the supervisor of several. `Mux` documents the methods."""

    config: Config

    def apply(self, config: Config) -> Plan: ...
    def act(self, action: str, name: str) -> None: ...
    async def renew(self, config: Config) -> tuple[str, ...]: ...
    async def settled(self) -> None: ...


class Control:
    """The control of one mux. `file`: the source of its configuration, None when it cannot be read again."""

    def __init__(self, mux: Controlled, file: ConfigFile | None) -> None:
        self._mux = mux
        self._file = file
        self._started = self._filed = mux.config
        self._by_hand: dict[str, bool] = {}
        self._lock = trio.Lock()
        self.endpoint: str | None = None

    def noting(self, announce: Callable[[str], None]) -> Callable[[str], None]:
        """Return an `announce` that also sets `endpoint` to the first HTTP URL."""

        def note(url: str) -> None:
            if self.endpoint is None and url.startswith(("http:", "https:")):
                self.endpoint = url
            announce(url)

        return note

    @property
    def pending(self) -> tuple[str, ...]:
        """The changed settings that take effect when mcpmux is started again."""
        return plan_change(self._started, self._mux.config).pending

    async def reload(self) -> Mapping[str, Any]:
        """Apply the configuration file. Return what was done. Raises ConfigError without any change."""
        # One after the other, also with actions: what two do at once would depend on which of them is slower.
        async with self._lock:
            if self._file is None:
                raise ConfigError([NO_FILE])
            former, pending = self._mux.config, self.pending
            try:
                filed = await run_in_thread(_load, self._file)
            except OSError as error:
                raise ConfigError([f"cannot read the file: {reason_of(error)}"], self._file.path) from None
            chosen = self._with_choices(filed)
            # Every step that can fail comes before `apply`, which cannot: so an error has no effect.
            certificates = await self._mux.renew(chosen)
            plan = self._mux.apply(chosen)
            self._filed = filed
            await self._mux.settled()
        plan = self._since_start(plan, former)
        done = plan.as_json() | ({"certificates": list(certificates)} if certificates else {})
        log.info("configuration reloaded", **{key: names for key, names in done.items() if key != "pending"})
        # Only what is new: each later change of the file would repeat it.
        if self.pending and (plan.pending or self.pending != pending):
            log.warning("takes effect when mcpmux is started again", settings=list(self.pending))
        return done

    def _since_start(self, plan: Plan, former: Config) -> Plan:
        """Return a plan from the configuration `former` with the settings that it has put into force."""
        # Without the start a plan cannot know what is in force: not tokens, where none were required at the
        # start, nor a limit that is taken back before the next one.
        former, present = (in_force(self._started, config) for config in (former, self._mux.config))
        changed = (*plan.settings, *plan.pending)
        return attrs.evolve(
            plan,
            settings=plan_change(former, present).settings,
            pending=tuple(key for key in self.pending if key in changed),
        )

    async def reload_or_tell(self) -> None:
        """Reload, and log the mistakes of a broken configuration."""
        try:
            await self.reload()
        except ConfigError as error:
            for problem in error.problems:
                log.error("configuration not reloaded, everything stays as it was", problem=problem)

    async def act(self, action: str, name: str) -> None:
        """Do one of `ACTIONS`. Raises BadRequest."""
        async with self._lock:
            upstreams = {upstream.name: upstream for upstream in self._mux.config.upstreams}
            upstream = upstreams.get(name)
            if upstream is None:
                close = closest(name.lower(), upstreams)
                hint = f"there are {', '.join(upstreams)}" if close is None else f"did you mean {close}?"
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
            former, self._by_hand = self._by_hand, {**self._by_hand, upstream.name: enabled}
            try:
                self._mux.apply(self._with_choices(self._filed))
            except ConfigError as error:  # such as two upstreams with one prefix, of which one was disabled
                self._by_hand = former
                what = "enabled" if enabled else "disabled"
                raise BadRequest(f"{upstream.name} cannot be {what}: {error}", 409) from None
        # Also one that was enabled: `enable` ends a drain.
        if enabled:
            self._mux.act("release", upstream.name)

    def _with_choices(self, config: Config) -> Config:
        """Return `config` with the choices made by hand. Raises ConfigError if they contradict each other."""
        chosen = {
            upstream.name: self._by_hand.get(upstream.name, upstream.enabled) for upstream in config.upstreams
        }
        try:
            return attrs.evolve(
                config,
                upstreams=tuple(
                    attrs.evolve(upstream, enabled=chosen[upstream.name]) for upstream in config.upstreams
                ),
            )
        except ConfigError as error:
            by_hand = [name for name in self._by_hand if name in chosen]
            note = f" (enabled or disabled by hand: {', '.join(by_hand)})" if by_hand else ""
            raise ConfigError([f"{problem}{note}" for problem in error.problems]) from None
