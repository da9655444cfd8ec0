"""Interceptors of a scripted MCP server, by the draft."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcpmux.config import Intercept
from tests.peers.revision import ERAS, Json
from tests.peers.server import RpcFailure, ScriptedServer
from tests.runtime.test_interception import DELETE, REFUSED, calls_at, disk
from tests.runtime.world import open_world

SERVER: Json = {"intercept": (Intercept(name="guards", server="guards", methods=("tools/*",)),)}


def entry(name: str, kind: str, **more: Any) -> Json:
    return {"name": name, "type": kind, "hook": {"events": ["tools/call"], "phase": "both"}, **more}


class Guards(ScriptedServer):
    """A server with these interceptors. `answers`: by name, what each says, or a failure to raise."""

    def __init__(self, revision: str, entries: list[Json], answers: dict[str, Any]) -> None:
        super().__init__(revision, tools=[])
        self.entries, self.answers = entries, answers
        self.invoked: list[Json] = []

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        if method == "interceptors/list":
            return {"interceptors": self.entries, "resultType": "complete"}
        if method != "interceptor/invoke":
            return await super().handle(method, params, message)
        self.invoked.append(params)
        answer = self.answers[params["name"]]
        if isinstance(answer, Exception):
            raise answer
        result: Json = answer(params) if callable(answer) else answer
        return {**result, "resultType": "complete"}


def marking(word: str) -> Any:
    """Return a mutator that adds a word to the path of a call, or to the text of its answer."""

    def mutate(params: Json) -> Json:
        payload = params["payload"]
        if params["phase"] == "request":
            payload["params"]["arguments"]["path"] += word
        else:
            payload["content"][0]["text"] += word
        return {"modified": True, "payload": payload}

    return mutate


@pytest.mark.parametrize("up", ERAS)
async def test_mutators_change_both_ways_by_priority(up, autojump_clock):
    entries = [
        entry("late", "mutation", priorityHint={"request": 5}),
        entry("early", "mutation", priorityHint=-5),
        entry("other", "mutation", hook={"events": ["prompts/get"], "phase": "both"}),
        entry("watcher", "mutation", mode="audit"),
    ]
    answers = {"late": marking(" late"), "early": marking(" early"), "watcher": marking(" watched")}
    guards, server = Guards(up, entries, answers), disk()
    async with open_world({"x": server, "guards": guards}, **SERVER) as world:
        result = await world.client().request("tools/call", DELETE)
        assert calls_at(server)[0]["arguments"] == {"path": "/tmp early late"}
        assert result["content"][0]["text"] == '{"path": "/tmp early late"} early late'
        assert guards.invoked[0]["event"] == "tools/call"
        assert guards.invoked[0]["context"]["principal"] == {"type": "anonymous"}


REFUSALS: dict[str, Json] = {
    "with reasons": {
        "valid": False,
        "severity": "error",
        "messages": [{"message": "no path there", "severity": "error"}],
    },
    "without": {"valid": False},
}


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_validator_refuses_after_all_changes(refusal, autojump_clock):
    entries = [entry("guard", "validation"), entry("mark", "mutation")]
    guards = Guards(ERAS[1], entries, {"guard": REFUSALS[refusal], "mark": marking("!")})
    server = disk()
    async with open_world({"x": server, "guards": guards}, **SERVER) as world:
        error = await world.client().refusal("tools/call", DELETE)
        assert error["code"] == REFUSED
        assert error["message"].endswith("no path there" if refusal == "with reasons" else "not valid")
        assert guards.invoked[-1]["payload"]["params"]["arguments"] == {"path": "/tmp!"}
        assert not calls_at(server)


WARNING = {"valid": False, "severity": "warn"}
FAILURE = RpcFailure(-32603, "Interceptor execution failed")
HARMLESS: dict[str, tuple[Json, Any]] = {
    "a warning": (entry("guard", "validation"), WARNING),
    "an audit": (entry("guard", "validation", mode="audit"), {"valid": False}),
    "a failure that may be": (entry("guard", "validation", failOpen=True), FAILURE),
    "of another phase": (
        entry("guard", "validation", hook={"events": ["*"], "phase": "response"}),
        lambda params: {"valid": params["phase"] == "response"},
    ),
    "an unknown type": (entry("guard", "observability"), {}),
}


@pytest.mark.parametrize("case", HARMLESS)
async def test_what_must_not_block_lets_the_call_pass(case, autojump_clock):
    listed, answer = HARMLESS[case]
    guards = Guards(ERAS[1], [listed], {"guard": answer})
    async with open_world({"x": disk(), "guards": guards}, **SERVER) as world:
        result = await world.client().request("tools/call", DELETE)
        assert json.loads(result["content"][0]["text"]) == {"path": "/tmp"}


BROKEN: dict[str, Any] = {
    "mutation fails": FAILURE,
    "mutation without payload": {"modified": True},
    "mutation or not": {"payload": {}},
    "validation of nothing": {},
    "validation in words": {"valid": "false"},
    "validation of an unknown severity": {"valid": False, "severity": "Error"},
    "mutation to another tool": lambda params: {
        "modified": True,
        "payload": {"method": "tools/call", "params": params["payload"]["params"] | {"name": "x__look"}},
    },
}


@pytest.mark.parametrize("case", BROKEN)
async def test_a_broken_interceptor_refuses_the_call(case, autojump_clock):
    kind = case.partition(" ")[0]
    guards, server = Guards(ERAS[1], [entry("guard", kind)], {"guard": BROKEN[case]}), disk()
    async with open_world({"x": server, "guards": guards}, **SERVER) as world:
        error = await world.client().refusal("tools/call", DELETE)
        assert error["code"] == REFUSED and "guards failed" in error["message"]
        assert not calls_at(server)


async def test_a_server_that_is_down_or_lists_nonsense_refuses_the_call(autojump_clock):
    server = disk()
    many = [entry(f"guard{number}", "validation") for number in range(51)]
    valid = {f"guard{number}": {"valid": True} for number in range(51)}
    for guards in (None, Guards(ERAS[1], {}, {}), Guards(ERAS[1], many, valid)):  # type: ignore[arg-type]  # no list
        async with open_world({"x": server, "guards": guards}, **SERVER) as world:
            assert (await world.client().refusal("tools/call", DELETE))["code"] == REFUSED
    assert not calls_at(server)
