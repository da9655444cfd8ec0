"""Laws of the plan from one configuration to another."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmux.config import (
    Admin,
    Auth,
    Config,
    Http,
    Identity,
    Limits,
    Logging,
    Merging,
    Redaction,
    StaticToken,
    Stdio,
    Upstream,
)
from mcpmux.config.listener import Listeners
from mcpmux.config.model import Settings, ToolSelection
from mcpmux.config.plan import IN_PLACE, LIVE, Plan, in_force, plan_change
from mcpmux.config.views import Override, View

TOKEN = StaticToken(sha256="0" * 64)
NAMES = ["a", "b", "c", "d"]

targets: st.SearchStrategy[Stdio | Http] = st.sampled_from(
    [Stdio(command="x"), Stdio(command="y"), Http(url="http://h/"), Http(url="http://i/")]
)


@st.composite
def upstreams(draw: st.DrawFn) -> tuple[Upstream, ...]:
    names = draw(st.permutations(NAMES))[: draw(st.integers(1, 4))]
    drawn = [
        Upstream(
            name=name,
            target=draw(targets),
            enabled=draw(st.booleans()),
            prefix=draw(st.sampled_from([name, f"{name}-other"])),
            request_timeout=draw(st.sampled_from([1.0, 2.0])),
            session=draw(st.sampled_from(["shared", "per-client"])),
        )
        for name in names
    ]
    return (*drawn, Upstream(name="always", target=Stdio(command="x")))


configs = st.builds(
    Config,
    upstreams=upstreams(),
    merging=st.sampled_from([Merging(), Merging(page_size=7)]),
    logging=st.sampled_from([Logging(), Logging(level="debug")]),
    admin=st.sampled_from([Admin(), Admin(port=1)]),
)


def names_of(config: Config) -> list[str]:
    return [upstream.name for upstream in config.upstreams if upstream.enabled]


@given(configs)
def test_nothing_has_to_happen_for_a_configuration_to_stay_what_it_is(config: Config):
    assert not plan_change(config, config)
    assert plan_change(config, attrs.evolve(config)).as_json() == {}


@given(configs, configs)
def test_what_is_removed_and_added_makes_the_old_names_the_new_ones(old: Config, new: Config):
    plan = plan_change(old, new)
    assert {*names_of(old)} - {*plan.removed} | {*plan.added} == {*names_of(new)}
    assert {*plan.removed} <= {*names_of(old)} - {*names_of(new)}


@given(configs, configs)
def test_the_way_back_is_the_other_way_round(old: Config, new: Config):
    there, back = plan_change(old, new), plan_change(new, old)
    assert {*there.added} == {*back.removed}
    assert {*there.restarted} == {*back.restarted}
    assert {*there.adjusted} == {*back.adjusted}
    assert {*there.pending} == {*back.pending}
    assert there.reordered == back.reordered


@given(configs, configs)
def test_no_upstream_is_in_two_parts_and_no_unchanged_one_in_any(old: Config, new: Config):
    plan = plan_change(old, new)
    named = [*plan.added, *plan.removed, *plan.restarted, *plan.adjusted]
    assert len(named) == len(set(named))
    same = {upstream.name for upstream in old.upstreams if upstream in new.upstreams}
    assert not same & set(named)


@given(configs, configs)
def test_every_difference_is_in_the_plan(old: Config, new: Config):
    plan = plan_change(old, new)
    assert bool(plan) == (
        [upstream for upstream in old.upstreams if upstream.enabled]
        != [upstream for upstream in new.upstreams if upstream.enabled]
        or attrs.evolve(old, upstreams=new.upstreams) != new
    )


@pytest.mark.parametrize(
    "key", [key.name for key in attrs.fields(Upstream) if key.name not in ("name", "enabled")]
)
def test_only_keys_looked_up_at_each_use_change_without_a_restart(key: str):
    earlier = Upstream(name="a", target=Stdio(command="x"))
    other: dict[str, Any] = {
        "target": Stdio(command="y"),
        "session": "per-client",
        "era": "legacy",
        "prefix": "b",
        "revision": "2025-06-18",
        "overrides": (Override(name="x", title="X"),),
        "tools": ToolSelection(("x",)),
    }
    value = getattr(earlier, key)
    changed = other.get(key, value + 1 if isinstance(value, int | float) else {"tools/call": 3.0})
    settings: dict[str, Any] = {key: changed}
    plan = plan_change(Config(upstreams=(earlier,)), Config(upstreams=(attrs.evolve(earlier, **settings),)))
    assert plan == (Plan(adjusted=("a",)) if key in IN_PLACE else Plan(restarted=("a",)))


@pytest.mark.parametrize(
    ("settings", "live", "pending"),
    [
        ({"merging": Merging(page_size=5)}, ["merging.page_size"], []),
        ({"identity": Identity(title="x")}, ["identity.title"], []),
        ({"logging": Logging(level="debug")}, ["logging.level"], []),
        ({"redaction": Redaction(keys=("ssn",))}, ["redaction.keys"], []),
        ({"listeners": Listeners(stdio=True)}, [], ["listeners.stdio"]),
        ({"admin": Admin(port=1)}, [], ["admin.port"]),
        ({"auth": Auth(method_scopes={"*": ("a",)})}, ["auth.method_scopes"], []),
        ({"auth": Auth(allow_anyone=True)}, [], ["auth.allow_anyone"]),
        ({"auth": Auth(tokens={"ann": TOKEN})}, [], ["auth.tokens"]),
        ({"limits": Limits(max_head_bytes=5000)}, [], ["limits.max_head_bytes"]),
    ],
)
def test_a_setting_changes_in_place_or_is_told_to_be_pending(settings, live, pending):
    config = Config(upstreams=(Upstream(name="a", target=Stdio(command="x")),))
    plan = plan_change(config, attrs.evolve(config, **settings))
    assert (list(plan.settings), list(plan.pending)) == (live, pending)
    assert not plan.touches_upstreams


def test_tokens_change_in_place_but_not_whether_they_are_required():
    config = Config(
        upstreams=(Upstream(name="a", target=Stdio(command="x")),), auth=Auth(tokens={"ann": TOKEN})
    )
    other = attrs.evolve(config, auth=Auth(tokens={"ben": TOKEN}))
    assert plan_change(config, other) == Plan(settings=("auth.tokens",))
    assert plan_change(config, attrs.evolve(config, auth=Auth())) == Plan(pending=("auth.tokens",))


@given(configs, configs)
def test_what_is_pending_is_in_force_as_it_was_at_the_start(started: Config, config: Config):
    mixed = in_force(started, config)
    assert not plan_change(started, mixed).pending
    assert plan_change(mixed, config) == Plan(pending=plan_change(started, config).pending)


def test_what_is_in_force_may_name_a_view_that_was_removed():
    started = Config(
        upstreams=(Upstream(name="a", target=Stdio(command="x")),),
        listeners=Listeners(stdio=True, stdio_view="coding"),
        auth=Auth(tokens={"ann": TOKEN}, required_scopes=("mcp",)),
        views={"coding": View(tools="search")},
    )
    mixed = in_force(started, attrs.evolve(started, listeners=Listeners(), auth=Auth(), views={}))
    assert (mixed.listeners, mixed.auth) == (started.listeners, Auth(tokens={"ann": TOKEN}))
    assert not mixed.views


def test_what_changes_in_place_is_there():
    assert {key.name for key in attrs.fields(Upstream)} >= IN_PLACE
    sections = {section.name for section in attrs.fields(Settings)}
    assert {key.partition(".")[0] for key in LIVE} <= sections
