from __future__ import annotations

import json
import re
import ssl
from itertools import product

import pytest
import trio

from mcpmux.config.expansion import Secret
from mcpmux.config.listener import Admin, ServerTls
from mcpmux.config.report import InvalidValue
from mcpmux.errors import ConfigError, TransportError
from mcpmux.runtime.client_outbox import ClientOutbox
from mcpmux.traffic.admin import ring
from mcpmux.traffic.admin.api import BYTES_AT_ONCE
from mcpmux.traffic.admin.route import BadRequest, Route, whole_number
from mcpmux.traffic.reading.histogram import ERROR
from tests.peers.server import ScriptedServer
from tests.traffic.admin_world import (
    SECRET,
    WAIT_SECONDS,
    Traffic,
    ask,
    connection,
    events,
    get,
    hear,
    listening,
)
from tests.traffic.test_prometheus import parse

PAGES = (
    "/",
    "/main.js",
    "/inspector.css",
    "/api/exchanges",
    "/api/exchanges/1",
    "/api/exchanges/stream",
    "/api/traffic/stream",
    "/api/filter",
    "/api/hosts",
    "/api/capture",
    "/api/har",
    "/api/upstreams",
    "/upstreams",
    "/api/subscriptions",
    "/api/replicas",
    "/api/stats",
    "/api/control",
    "/api/calls",
    "/api/mocks",
    "/api/views",
    "/metrics",
    "/nowhere",
)


async def test_without_the_token_nobody_sees_anything(subtests: pytest.Subtests):
    async with listening() as here:
        for path in PAGES:
            with subtests.test(path):
                for headers in (
                    {},
                    {"authorization": "Bearer wrong"},
                    {"authorization": f"Basic {here.token}"},
                    {"authorization": "Bearer \xff"},
                    {"cookie": f"mcpmux-admin-{here.port}={here.token}"},
                    {"cookie": f"mcpmux-admin-{here.port}="},
                ):
                    status, _, body = await ask(here, path, **headers)
                    assert status == 401
                    assert b"admin token" in body
                assert (await ask(here, f"{path}?token=wrong"))[0] == 401


async def test_the_token_is_valid_as_bearer_and_in_the_pages_url_only():
    async with listening() as here:
        assert (await ask(here, "/api/upstreams", token=here.token))[0] == 200
        assert (await ask(here, f"/api/upstreams?token={here.token}"))[0] == 401


async def test_the_announced_url_is_exchanged_for_a_cookie():
    async with listening() as here:
        status, fields, body = await ask(here, here.announced.removeprefix(here.url))
        assert (status, fields["location"], body) == (303, "/", b"")
        cookie, *marks = fields["set-cookie"].split("; ")
        assert set(marks) == {"Path=/", "HttpOnly", "SameSite=Strict"}
        assert here.token not in cookie
        status, fields, body = await ask(here, "/", cookie=f"other=1; {cookie}")
        assert (status, fields["content-type"]) == (200, "text/html; charset=utf-8")
        assert (await ask(here, "/api/exchanges", cookie=cookie))[0] == 200


async def test_a_cookie_of_another_run_opens_nothing():
    token = "a-token-of-the-users-own"
    async with listening(token=Secret(token)) as here:
        assert here.announced == f"{here.url}/"  # and the user's token is not shown
        _, fields, _ = await ask(here, f"/?token={token}")
        cookie = fields["set-cookie"].partition(";")[0].partition("=")[2]
    async with listening(token=Secret(token)) as there:
        assert (await ask(there, "/", cookie=f"mcpmux-admin-{there.port}={cookie}"))[0] == 401
        assert (await ask(there, "/", token=token))[0] == 200


FOREIGN = [
    ({"host": "evil.example.com"}, b"Host"),
    ({"host": "evil.example.com:80", "origin": "http://evil.example.com:80"}, b"Host"),
    ({"origin": "http://evil.example.com"}, b"Origin"),
    ({"origin": "null"}, b"Origin"),
    ({"origin": "http://127.0.0.1:1"}, b"Origin"),  # another port of this machine is another site
    ({"sec_fetch_site": "same-site", "sec_fetch_mode": "cors"}, b"another site"),
    (
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": "script"},
        b"another site",
    ),
    (
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"},
        b"another site",
    ),
]


