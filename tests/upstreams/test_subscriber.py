"""The acts of an upstream on a subscription, and that it harms no other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from tests.peers.revision import ERAS, LEGACY, MODERN, Json
from tests.peers.server import RpcFailure
from tests.peers.subscribable import SUBSCRIPTION_ID, Subscribable
from tests.runtime.test_subscriptions import client_of, expect_update, quiet, silent, subscribe, unsubscribe
from tests.runtime.world import World, open_world

AT_ONCE = 1.0  # seconds of virtual time: less than any deadline

Handle = Callable[[Subscribable, str, Json, Json], Awaitable[Json | None]]


class Moody(Subscribable):
    """Subscribable, but `mood` may answer first; it gives None for what it has no opinion about."""

    def __init__(self, revision: str, mood: Handle, uris: list[str] | None = None) -> None:
        super().__init__(revision, uris=uris)
        self.mood = mood

    async def handle(self, method: str, params: Json, message: Json) -> Json:
        answer = await self.mood(self, method, params, message)
        return answer if answer is not None else await super().handle(method, params, message)


def uris_in(params: Json) -> list[str]:
    """Return the URIs in the params of a subscribe or a listen."""
    if "uri" in params:
        return [params["uri"]]
    return params.get("notifications", {}).get("resourceSubscriptions", [])


async def agree(_server: Subscribable, _method: str, _params: Json, _message: Json) -> None:
    """Leave everything to the server."""


async def refuse_memo_2(_server: Subscribable, method: str, params: Json, _message: Json) -> None:
    """Refuse everything in which `memo:2` is."""
    if "subscri" in method and "memo:2" in uris_in(params):
        raise RpcFailure(-32602, "Not this one")


async def ignore_memo_2(_server: Subscribable, method: str, params: Json, _message: Json) -> None:
    """Never answer when `memo:2` is asked for."""
    if "subscri" in method and "memo:2" in uris_in(params):
        await trio.sleep_forever()


async def fail_to_subscribe(world: World, down: str, uri: str) -> None:
    """Have a new client ask for what it does not get."""
    client = await client_of(world, down)
    if down == MODERN:
        await client.start("subscriptions/listen", {"notifications": {"resourceSubscriptions": [uri]}})
        acknowledged = await client.receive_method("notifications/subscriptions/acknowledged")
        assert acknowledged["params"]["notifications"] == {}
    else:
        with pytest.raises(RpcFailure):
            await client.request("resources/subscribe", {"uri": uri})


@pytest.mark.parametrize("mood", [refuse_memo_2, ignore_memo_2])
@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", ERAS)
async def test_what_is_refused_to_one_takes_nothing_from_others(up, down, mood, autojump_clock):
    server = Moody(up, mood)
    async with open_world({"x": server, "y": Subscribable(MODERN)}) as world:
        happy = await client_of(world, down)
        listen = await subscribe(happy, ["x+memo:1"])
        await fail_to_subscribe(world, down, "x+memo:2")
        await server.update("memo:1")
        await expect_update(happy, "x+memo:1", listen)
        await quiet()
        await silent(happy)
        assert server.subscribed == {"memo:1"}


@pytest.mark.parametrize("up", ERAS)
@pytest.mark.parametrize("down", ERAS)
async def test_everybody_who_is_refused_hears_it_at_once(up, down, autojump_clock):
    async with open_world({"x": Moody(up, refuse_memo_2), "y": Subscribable(MODERN)}) as world:
        clients = [await client_of(world, down) for _ in range(5)]
        for client in clients:
            if down == MODERN:
                wish = {"resourceSubscriptions": ["x+memo:2"]}
                await client.start("subscriptions/listen", {"notifications": wish})
            else:
                await client.start("resources/subscribe", {"uri": "x+memo:2"})
        with trio.fail_after(AT_ONCE):
            answers = [await client.receive() for client in clients]
        assert len({str(answer.get("error")) for answer in answers}) == 1
        await quiet()
        assert repr(world.mux.upstreams["x"].subscriber) == "<Subscriber 0 asked, 0 refused>"


class Steps(trio.abc.Instrument):
    """Counts the steps of all tasks."""

    count = 0

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        self.count += 1


async def count_steps(clients: int) -> int:
    """Return how many steps it takes when so many clients subscribe to a resource each, at once."""
    uris, steps = [f"memo:{number}" for number in range(clients)], Steps()
    async with open_world({"x": Subscribable(LEGACY, uris=uris)}) as world:
        subscribing = [(await client_of(world, LEGACY), uri) for uri in uris]
        trio.lowlevel.add_instrument(steps)
        async with trio.open_nursery() as nursery:
            for client, uri in subscribing:
                nursery.start_soon(client.request, "resources/subscribe", {"uri": uri})
        trio.lowlevel.remove_instrument(steps)
    return steps.count


async def test_an_answer_wakes_no_client_that_waits_for_another(autojump_clock):
    assert await count_steps(200) < 2.5 * await count_steps(100)


async def test_the_more_uris_a_listen_has_the_more_changes_it_gathers(autojump_clock):
    seconds, uris = [], [f"memo:{number}" for number in range(4010)]
    async with open_world({"x": Subscribable(MODERN, uris=uris), "y": Subscribable(MODERN)}) as world:
        client = await client_of(world, LEGACY)
        for many in (uris[10:11], uris[11:]):
            await subscribe(await client_of(world, MODERN), [f"x+{uri}" for uri in many])
            start = trio.current_time()
            for uri in uris[:10]:
                await subscribe(client, [f"x+{uri}"])
            seconds.append(trio.current_time() - start)
            await unsubscribe(client, [f"x+{uri}" for uri in uris[:10]], None)
    assert 4 < seconds[1] / seconds[0] < 6


async def test_a_subscribe_that_hangs_delays_no_other(autojump_clock):
    async with open_world({"x": Moody(LEGACY, ignore_memo_2), "y": Subscribable(MODERN)}) as world:
        stuck, fine = await client_of(world, LEGACY), await client_of(world, LEGACY)
        await stuck.start("resources/subscribe", {"uri": "x+memo:2"})
        await trio.sleep(AT_ONCE)
        with trio.fail_after(AT_ONCE):
            await subscribe(fine, ["x+memo:1"])
            await unsubscribe(fine, ["x+memo:1"], None)
        answer = await stuck.receive()
        assert answer["error"]["code"] == -31002


async def test_an_unsubscribe_that_waits_its_turn_does_not_undo_a_later_wish(autojump_clock):
    """More URIs than are asked about at once, wanted again while they wait to be given up."""
    uris = [f"memo:{number}" for number in range(100)]

    async def be_slow(_server: Subscribable, method: str, _params: Json, _message: Json) -> None:
        if method == "resources/unsubscribe":
            await trio.sleep(1)

    server = Moody(LEGACY, be_slow, uris)
    async with open_world({"x": server, "y": Subscribable(MODERN)}) as world:
        first, second = await client_of(world, MODERN), await client_of(world, MODERN)
        listen = await subscribe(first, [f"x+{uri}" for uri in uris])
        await unsubscribe(first, [], listen)
        await trio.sleep(0.5)  # the first few are being given up, the others wait
        begun = {m["params"]["uri"] for m in server.seen if m["method"] == "resources/unsubscribe"}
        waiting = min(set(uris) - begun)
        await subscribe(second, [f"x+{waiting}"])
        await quiet()
        assert server.subscribed == {waiting}
        assert server.subscribes[waiting] == 1


@pytest.mark.parametrize("end_by", ["result", "error", "notifications/cancelled"])
@pytest.mark.parametrize("down", ERAS)
async def test_a_listen_that_the_server_ends_is_opened_again_and_caught_up(down, end_by, autojump_clock):
    ending = trio.Event()

    async def end(server: Subscribable, method: str, params: Json, message: Json) -> Json | None:
        if method != "subscriptions/listen" or ending.is_set():
            return None
        honoured = {"_meta": {SUBSCRIPTION_ID: message["id"]}, "notifications": params["notifications"]}
        await server.send({"method": "notifications/subscriptions/acknowledged", "params": honoured})
        await ending.wait()
        if end_by == "error":
            raise RpcFailure(-32603, "Crashed")
        if end_by == "notifications/cancelled":
            await server.send({"method": end_by, "params": {"requestId": message["id"]}})
            await trio.sleep_forever()
        return {"resultType": "complete", "_meta": {SUBSCRIPTION_ID: message["id"]}}

    server = Moody(MODERN, end)
    async with open_world({"x": server, "y": Subscribable(MODERN)}) as world:
        client = await client_of(world, down)
        listen = await subscribe(client, ["x+memo:1", "x+memo:2"])
        ending.set()
        for uri in ("x+memo:1", "x+memo:2"):
            await expect_update(client, uri, listen)
        assert server.subscribed == {"memo:1", "memo:2"}
        methods = {message["method"] for message in await client.drain()}
        # A change of a list may have passed, too; the modern client has not asked for these.
        lists = {f"notifications/{kind}/list_changed" for kind in ("resources", "tools")}
        assert methods == (lists if down == LEGACY else set())


async def test_list_changes_are_reported_after_a_refused_listen(autojump_clock):
    moods = ["break off", "refuse"]

    async def be_moody(server: Subscribable, method: str, params: Json, message: Json) -> Json | None:
        if method != "subscriptions/listen" or not moods:
            return None
        mood = moods.pop(0)
        if mood == "refuse":
            raise RpcFailure(-32603, "Not now")
        honoured = {"_meta": {SUBSCRIPTION_ID: message["id"]}, "notifications": params["notifications"]}
        await server.send({"method": "notifications/subscriptions/acknowledged", "params": honoured})
        await trio.sleep(1)
        raise RpcFailure(-32603, "Crashed")

    server = Moody(MODERN, be_moody)
    async with open_world({"x": server, "y": Subscribable(MODERN)}) as world:
        client = await client_of(world, LEGACY)
        assert moods == []  # it is drained
        methods = [message["method"] for _ in range(4) for message in await client.drain()]
        assert sorted(methods) == [f"notifications/{kind}/list_changed" for kind in ("resources", "tools")]


async def test_a_subscription_granted_again_is_caught_up(autojump_clock):
    server = Subscribable(MODERN)
    async with open_world({"x": server, "y": Subscribable(MODERN)}) as world:
        steady, other = await client_of(world, LEGACY), await client_of(world, LEGACY)
        await subscribe(steady, ["x+memo:1"])
        server.honours = {"memo:2", "memo:3"}
        await subscribe(other, ["x+memo:2"])
        await silent(steady)
        server.honours = None
        await subscribe(other, ["x+memo:3"])
        await expect_update(steady, "x+memo:1", None)
        await quiet()
        await silent(steady)


@pytest.mark.parametrize("up", ERAS)
async def test_subscribing_again_to_what_one_has_cannot_take_it_away(up, autojump_clock):
    server = Moody(up, agree)
    async with open_world({"x": server, "y": Subscribable(MODERN)}) as world:
        client = await client_of(world, LEGACY)
        await subscribe(client, ["x+memo:2"])
        server.mood = refuse_memo_2
        await world.kill("x")
        await client.drain()
        with pytest.raises(RpcFailure):
            await client.request("resources/subscribe", {"uri": "x+memo:2"})
        server.mood = agree
        await world.kill("x")
        await expect_update(client, "x+memo:2", None)


@pytest.mark.parametrize("mood", [refuse_memo_2, ignore_memo_2])
@pytest.mark.parametrize("up", ERAS)
async def test_what_was_agreed_once_is_asked_for_until_it_is_agreed_again(up, mood, autojump_clock):
    server = Moody(up, agree)
    async with open_world({"x": server, "y": Subscribable(MODERN)}) as world:
        client = await client_of(world, LEGACY)
        await subscribe(client, ["x+memo:2"])
        server.mood = mood
        await world.kill("x")
        await client.drain()
        await trio.sleep(300)
        await silent(client)
        assert server.subscribed == set()
        assert len([m for m in server.seen if "memo:2" in uris_in(m.get("params", {}))]) < 20
        server.mood = agree
        await expect_update(client, "x+memo:2", None)
        assert server.subscribed == {"memo:2"}
