"""What can be done over the admin listener, by whom, and what is answered."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
import trio
import trio.lowlevel

from mcpmux.errors import ConfigError
from mcpmux.traffic.admin.api import is_ready
from tests.peers.server import ScriptedServer
from tests.runtime.world import upstream
from tests.traffic.admin_world import Listening, Traffic, ask, listening, post


def two() -> dict[str, ScriptedServer]:
    return {"docs": ScriptedServer(tools=[]), "more": ScriptedServer(tools=[])}


async def states(here: Listening) -> dict[str, str]:
    _, _, body = await ask(here, "/api/upstreams", token=here.token)
    return {upstream["name"]: upstream["state"] for upstream in json.loads(body)["upstreams"]}


async def ready(here: Listening) -> None:
    for server in here.world.mux.upstreams.values():
        await server.supervision.settled()


async def test_an_upstream_is_disabled_enabled_drained_and_restarted():
    async with listening(servers=two()) as here:
        await ready(here)
        assert (await post(here, "/api/upstreams/more/disable"))[0] == 200
        assert await states(here) == {"docs": "ready", "more": "disabled"}
        assert (await post(here, "/api/upstreams/more/enable"))[0] == 200
        await ready(here)
        assert await states(here) == {"docs": "ready", "more": "ready"}
        assert (await post(here, "/api/upstreams/docs/drain"))[0] == 200
        assert await states(here) == {"docs": "drained", "more": "ready"}
        status, _, body = await post(here, "/api/upstreams/docs/restart")
        assert (status, json.loads(body)) == (200, {"upstream": "docs", "action": "restart"})
        await ready(here)
        assert await states(here) == {"docs": "ready", "more": "ready"}
        assert here.world.connects == {"docs": 2, "more": 2}


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("/api/upstreams/dosc/drain", 404, "did you mean docs?"),
        ("/api/upstreams/docs/destroy", 404, "none of enable"),
        ("/api/upstreams/docs/%0a", 404, "none of enable"),
        ("/api/upstreams/more/drain", 409, "more is disabled"),
        ("/api/upstreams/docs/disable", 409, "at least one"),
    ],
)
async def test_what_cannot_be_done_is_told_with_its_reason(path, status, word):
    async with listening(servers=two()) as here:
        await post(here, "/api/upstreams/more/disable")
        code, _, body = await post(here, path)
        assert code == status
        assert word in json.loads(body)["error"]


async def test_a_reload_reports_each_mistake_of_the_file():
    class File:
        says: Any = None

        def load(self) -> Any:
            if isinstance(self.says, Exception):
                raise self.says
            return self.says

    file = File()
    async with listening(servers=two(), file=file) as here:
        file.says = ConfigError(["a: one", "b: two"])
        status, _, body = await post(here, "/api/reload")
        assert (status, json.loads(body)["problems"]) == (422, ["a: one", "b: two"])
        file.says = attrs.evolve(here.world.mux.config, upstreams=(upstream("docs"),))
        status, _, body = await post(here, "/api/reload")
        assert (status, json.loads(body)) == (200, {"changed": {"removed": ["more"]}, "pending": []})


async def cookie_of(here: Listening) -> str:
    _, fields, _ = await ask(here, f"/?token={here.token}")
    return fields["set-cookie"].partition(";")[0]


async def test_a_page_needs_the_key_besides_its_cookie():
    async with listening(servers=two()) as here:
        cookie = await cookie_of(here)
        status, _, _ = await post(here, "/api/upstreams/docs/drain", cookie=cookie)
        assert status == 403
        _, _, body = await ask(here, "/api/control", cookie=cookie)
        key = json.loads(body)["key"]
        assert (await post(here, "/api/upstreams/docs/drain", cookie=cookie, x_mcpmux_key=key[:-1]))[0] == 403
        assert (await states(here))["docs"] != "drained"
        assert (await post(here, "/api/upstreams/docs/drain", cookie=cookie, x_mcpmux_key=key))[0] == 200
        assert (await states(here))["docs"] == "drained"


WISHES = {
    "/api/upstreams/docs/drain": b"{}",
    "/api/reload": b"{}",
    "/api/calls": b'{"method": "tools/list"}',
    "/api/exchanges/1": b'{"marked": true}',
    "/api/mocks": b"{}",
    "/api/mocks/1/stop": b"{}",
}
"""All that can be wished, with what may stand in it."""


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer wrong"},
        {"authorization": ""},
        {"origin": "http://evil.example"},
        {"sec_fetch_site": "cross-site"},
        {"host": "evil.example"},
        {"content_type": "text/plain"},
        {"content_type": "application/x-www-form-urlencoded"},
    ],
)
async def test_a_strangers_wish_changes_nothing(headers):
    traffic = Traffic()
    traffic.exchange()
    async with listening(traffic, servers=two(), tap=True) as here:
        await ready(here)
        for path, body in WISHES.items():
            assert (await post(here, path, body, **headers))[0] in (400, 401, 403), path
        assert (await states(here))["docs"] == "ready"
        assert (here.traffic.ring.last, await ask_json(here, "/api/mocks")) == (1, {"mocks": []})
        assert not (await ask_json(here, "/api/exchanges"))["rows"][0].get("marked")


async def ask_json(here: Listening, path: str) -> Any:
    return json.loads((await ask(here, path, token=here.token))[2])


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'{"force": true}', b"{"])
async def test_a_body_with_something_else_in_it_is_refused(body):
    async with listening(servers=two()) as here:
        status, _, answer = await post(here, "/api/reload", body)
        assert status == 400
        assert b'{"error":"' in answer


async def test_a_change_is_not_made_by_looking():
    async with listening(servers=two()) as here:
        status, fields, _ = await ask(here, "/api/upstreams/docs/drain", token=here.token)
        assert (status, fields["allow"]) == (405, "POST")


async def test_every_upstream_says_since_when_and_how_often():
    async with listening(servers=two()) as here:
        await ready(here)
        _, _, body = await ask(here, "/api/upstreams", token=here.token)
        docs = json.loads(body)["upstreams"][0]
        assert docs["since"].endswith("Z")
        assert (docs["restarts"], docs["in_flight"], docs["last_error"]) == (0, 0, None)
        await here.world.kill("docs")
        with trio.fail_after(60):
            while True:
                await trio.sleep(0.01)
                if here.world.mux.upstreams["docs"].status.connects == 2:
                    break
        _, _, body = await ask(here, "/api/upstreams", token=here.token)
        assert json.loads(body)["upstreams"][0]["restarts"] == 1


@pytest.mark.parametrize(
    ("states", "listening", "one", "every"),
    [
        (["ready", "ready"], True, True, True),
        (["ready", "down"], True, True, False),
        (["ready", "connecting"], True, False, False),
        (["down", "crash-loop"], True, False, False),
        (["drained", "ready"], True, True, False),
    ],
)
def test_ready_is_as_strict_as_configured(states, listening, one, every):
    answers = [is_ready(when, states) for when in ("listening", "any", "all")]
    assert answers == [listening, one, every]


async def test_nobody_is_sent_here_while_mcpmux_stops():
    async with listening(servers=two(), ready="listening") as here:
        assert (await ask(here, "/health/ready"))[0] == 200
        async with await trio.open_tcp_stream("127.0.0.1", here.port) as stream:
            await stream.send_all(b"GET /health/ready HTTP/1.1\r\nHost: x\r\n")
            await trio.lowlevel.checkpoint()
            here.stopping.set()
            await stream.send_all(b"\r\n")
            with trio.fail_after(60):
                assert b" 503 " in await stream.receive_some()