@pytest.mark.parametrize(("headers", "word"), FOREIGN)
async def test_pages_of_other_sites_are_refused_even_with_the_token(headers, word):
    async with listening() as here:
        status, fields, body = await ask(here, "/api/exchanges", token=here.token, **headers)
        assert status == 403
        assert word in body
        assert not any(name.startswith("access-control") for name in fields)
        assert b"allowed_origins" not in body  # which is no setting of this listener


async def test_a_followed_link_and_the_pages_own_requests_are_served():
    async with listening() as here:
        link = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
        assert (await ask(here, "/", token=here.token, **link))[0] == 200
        own = {"origin": here.url, "sec_fetch_site": "same-origin", "sec_fetch_mode": "cors"}
        assert (await ask(here, "/api/exchanges", token=here.token, **own))[0] == 200


async def test_every_answer_forbids_what_the_page_does_not_need():
    async with listening() as here:
        answered = [path for path in PAGES if not path.endswith("/stream")]
        for path, token in product([*answered, "/api/exchanges?filter=nonsense~~~~("], (here.token, None)):
            _, fields, _ = await ask(here, path, token=token)
            policy = fields["content-security-policy"]
            assert "default-src 'self'; img-src 'self' data:; media-src data:; frame-src data:;" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert "require-trusted-types-for 'script'" in policy
            assert fields["x-content-type-options"] == "nosniff"
            assert fields["referrer-policy"] == "no-referrer"
            assert "access-control-allow-origin" not in fields


async def test_files_are_not_sent_twice():
    async with listening() as here:
        status, fields, body = await ask(here, "/main.js", token=here.token)
        assert (status, fields["content-type"]) == (200, "text/javascript; charset=utf-8")
        assert body
        again = await ask(here, "/main.js", token=here.token, if_none_match=fields["etag"])
        assert (again[0], again[2]) == (304, b"")
        assert (await ask(here, "/main.js", method="HEAD", token=here.token))[2] == b""
        assert (await ask(here, "/main.js", method="POST", token=here.token, content_length="0"))[0] == 405
        assert (await ask(here, "/../admin.py", token=here.token))[0] == 404
        assert (await ask(here, "/screenshot.png", token=here.token))[0] == 404


async def test_the_list_is_paged_and_filtered():
    traffic = Traffic()
    for number in range(30):
        traffic.exchange(upstream="search" if number % 3 == 0 else "docs")
    async with listening(traffic) as here:
        first = await get(here, "/api/exchanges?limit=20")
        assert [row["row"] for row in first["rows"]] == list(range(30, 10, -1))
        assert (first["first"], first["last"], first["before"]) == (1, 30, 11)
        rest = await get(here, f"/api/exchanges?limit=20&before={first['before']}")
        assert [row["row"] for row in rest["rows"]] == list(range(10, 0, -1))
        assert rest["before"] is None
        page = await get(here, "/api/exchanges?filter=upstream%3Dsearch")
        assert [row["row"] for row in page["rows"]] == [28, 25, 22, 19, 16, 13, 10, 7, 4, 1]
        assert page["before"] is None


BAD = [
    ("/api/exchanges?limit=0", "limit"),
    ("/api/exchanges?limit=9999", "limit"),
    ("/api/exchanges?before=-1", "before"),
    ("/api/exchanges?filter=metod%3Dx", "method"),
    ("/api/exchanges/stream?filter=%3D", "filter"),
    ("/api/exchanges/nothing", "row"),
    ("/api/stats?window=0", "window"),
    ("/api/stats?slots=100000", "slots"),
]


@pytest.mark.parametrize(("path", "word"), BAD)
async def test_a_question_that_makes_no_sense_is_told_why(path, word):
    async with listening() as here:
        status, _, body = await ask(here, path, token=here.token)
        assert status == 400
        assert word in json.loads(body)["error"]


