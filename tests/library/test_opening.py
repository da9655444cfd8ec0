"""The parts that a program may open, and their lifetimes."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog
import structlog.testing
import trio
import trio.testing

from mcpmux.config import Audit, Capture, Config, Stdio
from mcpmux.config.report import InvalidValue
from mcpmux.config.views import Parameter
from mcpmux.errors import ConfigError, LocalProtocolError, RpcError
from mcpmux.library import open_mux
from mcpmux.library.mux import load
from mcpmux.traffic.audit.chain import AuditUnusable
from mcpmux.traffic.record import decode_record
from mcpmux.upstreams.supervision import STARTUP_PART, STARTUP_SECONDS
from tests.library.servers import Worker, config_of, open_local
from tests.runtime.world import World, upstream

CLOCK = {"command": sys.executable, "args": ["-m", "mcpmux.demo.clock"]}


def names(config: Config) -> list[str]:
    return [upstream.name for upstream in config.upstreams]


def test_a_configuration_is_a_value_path_or_mapping(tmp_path: Path):
    ready = config_of({"x": None})
    file = tmp_path / "mux.toml"
    file.write_text("[upstreams.clock]\ncommand = 'clock'\n")
    assert load(ready) is ready
    assert names(load(file)) == names(load(str(file))) == ["clock"]
    assert names(load({"upstreams": {"clock": CLOCK}})) == ["clock"]
    assert names(load({"mcpServers": {"Clock": CLOCK}})) == ["clock"]
    target = load({"upstreams": {"x": {"command": "c", "args": ("a", "b")}}}).upstreams[0].target
    assert target == Stdio("c", ("a", "b"))


def test_variables_in_a_mapping_are_expanded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PLACE", "https://example.com/mcp")
    (upstream,) = load({"upstreams": {"web": {"url": "${PLACE}"}}}).upstreams
    assert upstream.target.display == "https://example.com/mcp"


@pytest.mark.parametrize(
    "source",
    [
        {},
        {"upstreams": {"x": {}}},
        {"upstreams": {"x": {"command": Path("c")}}},
        {"listen": 1},
        "nowhere.toml",
        "-",
        Path(),
    ],
)
async def test_what_is_wrong_with_a_configuration_is_said(source: Any):
    with pytest.raises(ConfigError):
        async with open_mux(source):
            pytest.fail("it began")


async def test_it_begins_when_every_server_is_there_or_has_failed(autojump_clock):
    async with open_local({"x": Worker(), "gone": None}) as (mux, client):
        assert mux.absent() == {"gone": "nobody there"}
        assert len(await client.list_all("tools/list")) == 3


async def test_a_server_that_never_says_anything_holds_it_up_for_seconds(autojump_clock):
    class Silent(Worker):
        async def handle(self, *_: Any) -> Any:
            await trio.sleep_forever()

    began = trio.current_time()
    async with open_local({"x": Worker(), "mute": Silent()}) as (mux, _):
        assert trio.current_time() - began == STARTUP_SECONDS
        assert list(mux.absent()) == ["mute"]

    began, world = trio.current_time(), World({"mute": Silent()})
    patient = Config(upstreams=(upstream("mute", list_timeout=60.0, connect_timeout=60.0),))
    async with open_mux(patient, open_channel=world.open_channel):
        assert trio.current_time() - began == STARTUP_PART * 60


async def test_two_in_one_program_do_not_know_of_each_other(autojump_clock):
    async with (
        open_local({"x": Worker(), "y": Worker()}) as (mux, client),
        open_local({"z": Worker()}) as (two, other),
        mux.observe() as ours,
        two.observe() as theirs,
    ):
        await client.request("tools/list")
        await other.request("tools/call", {"name": "work"})
        assert (await anext(ours)).method == "tools/list"
        assert (await anext(theirs)).upstreams == ("z",)


async def test_two_threads_do_not_have_it_open_at_the_same_time():
    async def open_there() -> None:
        async with open_local({"z": Worker()}):
            pytest.fail("it began")

    async with open_local({"x": Worker()}):
        with pytest.raises(LocalProtocolError, match="open in another thread"):
            await trio.to_thread.run_sync(trio.run, open_there)
    async with open_local({"x": Worker()}) as (_, client):
        await client.request("tools/list")


def test_a_number_that_json_lacks_is_refused_in_a_configuration():
    for number in (math.nan, math.inf):
        with pytest.raises(ConfigError, match=rf"upstreams\.x\.timeout is {number}"):
            load({"upstreams": {"x": {"command": "c", "timeout": number, "cwd": None}}})
        with pytest.raises(InvalidValue, match=rf"but value is {number}"):
            Parameter(value=number)


async def test_a_session_of_a_clients_own_goes_with_it(autojump_clock):
    world = World({"x": Worker()})
    config = Config(upstreams=(upstream("x", session="per-client"),))
    async with open_mux(config, open_channel=world.open_channel) as mux:
        for opened in (2, 3):
            async with mux.client() as client:
                await client.request("tools/call", {"name": "x__work"})
                await client.request("tools/call", {"name": "x__work"})
                assert world.connects == {"x": opened}
            await trio.testing.wait_all_tasks_blocked()
            assert len(mux._mux.upstreams.sessions()) == 1


def lines_in(directory: Path) -> list[bytes]:
    return [line for file in directory.rglob("*.jsonl") for line in file.read_bytes().splitlines()]


async def test_what_a_program_asks_is_captured_on_both_sides(tmp_path: Path):
    capture = Capture(level="full", directory=str(tmp_path), compress=False)
    worker = Worker()

    async def hear(_notification: object) -> None: ...

    async with open_local({"x": worker, "y": Worker()}, capture=capture) as (_, client):
        await client.request("tools/call", {"name": "x__work"}, hear)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.request, "tools/call", {"name": "x__hang"})
            await worker.hangs.wait()
            nursery.cancel_scope.cancel()
    records = [record for record in map(decode_record, lines_in(tmp_path)) if record.leg == "client"]
    assert {record.transport for record in records} == {"memory"}
    assert [(record.exchange, record.direction, record.kind, record.method) for record in records] == [
        (1, "in", "request", "tools/call"),
        (1, "out", "notification", "notifications/progress"),
        (1, "out", "result", "tools/call"),
        (2, "in", "request", "tools/call"),
        (2, "in", "notification", "notifications/cancelled"),
    ]


async def test_what_a_program_asks_is_in_the_audit_log(tmp_path: Path):
    capture = Capture(level="full", directory=str(tmp_path / "capture"))
    async with (
        open_local({"x": Worker(), "y": Worker()}, audit=Audit(directory=str(tmp_path))) as (mux, _),
        mux.client("alice") as client,
    ):
        await client.request("tools/call", {"name": "x__work"})
        settings = {"audit": Audit(directory=str(tmp_path)), "capture": capture}
        with pytest.raises(AuditUnusable):  # in no group
            async with open_local({"x": Worker()}, **settings):
                pytest.fail("two keep one log")
    requests = [
        tuple(map(json.loads(line).get, ("principal", "method", "target"))) for line in lines_in(tmp_path)
    ]
    assert ("alice", "tools/call", "x__work") in requests


@pytest.mark.parametrize("is_configured", [True, False])
async def test_the_log_of_a_program_stays_as_it_has_configured_it(autojump_clock, is_configured: bool):
    settings, captured = structlog.get_config(), structlog.testing.LogCapture()
    try:
        structlog.reset_defaults()
        if is_configured:
            structlog.configure(processors=[captured])
        async with open_local({"x": Worker()}):
            assert (structlog.get_config()["processors"] == [captured]) is is_configured
        assert ("upstream ready" in [entry["event"] for entry in captured.entries]) is is_configured
    finally:
        structlog.configure(**settings)


@pytest.mark.process
async def test_an_entry_that_cannot_be_read_is_absent_and_others_are_there():
    notes = {"command": sys.executable, "args": ["-m", "mcpmux.demo.notes"], "isActive": True}
    broken = {"command": "x", "env": {"KEY": "${UNSET_9}"}}
    with structlog.testing.capture_logs() as logs:
        async with (
            open_mux({"mcpServers": {"notes": notes, "broken": broken}}) as mux,
            mux.client() as client,
        ):
            assert await client.list_all("tools/list")
            (reason,) = mux.absent().values()
            assert reason.startswith("env.KEY: the environment variable `UNSET_9` is not set")
    assert [log["note"] for log in logs if "note" in log] == [
        "mcpServers.notes: keys that mcpmux does not know: isActive"
    ]


async def test_functions_of_the_program_intercept_and_mistakes_are_told_at_once():
    def refuse(_message: Any) -> Any:
        return {"verdict": "refuse", "reason": "no"}

    config: Any = {"upstreams": {"clock": CLOCK}, "intercept": [{"python": "guard"}]}
    async with open_mux(config, functions={"guard": refuse}) as mux, mux.client() as client:
        with pytest.raises(RpcError, match=r"Refused by intercept\[0\]: no"):
            await client.request("tools/call", {"name": "clock__now", "arguments": {}})
    config["intercept"] = [{"python": "guard"}, {"python": "no_such_module:f"}]
    with pytest.raises(ConfigError) as error:
        async with open_mux(config):
            pass
    assert len(error.value.found) == 2
