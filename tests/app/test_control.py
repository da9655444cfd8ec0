"""Actions of administrators on a running mux; a broken configuration changes no part of it. Virtual time."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from structlog.testing import capture_logs

from mcpmux.app.control import NO_FILE, Control
from mcpmux.config import (
    Admin,
    Audit,
    Auth,
    Capture,
    Config,
    HttpListener,
    Limits,
    Listeners,
    Logging,
    StaticToken,
    Tracing,
    Upstream,
)
from mcpmux.errors import ConfigError
from mcpmux.traffic.admin.route import BadRequest
from tests.app.test_applying import uris
from tests.runtime.test_flows import docs
from tests.runtime.world import World, open_world, upstream


class Written:
    """A file in memory: what it says is what `load` gives, or raises."""

    def __init__(self, world: World) -> None:
        self.says: Config | ConfigError = world.mux.config

    def load(self) -> Config:
        if isinstance(self.says, ConfigError):
            raise self.says
        return self.says

    def change(self, *upstreams: Upstream, **settings: Any) -> None:
        assert isinstance(self.says, Config)
        changes = {**({"upstreams": upstreams} if upstreams else {}), **settings}
        self.says = attrs.evolve(self.says, **changes)


def control_of(world: World) -> tuple[Control, Written]:
    written = Written(world)
    return Control(world.mux, written), written  # type: ignore[arg-type]  # only `load` is used


async def test_a_broken_file_changes_nothing_and_says_why(autojump_clock):
    async with open_world({"docs": docs()}) as world:
        control, written = control_of(world)
        config = world.mux.config
        written.says = ConfigError(["x.toml:3:1: invalid TOML: no", "upstreams.b: expected `command`"])
        with pytest.raises(ConfigError) as caught:
            await control.reload()
        assert caught.value.problems == ["x.toml:3:1: invalid TOML: no", "upstreams.b: expected `command`"]
        assert world.mux.config is config
        assert len(await uris(world.client())) == 2


async def test_a_file_that_mcpmux_would_not_start_with_changes_nothing(autojump_clock):
    """Listeners take effect at the next start; the reload reports that there would be none."""
    async with open_world({"docs": docs()}) as world:
        control, written = control_of(world)
        config = world.mux.config
        written.change(listeners=Listeners(http=(HttpListener(host="0.0.0.0", port=1),)))
        with pytest.raises(ConfigError, match="allow_anyone"):
            await control.reload()
        assert world.mux.config is config


async def test_without_a_file_there_is_nothing_to_read_again(autojump_clock):
    async with open_world({"docs": docs()}) as world:
        with pytest.raises(ConfigError, match=NO_FILE[:40]):
            await Control(world.mux, None).reload()


async def test_changes_that_need_a_restart_are_reported_until_taken_back(autojump_clock):
    async with open_world({"docs": docs()}) as world:
        control, written = control_of(world)
        written.change(limits=Limits(max_head_bytes=5000), logging=Logging(level="debug"))
        assert await control.reload() == {
            "settings": ["logging.level"],
            "pending": ["limits.max_head_bytes"],
        }
        assert await control.reload() == {}
        assert control.pending == ("limits.max_head_bytes",)
        written.change(limits=Limits())
        assert await control.reload() == {}
        assert not control.pending


@pytest.mark.parametrize("has_tokens", [True, False])
async def test_tokens_are_pending_unless_the_start_asked_for_some(has_tokens: bool, autojump_clock):
    first, second = (Auth(tokens={name: StaticToken(sha256="0" * 64)}) for name in ("ann", "ben"))
    async with open_world({"docs": docs()}) as world:
        world.mux.apply(attrs.evolve(world.mux.config, auth=first if has_tokens else Auth()))
        control, written = control_of(world)
        changes = [Auth(), second] if has_tokens else [first, second]
        reports = []
        for auth in changes:
            written.change(auth=auth)
            reports.append(await control.reload())
        named = ["auth.tokens"]
        assert reports == [{"pending": named}, {"settings" if has_tokens else "pending": named}]


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("limits.max_sessions", [Limits(max_sessions=5), Limits(max_sessions=6)]),
        ("listeners.http", [Listeners(http=(HttpListener(port=port),)) for port in (1, 2)]),
        ("admin.port", [Admin(port=1), Admin(port=2)]),
        ("capture.body_bytes", [Capture(body_bytes=5), Capture(body_bytes=6)]),
        ("audit.directory", [Audit(directory="a"), Audit(directory="b")]),
        ("tracing.enabled", [Tracing(enabled=True), Tracing(enabled=True, endpoint="http://b")]),
    ],
)
async def test_each_reload_that_has_to_wait_for_the_next_start_says_so(
    autojump_clock, key: str, settings: list[Any]
):
    section, event = key.partition(".")[0], "takes effect when mcpmux is started again"
    async with open_world({"docs": docs()}) as world:
        control, written = control_of(world)
        for setting in settings:
            written.change(**{section: setting})
            with capture_logs() as logs:
                assert section in str((await control.reload())["pending"])
            assert [key in line["settings"] for line in logs if line["event"] == event] == [True]
            assert key in control.pending
        with capture_logs() as logs:
            await control.reload()
        assert event not in [line["event"] for line in logs]


async def test_a_disabled_upstream_is_away_until_it_is_enabled(autojump_clock):
    async with open_world({"docs": docs(), "more": docs()}) as world:
        control, written = control_of(world)
        await control.act("disable", "more")
        assert len(await uris(world.client())) == 2
        written.change(upstream("docs"), upstream("more", list_timeout=3.0))
        await control.reload()
        assert len(await uris(world.client())) == 2  # what was chosen by hand stays
        await control.act("enable", "more")
        assert len(await uris(world.client())) == 4
        assert world.mux.upstreams["more"].config.list_timeout == 3.0
        assert world.connects == {"docs": 1, "more": 2}


async def test_an_upstream_that_the_file_disables_can_be_enabled_by_hand(autojump_clock):
    async with open_world({"docs": docs()}) as world:
        control, written = control_of(world)
        world.servers["more"] = docs()
        written.change(upstream("docs"), upstream("more", enabled=False))
        await control.reload()
        await control.act("enable", "more")
        assert len(await uris(world.client())) == 4


async def test_enabling_is_the_end_of_draining(autojump_clock):
    async with open_world({"docs": docs(), "more": docs()}) as world:
        control, _ = control_of(world)
        await control.act("drain", "more")
        await control.act("drain", "more")
        assert len(await uris(world.client())) == 2
        await control.act("enable", "more")
        assert len(await uris(world.client())) == 4
        assert world.connects == {"docs": 1, "more": 1}


@pytest.mark.parametrize(
    ("name", "hint"), [("dosc", "did you mean docs?"), ("x", "there are docs, more"), ("", "there are")]
)
async def test_an_unknown_upstream_is_told_with_what_there_is(name, hint, autojump_clock):
    async with open_world({"docs": docs(), "more": docs()}) as world:
        control, _ = control_of(world)
        with pytest.raises(BadRequest) as caught:
            await control.act("restart", name)
        assert hint in str(caught.value) and caught.value.status == 404


async def test_what_makes_no_sense_is_refused_and_changes_nothing(autojump_clock):
    async with open_world({"docs": docs(), "more": docs()}) as world:
        control, _ = control_of(world)
        await control.act("disable", "more")
        with pytest.raises(BadRequest, match="at least one upstream"):
            await control.act("disable", "docs")
        for action in ("drain", "restart"):
            with pytest.raises(BadRequest, match="more is disabled"):
                await control.act(action, "more")
        await control.act("enable", "more")
        assert len(await uris(world.client())) == 4  # what was refused is forgotten
        await control.act("disable", "docs")
        assert [uri.partition("+")[0] for uri in await uris(world.client())] == ["more", "more"]


async def test_a_file_that_contradicts_manual_choices_changes_nothing(autojump_clock):
    async with open_world({"docs": docs(), "more": docs()}) as world:
        control, written = control_of(world)
        await control.act("disable", "more")
        written.change(upstream("more"))
        with pytest.raises(ConfigError, match="by hand: more"):
            await control.reload()
        assert list(world.mux.upstreams) == ["docs"]