async def test_an_exchange_has_its_messages_on_both_legs_redacted():
    traffic = Traffic()
    params = {"name": "docs__find", "arguments": {"password": SECRET}}
    traffic.exchange(params=params, inside={"name": "find", "arguments": {"password": SECRET}})
    async with listening(traffic) as here:
        shown = await get(here, "/api/exchanges/1")
        assert SECRET not in json.dumps(shown)
        request, passed_on, *_ = [message["record"] for message in shown["messages"]]
        assert (request["leg"], request["message"]["params"]["name"]) == ("client", "docs__find")
        assert (passed_on["leg"], passed_on["message"]["params"]["name"]) == ("upstream", "find")
        assert request["redacted"] == passed_on["redacted"] == 1
        assert shown["row"]["status"] == "ok"
        message = await get(here, f"/api/exchanges/1/{passed_on['seq']}")
        assert message["record"] == passed_on
        status, _, body = await ask(here, "/api/exchanges/2", token=here.token)
        assert (status, list(json.loads(body))) == (404, ["error"])


async def test_the_stream_of_rows_tells_what_changes():
    traffic = Traffic()
    traffic.exchange()
    async with listening(traffic) as here, events(here, "/api/exchanges/stream") as receive:
        kind, began = await hear(receive)
        assert (kind, began["rows"], began["last"]) == ("rows", [], 1)
        traffic.exchange()
        _, update = await hear(receive)
        assert [(row["row"], row["status"]) for row in update["rows"]] == [(2, "ok")]
        request, _ = traffic.begin("tools/list", {})
        assert (await hear(receive))[1]["rows"][0]["status"] == "open"
        traffic.message_passed(traffic.client, "out", {"id": request, "result": {"tools": []}})
        _, update = await hear(receive)
        assert [(row["row"], row["status"]) for row in update["rows"]] == [(3, "ok")]


@pytest.mark.parametrize("filtering", ["", "filter=upstream%3Ddocs&"])
async def test_the_stream_of_rows_goes_on_where_the_list_ended(filtering: str):
    traffic = Traffic()
    traffic.exchange()
    async with listening(traffic) as here:
        _, _, body = await ask(here, f"/api/exchanges?{filtering}", token=here.token)
        listed = json.loads(body)
        traffic.exchange()  # after the list, before the stream
        async with events(here, f"/api/exchanges/stream?{filtering}since={listed['messages']}") as receive:
            await hear(receive)
            _, update = await hear(receive)
    assert [[row["row"] for row in part["rows"]] for part in (listed, update)] == [[1], [2]]


async def test_a_stream_of_rows_of_another_run_begins_with_this_one():
    traffic = Traffic()
    async with listening(traffic) as here, events(here, "/api/exchanges/stream?since=1000000") as receive:
        await hear(receive)
        traffic.exchange()
        assert [row["row"] for row in (await hear(receive))[1]["rows"]] == [1]


async def test_the_stream_of_rows_says_which_fit_the_filter_no_more():
    traffic = Traffic()
    async with (
        listening(traffic) as here,
        events(here, "/api/exchanges/stream?filter=status%3Dopen") as receive,
    ):
        await hear(receive)
        request, _ = traffic.begin("tools/list", {})
        assert [row["row"] for row in (await hear(receive))[1]["rows"]] == [1]
        traffic.message_passed(traffic.client, "out", {"id": request, "result": {"tools": []}})
        _, update = await hear(receive)
        assert (update["rows"], update["gone"]) == ([], [1])


async def test_a_flood_is_told_in_part_and_counted():
    traffic = Traffic()
    async with listening(traffic) as here, events(here, "/api/exchanges/stream") as receive:
        await hear(receive)
        for _ in range(1000):
            traffic.exchange()
        _, update = await hear(receive)
        assert (len(update["rows"]), update["skipped"], update["last"]) == (200, 800, 1000)
        assert update["rows"][-1]["row"] == 1000


async def test_the_stream_of_traffic_has_every_message_as_captures_have_it():
    traffic = Traffic()
    async with (
        listening(traffic) as here,
        events(here, "/api/traffic/stream?filter=leg%3Dupstream") as receive,
    ):
        traffic.exchange(inside={"name": "find", "token": SECRET})
        records = [(await hear(receive))[1] for _ in range(2)]
        assert [(record["seq"], record["direction"], record["kind"]) for record in records] == [
            (2, "out", "request"),
            (3, "in", "result"),
        ]
        assert records[0]["v"] == 1
        assert SECRET not in json.dumps(records)


@pytest.mark.interpreted
async def test_a_reader_that_reads_nothing_misses_messages_and_hears_how_many(monkeypatch):
    monkeypatch.setattr(ring, "RECENT", 600)
    traffic = Traffic()
    async with (
        listening(traffic) as here,
        connection(here, "/api/traffic/stream", token=here.token) as stream,
    ):
        await stream.receive_some()
        for _ in range(150):  # 12 MiB: more than all the buffers between us take
            traffic.exchange(answer={"result": {"text": "x" * 40_000}})
        await trio.sleep(0.5)
        for _ in range(400):
            traffic.exchange()
        data = b""
        with trio.fail_after(4 * WAIT_SECONDS):
            while not re.search(rb'event: missed\ndata: \{"missed":[1-9]\d*\}\n', data):
                data = data[-100:] + await stream.receive_some()


@pytest.mark.parametrize("own", ["", "?own=true"])
async def test_what_a_slow_reader_has_kept_for_it_is_bounded(own):
    """One chunk at a time is written, and nothing else is read from the ring before it has gone."""
    traffic, length = Traffic(), 30_000
    async with (
        listening(traffic) as here,
        connection(here, f"/api/traffic/stream{own}", token=here.token) as stream,
    ):
        data = bytes(await stream.receive_some())
        for _ in range(100):  # two messages of that length each
            traffic.exchange(answer={"result": {"text": "x" * length}})
        with trio.fail_after(WAIT_SECONDS):
            while data.count(b"event: record") < 400:
                data += await stream.receive_some()
        here.stopping.set()
        with trio.fail_after(WAIT_SECONDS):
            async for part in stream:
                data += part
    sizes = []
    rest = data.partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        sizes.append(int(size, 16))
        rest = rest[sizes[-1] + 2 :]
    assert sum(sizes) > 200 * length
    assert max(sizes) < BYTES_AT_ONCE + 2 * length


@pytest.mark.parametrize(
    "framing", [{"content_length": str(64 * 2**10 + 1)}, {"transfer_encoding": "chunked"}]
)
@pytest.mark.parametrize("knows", [False, True])
async def test_a_large_body_is_not_read(framing, knows):
    async with listening() as here:
        token = here.token if knows else None
        async with connection(here, "/api/reload", method="POST", token=token, **framing) as stream:
            if "transfer_encoding" in framing:
                await stream.send_all(b"10000\r\n" + bytes(2**16) + b"\r\n1\r\n0\r\n")
            with trio.fail_after(WAIT_SECONDS):
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("path", ["/api/exchanges/stream", "/api/traffic/stream"])
async def test_what_passes_just_before_mcpmux_stops_is_told(path):
    traffic = Traffic()
    async with listening(traffic) as here, connection(here, path, token=here.token) as stream:
        await stream.receive_some()
        traffic.exchange()
        here.stopping.set()
        data = b""
        with trio.fail_after(WAIT_SECONDS):
            async for part in stream:
                data += part
    assert b"tools/call" in data


async def test_health_is_told_to_everybody_and_tells_nothing_else():
    servers = {"docs": ScriptedServer(tools=[]), "search": None}
    async with listening(servers=servers) as here:
        with trio.fail_after(WAIT_SECONDS):
            await here.world.mux.upstreams.settled(legacy=False)
        for host in (f"127.0.0.1:{here.port}", "10.0.0.7:1"):
            assert await ask(here, "/health/live", host=host) == await ask(here, "/health/live")
            status, _, body = await ask(here, "/health/ready", host=host)
            assert (status, json.loads(body)) == (200, {"ready": True})
        assert (await ask(here, "/health/live", method="POST", content_length="0"))[0] == 401
    async with listening(servers={"search": None}) as here:
        with trio.fail_after(WAIT_SECONDS):
            await here.world.mux.upstreams.settled(legacy=False)
        status, _, body = await ask(here, "/health/ready")
        assert (status, json.loads(body)) == (503, {"ready": False})


async def test_upstreams_are_told_with_their_sessions_and_trouble():
    async with listening() as here:
        with trio.fail_after(WAIT_SECONDS):
            await here.world.mux.upstreams.settled(legacy=False)
        docs, search = (await get(here, "/upstreams"))["upstreams"]
        assert (docs["name"], docs["state"], docs["revision"]) == ("docs", "ready", "2026-07-28")
        assert (docs["trouble"], docs["capabilities"]) == (None, ["tools"])
        assert [(session["key"], session["kind"]) for session in docs["sessions"]] == [("docs", "shared")]
        assert (search["state"], search["trouble"]) == ("down", "nobody there")


async def test_metrics_are_told_as_prometheus_reads_them():
    async with listening() as here:
        with trio.fail_after(WAIT_SECONDS):
            await here.world.mux.upstreams.settled(legacy=False)
        status, fields, body = await ask(here, "/metrics", token=here.token)
        assert (status, fields["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert parse(body)["mcpmux_upstream_up"] == {("docs",): 1, ("search",): 0}


async def test_subscriptions_are_told_with_their_listeners():
    server = ScriptedServer("2025-11-25", resources=[{"uri": "file:///a", "name": "a"}])
    server.capabilities["resources"] = {"subscribe": True}

    async def agree(*_):
        return {}

    server.handlers["resources/subscribe"] = agree
    async with listening(servers={"docs": server}, tap=True) as here:
        relay, upstream = here.world.mux.hub, here.world.mux.upstreams["docs"]
        outbox = relay.join(ClientOutbox(frozenset()))
        with trio.fail_after(WAIT_SECONDS):
            await upstream.supervision.settled()
            relay.subscriptions.add(outbox, "docs", "file:///a")
            await upstream.subscriber.ensure_all(["file:///a"], WAIT_SECONDS)
        (docs,) = (await get(here, "/api/upstreams"))["upstreams"]
        assert docs["sessions"][0]["subscriptions"] == [{"uri": "file:///a", "agreed": True, "listeners": 1}]
        subscribing = "/api/exchanges?filter=method%3Dresources/subscribe"
        assert (await get(here, subscribing))["rows"] == []
        rows = (await get(here, f"{subscribing}&own=true"))["rows"]
        assert [(row["target"], row["status"], row["leg"]) for row in rows] == [
            ("file:///a", "ok", "upstream")
        ]


async def test_what_mcpmux_asks_by_itself_is_shown_when_it_is_asked_for():
    server = ScriptedServer(tools=[], handlers={"tools/call": call_nothing})
    async with listening(servers={"docs": server}, health_interval=0.05, tap=True) as here:
        with trio.fail_after(WAIT_SECONDS):
            while sum(message["method"] == "server/discover" for message in server.seen) < 5:
                await trio.lowlevel.checkpoint()
        await here.world.client().request("tools/call", {"name": "docs__t"})
        rows = (await get(here, "/api/exchanges"))["rows"]
        assert [row["method"] for row in rows] == ["tools/call"]
        own = (await get(here, "/api/exchanges?own=true"))["rows"]
        assert {row["method"] for row in own} == {"server/discover"}
        assert len(own) >= 4
        detail = await get(here, f"/api/exchanges/{own[-1]['row']}?own=true")
        assert [message["record"]["own"] for message in detail["messages"]] == [True, True]
        detail = await get(here, f"/api/exchanges/{rows[0]['row']}")
        assert not any("own" in message["record"] for message in detail["messages"])


async def call_nothing(*_):
    return {"resultType": "complete", "content": []}


async def test_stats_are_of_the_window_and_of_upstreams_and_whole_exchanges():
    traffic = Traffic()
    for ms in (10, 20, 30):
        traffic.exchange(ms=ms)
    traffic.begin("subscriptions/listen", {})
    async with listening(traffic) as here:
        stats = await get(here, "/api/stats?window=60&slots=6")
        groups = {(group["upstream"], group["method"]): group for group in stats["groups"]}
        assert set(groups) == {("", "tools/call"), ("docs", "tools/call")}
        assert groups["", "tools/call"]["p50"] == pytest.approx(20, rel=ERROR)
        assert groups["docs", "tools/call"]["p50"] == pytest.approx(16, rel=ERROR)
        assert sum(slot["count"] for slot in stats["slots"]) == 6
        upstreams = {row["upstream"]: (row["count"], row["p95"]) for row in stats["upstreams"]}
        assert upstreams == {"": (3, pytest.approx(30)), "docs": (3, pytest.approx(24))}
        assert stats["seconds"] == pytest.approx(60)


@pytest.mark.parametrize(("kept", "most", "seconds"), [(100, 9, 60), (2, 9, 10), (100, 2, 10)])
async def test_stats_show_their_span_when_not_all_exchanges_are_kept(kept, most, seconds):
    traffic = Traffic(rows=kept)
    for at in (-50, -10, -5):
        traffic.now = at
        traffic.exchange(ms=0)
    async with listening(traffic) as here:
        stats = await get(here, f"/api/stats?window=60&most={most}")
        assert seconds <= stats["seconds"] < seconds + 5
        assert stats["upstreams"][0]["count"] == min(3, kept, most)


async def test_it_is_served_inside_tls(certificates):
    tls = ServerTls(certificate=certificates.server, key=certificates.server_key)
    async with listening(tls=tls) as here:
        assert here.announced.startswith(f"https://127.0.0.1:{here.port}/?token=")
        context = ssl.create_default_context(cafile=certificates.ca)
        stream = await trio.open_ssl_over_tcp_stream("127.0.0.1", here.port, ssl_context=context)
        host = f"host: 127.0.0.1:{here.port}\r\norigin: https://127.0.0.1:{here.port}\r\n"
        with trio.fail_after(WAIT_SECONDS):
            await stream.send_all(f"GET /?token={here.token} HTTP/1.1\r\n{host}\r\n".encode())
            head = await stream.receive_some()
        assert head.startswith(b"HTTP/1.1 303")
        assert b"; SameSite=Strict; Secure" in head
        await trio.aclose_forcefully(stream)
    problem = pytest.RaisesExc(ConfigError, match=r"admin: .*missing\.pem")
    with pytest.RaisesGroup(problem, flatten_subgroups=True):
        async with listening(tls=ServerTls(certificate=certificates.missing)):
            pytest.fail("it cannot be served")


async def test_an_address_that_is_taken_is_named():
    async with listening() as here:
        taken = rf"admin: cannot listen on 127.0.0.1:{here.port}: .*port"
        problem = pytest.RaisesExc(TransportError, match=taken)
        with pytest.RaisesGroup(problem, flatten_subgroups=True):
            async with listening(port=here.port):
                pytest.fail("it cannot be served")


def test_the_network_gets_no_listener_without_a_token_of_the_users_own():
    for host in ("0.0.0.0", "192.0.2.1", "::", "admin.example.com"):
        with pytest.raises(InvalidValue, match="token"):
            Admin(host=host, port=1)
        assert "0123456789" not in repr(Admin(host=host, port=1, token=Secret("0123456789abcdef")))
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        assert Admin(host=host, port=1).token is None


def test_a_route_is_found_by_its_pattern():
    async def nothing(http):
        del http

    route = Route("/a.b/{x}/c", nothing)
    assert route.match("/a.b/1%2F2/c") == {"x": "1/2"}
    assert Route("/a/c", nothing).match("/a/c") == {}
    assert [route.match(path) for path in ("/a.b/1", "/a.b/1/2/c", "/axb/1/c")] == [None] * 3


@pytest.mark.parametrize("text", ["x", "-1", "11", "1.0", "٣", "9" * 40])
def test_a_number_out_of_its_range_is_a_bad_question(text):
    with pytest.raises(BadRequest):
        whole_number({"n": text}, "n", 1, 10, 5)
    assert whole_number({}, "n", 1, 10, 5) == 5


async def test_a_listed_exchange_says_what_upstreams_took_of_it():
    traffic = Traffic()
    traffic.exchange(ms=100)
    traffic.begin("tools/call", {"name": "docs__find"})
    async with listening(traffic) as here:
        still_open, whole = (await get(here, "/api/exchanges"))["rows"]
        assert whole["ms"] == pytest.approx(100)
        (part,) = whole["parts"]
        assert part == ["docs", pytest.approx(10), pytest.approx(80)]
        assert "parts" not in still_open


async def test_the_list_is_sorted_by_a_value_and_begins_after_a_row():
    traffic = Traffic()
    for ms in (30, 10, 20):
        traffic.exchange(ms=ms)
    traffic.now -= 100
    traffic.begin("tools/call", {"name": "docs__ask"})  # it is not over, so it takes longest
    traffic.recorder.message_passed(traffic.client, "in", b'{"jsonrpc":"2.0","method":"notifications/x"}')
    async with listening(traffic) as here:
        for query, numbers in {
            "sort=-duration": [4, 1, 3, 2],
            "sort=duration&limit=2": [2, 3],
            "sort=-duration&after=1&filter=status%3Dok": [3, 2],
            "sort=time": [1, 2, 3, 4, 5],
            "sort=name&limit=1": [4],
            "after=3": [5, 4],
            "after=3&limit=1": [5],
        }.items():
            answer = await get(here, f"/api/exchanges?{query}")
            assert [row["row"] for row in answer["rows"]] == numbers, query
            assert answer["first"] == (int(query.partition("after=")[2][:1] or 0)) + 1
        more = await get(here, "/api/exchanges?after=3&limit=1")
        assert (await get(here, f"/api/exchanges?after=3&before={more['before']}"))["before"] is None


async def test_a_row_has_its_arguments_and_the_words_of_its_failure():
    traffic = Traffic()
    text = {"content": [{"type": "image"}, {"type": "text", "text": f"no {SECRET}\n file"}], "isError": True}
    traffic.exchange(
        params={"name": "docs__find", "arguments": {"q": "a b", "token": SECRET, "long": "x" * 500}}
    )
    traffic.exchange("tools/call", {"name": "docs__find", "_meta": {"a": 1}}, answer={"result": text})
    traffic.exchange(
        "completion/complete", {"ref": {"name": "p"}}, answer={"error": {"code": 1, "message": "no"}}
    )
    async with listening(traffic) as here:
        refused, failed, called = (await get(here, "/api/exchanges"))["rows"]
    assert called["arguments"].startswith('q: "a b", token: ')
    assert len(called["arguments"]) < 200
    assert "words" not in called
    assert "arguments" not in failed
    assert failed["words"].startswith("no ") and failed["words"].endswith(" file")
    assert (refused["arguments"], refused["words"]) == ('ref: {"name":"p"}', "no")
    assert SECRET not in json.dumps([called, failed])


async def test_the_keys_of_filters_are_told_with_the_words_of_the_language():
    async with listening() as here:
        keys = {key["name"]: key for key in (await get(here, "/api/filter"))["keys"]}
    assert keys["upstream"] == {
        "name": "upstream", "about": "name of the upstream", "operator": "=", "values": []
    }  # fmt: skip
    assert "tool_error" in keys["status"]["values"]
    assert keys["leg"]["values"] == ["client", "upstream"]
    assert keys["marked"]["operator"] == ""


async def test_each_host_app_is_told_what_its_file_needs():
    async with listening() as here:
        status, _, body = await ask(here, "/api/hosts?url=javascript:x", token=here.token)
        assert (status, b"url has to be" in body) == (400, True)
        hosts = {host["name"]: host for host in (await get(here, "/api/hosts?url=http://h:1/mcp"))["hosts"]}
    assert json.loads(hosts["cursor"]["text"]) == {"mcpServers": {"mcpmux": {"url": "http://h:1/mcp"}}}
    assert hosts["cursor"]["file"] == "~/.cursor/mcp.json"
    assert hosts["claude-desktop"]["text"] is None
    assert 'url = "http://h:1/mcp"' in hosts["codex"]["text"]
