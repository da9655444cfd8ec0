"""HTTP clients that have to show who they are, in both eras: who comes in, and what is whose."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcpmux.auth.bearer import hash_token
from mcpmux.auth.gate import Gate
from mcpmux.clients.server_card import ServerCard
from mcpmux.config import Auth, HttpListener, Limits, StaticToken
from mcpmux.config.views import Selector, View
from mcpmux.transports.http.client import HttpPool
from mcpmux.transports.http.route import HttpOrigin
from tests.auth.made import Clock, Issuing, bearer, claims, make_gate, sign
from tests.http_request import requested
from tests.peers.http_client import HttpClient, request
from tests.peers.revision import CAPABILITIES, CLIENT, LEGACY, MODERN, VERSION, Json
from tests.peers.server import RpcFailure, ScriptedServer
from tests.peers.task_server import EXTENSION, TaskServer
from tests.runtime.http_front import FEW_SESSIONS, start_endpoint
from tests.runtime.test_flows import docs
from tests.runtime.world import open_world

TOKENS = {name: f"mcpmux_{name}_0123456789abcdefghijklmnopqrst" for name in ("ann", "ben")}
STATIC = {name: StaticToken(sha256=hash_token(token), scopes=("base",)) for name, token in TOKENS.items()}
ANN, BEN = ({"Authorization": f"Bearer {TOKENS[name]}"} for name in ("ann", "ben"))
MRTR: Json = {"sampling": {}, "elicitation": {"form": {}}}


VIEWS = {"some": View(include=(Selector(upstream="docs"),))}
APP, LOCAL, FOREIGN = "https://app.example.com", "http://localhost:6274", "https://evil.example.com"
EXPOSED = "Mcp-Session-Id, WWW-Authenticate, Retry-After"
METADATA = "/.well-known/oauth-protected-resource"
MUX = "https://mux.example.com"


class Guarded:
    """A guarded listener: the fields of `HttpClient`, of a principal."""

    def __init__(self, pool: HttpPool, world: Any) -> None:
        self.http = HttpClient(pool)
        self.pool = pool
        self.world = world

    async def send(self, body: Any, who: Json, method: str = "POST", **headers: Any) -> Any:
        return await self.http.send(body, who | headers, method)

    async def modern(self, method: str, params: Json | None, who: Json) -> Any:
        return await self.http.modern(method, params, **who)

    async def initialize(self, who: Json, revision: str = LEGACY) -> Json:
        return await self.http.initialize(revision, headers=who)

    async def get(self, path: str, who: Json, method: str = "GET") -> tuple[int, Json, bytes]:
        with trio.fail_after(30):
            request = requested(self.pool, method, path, tuple(who.items()), b"", idempotent=True)
            async with request as response:
                return response.status, dict(response.headers), await response.read()


@asynccontextmanager
async def open_guarded(
    servers: dict[str, Any] | None = None,
    gate: Gate | None = None,
    *,
    page_size: int = 1000,
    card: ServerCard | None = None,
    is_open: bool = False,
    body_bytes: int = 1 << 20,
) -> AsyncIterator[Guarded]:
    """Open an endpoint that requires tokens, unless `is_open`."""
    gate = gate or make_gate(tokens=STATIC)
    async with open_world(
        servers or {"docs": docs(), "more": docs()}, page_size=page_size, views=VIEWS
    ) as world:
        listener = HttpListener(port=0, allowed_origins=(APP,))
        guard = None if is_open else gate
        serving = {"limits": Limits(max_message_bytes=body_bytes)}
        _, port = await start_endpoint(
            world.nursery, world.mux.service, listener, FEW_SESSIONS, guard, card=card, serving=serving
        )
        with HttpPool(HttpOrigin(False, "127.0.0.1", port)) as pool:
            yield Guarded(pool, world)


async def test_whoever_shows_nothing_gets_nothing_but_the_way_to_a_token():
    async with open_guarded() as mux:
        for method, path in (
            ("POST", "/mcp"),
            ("GET", "/mcp"),
            ("DELETE", "/mcp"),
            ("GET", "/sse"),
            ("GET", "/x"),
        ):
            status, headers, body = await mux.get(path, {"Content-Type": "application/json"}, method)
            assert status == 401
            assert headers["www-authenticate"] == 'Bearer realm="mcpmux"'
            error = json.loads(body)["error"]
            assert error["code"] == -32600
            assert error["message"] == "This needs a bearer token in the Authorization header"
        assert (await mux.modern("resources/list", None, ANN)).status == 200


async def test_a_token_counts_in_the_header_only():
    """ "Access tokens MUST NOT be included in the URI query string"."""
    token = TOKENS["ann"]
    async with open_guarded() as mux:
        for path, who in (
            (f"/sse?access_token={token}", {}),
            (f"/mcp?token={token}", {}),
            ("/sse", {"Cookie": f"token={token}"}),
            ("/sse", {"X-Authorization": f"Bearer {token}"}),
            ("/sse", {"Authorization": f"Basic {token}"}),
        ):
            assert (await mux.get(path, who))[0] == 401


async def test_a_foreign_page_is_refused_before_its_token_is_looked_at():
    async with open_guarded() as mux:
        for headers in ({"Origin": "https://evil.example.com"},):
            assert (await mux.get("/mcp", headers | ANN))[0] == 403
            assert (await mux.get("/.well-known/oauth-protected-resource", headers))[0] == 403


async def test_a_foreign_page_learns_no_names_from_a_mistaken_query():
    evil = {"Origin": "https://evil.example.com"}
    async with open_guarded(is_open=True) as mux:
        for path in ("/mcp?upstreams=dosc", "/mcp/some?tools=nothing"):
            assert (await mux.get(path, evil))[0] == 403
            assert (await mux.get(path, {}))[0] == 400


@pytest.mark.parametrize(
    ("suffix", "resource"),
    [
        *(("", "/mcp"), ("/mcp", "/mcp"), ("/mcp/", "/mcp"), ("/sse", "/sse")),
        *(("/mcp/some", "/mcp/some"), ("/mcp/unknown", "/mcp/unknown"), ("/sse/some", "/sse/some")),
    ],
)
async def test_each_url_has_metadata_of_its_own_that_everybody_may_read(suffix: str, resource: str):
    """RFC 9728, section 3.3: `resource` MUST be identical to the URL; MCP 2025-11-25.

    Strangers do not learn which views there are: every name has a document.
    """
    gate = make_gate(Issuing(), required_scopes=("read",))
    async with open_guarded(gate=gate) as mux:
        status, headers, body = await mux.get(METADATA + suffix, {})
        assert (status, headers["content-type"]) == (200, "application/json")
        assert headers["vary"] == "Origin"
        assert json.loads(body) == {
            "resource": MUX + resource,
            "authorization_servers": ["https://login.example.com"],
            "bearer_methods_supported": ["header"],
            "resource_name": "mux",
            "scopes_supported": ["read"],
        }
        assert (await mux.get(METADATA + suffix, {}, "DELETE"))[0] == 405
        path = suffix or "/mcp"
        for who in ({}, bearer("no.good.token")):
            status, headers, _ = await mux.get(path, who, "POST")
            assert status == 401
            assert f'resource_metadata="{MUX}{METADATA}{resource}"' in headers["www-authenticate"]


@pytest.mark.parametrize(
    "path",
    [
        *(f"{METADATA}{suffix}" for suffix in ("/other", "/mcp/some/more", "/mcp/NO", "x")),
        *("/.well-known/oauth-authorization-server", "/mcp/.well-known/openid-configuration"),
    ],
)
async def test_other_well_known_paths_are_not_there_for_anybody(path: str):
    async with open_guarded(gate=make_gate(Issuing(), tokens=STATIC)) as mux:
        for who in ({}, ANN):
            status, headers, _ = await mux.get(path, who)
            assert (status, headers.get("www-authenticate")) == (404, None)


async def test_without_an_authorization_server_there_is_no_metadata():
    async with open_guarded() as mux:
        assert (await mux.get(METADATA, {}))[0] == 404
        assert (await mux.get(METADATA, ANN))[0] == 404


async def test_a_token_for_the_url_of_a_view_opens_that_view_alone():
    """RFC 8707, section 2: a client asks for a token for the `resource` of the metadata."""
    gate = make_gate(Issuing(), method_scopes={"tools/*": ("tools",)})
    async with open_guarded(gate=gate) as mux:
        names = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "resources/list"}
        asking = request("resources/list", {"_meta": {VERSION: MODERN, CAPABILITIES: {}}})
        for audience, statuses in (
            (f"{MUX}/mcp/some", [200, 401, 401, 200]),
            ([f"{MUX}/mcp", f"{MUX}/mcp/some"], [200, 200, 404, 200]),
            (f"{MUX}/mcp", [200, 200, 404, 200]),
        ):
            who = bearer(sign(claims(aud=audience)))
            answers = [
                await mux.http.send(asking, who | names, path=path)
                for path in ("/mcp/some", "/mcp", "/mcp/unknown", "/mcp/some/")
            ]
            assert [answer.status for answer in answers] == statuses
        asking["method"] = names["Mcp-Method"] = "tools/list"
        step_up = await mux.http.send(asking, who | names, path="/mcp/some")
        assert step_up.status == 403
        assert f'resource_metadata="{MUX}{METADATA}/mcp/some"' in step_up.headers["www-authenticate"]


PLACES = (
    *("/mcp", "/mcp/", "/mcp/some", "/mcp/unknown", "/mcp?tools=x&tools=", "/sse", "/sse?session_id=x", "/x"),
    *(METADATA, f"{METADATA}/mcp/some", f"{METADATA}/x"),
)


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("origin", [APP, LOCAL])
async def test_an_allowed_page_may_preflight_and_read_every_answer(origin: str, is_open: bool):
    """Fetch, "CORS protocol": a browser asks with OPTIONS and without credentials."""
    asking = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,mcp-param-city, x-own,b@d",
    }
    async with open_guarded(gate=make_gate(Issuing(), tokens=STATIC), is_open=is_open) as mux:
        for path in PLACES:
            status, headers, body = await mux.get(path, asking, "OPTIONS")
            assert (status, body) == (204, b"")
            assert headers["access-control-allow-origin"] == origin
            assert headers["access-control-allow-methods"] == "GET, POST, DELETE"
            assert headers["access-control-max-age"] == "7200"
            allowed = headers["access-control-allow-headers"].split(", ")
            assert {"mcp-session-id", "mcp-protocol-version", "last-event-id", "mcp-name"} < set(allowed)
            assert allowed[-2:] == ["mcp-param-city", "x-own"]
            for who in ({}, ANN, bearer("wrong")):
                status, headers, _ = await mux.get(path, who | {"Origin": origin}, "POST")
                assert status != 204
                assert headers["access-control-allow-origin"] == origin
                assert headers["access-control-expose-headers"] == EXPOSED
                assert headers["vary"] == "Origin"
                assert "access-control-allow-credentials" not in headers
        for stream in ("/sse", "/mcp"):
            fields = tuple((ANN | {"Origin": origin}).items())
            async with requested(mux.pool, "GET", stream, fields, b"", idempotent=False) as response:
                assert response.headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize("is_open", [True, False])
async def test_a_page_that_may_not_connect_reads_nothing(is_open: bool):
    async with open_guarded(gate=make_gate(Issuing(), tokens=STATIC), is_open=is_open) as mux:
        for origin in (FOREIGN, "null", "https://app.example.com:444", "http://localhost.evil.example.com"):
            for method in ("OPTIONS", "POST"):
                asking = {"Origin": origin, "Access-Control-Request-Method": "POST"}
                for path in PLACES:
                    status, headers, _ = await mux.get(path, asking | ANN, method)
                    assert status in (400, 403)
                    assert not any(name.startswith("access-control") for name in headers)


async def test_a_page_is_told_of_what_the_transport_refuses():
    async with open_guarded(body_bytes=100) as mux:
        for origin, named in ((LOCAL, LOCAL), (FOREIGN, None)):
            answer = await mux.send(b"x" * 101, {"Origin": origin})
            assert answer.status == 413
            assert answer.headers.get("access-control-allow-origin") == named


async def test_no_page_may_ask_under_a_foreign_host():
    asking = f"OPTIONS /mcp HTTP/1.1\r\nOrigin: {LOCAL}\r\nAccess-Control-Request-Method: POST\r\n"
    async with open_guarded() as mux:
        for host, status in ((b"rebound.example.com", b"403"), (b"localhost", b"204")):
            async with await trio.open_tcp_stream("127.0.0.1", mux.pool.origin.port) as stream:
                await stream.send_all(asking.encode() + b"Host: %b\r\n\r\n" % host)
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 %b " % status)


@pytest.mark.interpreted
async def test_every_call_carries_its_principal():
    seen = []
    async with open_guarded() as mux:
        exchange = mux.world.mux.router.exchange

        async def spy(call: Any, notify: Any) -> Any:
            seen.append((call.method, call.principal.name, call.principal.scopes))
            return await exchange(call, notify)

        mux.world.mux.router.exchange = spy
        await mux.modern("resources/list", None, ANN)
        session = await mux.initialize(BEN)
        await mux.send(request("tools/list"), BEN | session)
        assert seen == [
            ("resources/list", "ann", frozenset({"base"})),
            ("tools/list", "ben", frozenset({"base"})),
        ]


async def test_a_revoked_token_opens_no_session_any_more():
    gate = make_gate(tokens=STATIC)
    async with open_guarded(gate=gate) as mux:
        statuses = [(await mux.modern("resources/list", None, who)).status for who in (ANN, ANN, BEN)]
        assert statuses == [200, 200, 200]
        assert gate.known(bearer(TOKENS["ann"])) is not None
        gate.adopt(Auth(tokens={"ben": STATIC["ben"]}), "mux")
        statuses = [(await mux.modern("resources/list", None, who)).status for who in (ANN, BEN)]
        assert statuses == [401, 200]


async def test_a_session_is_bound_to_its_principal():
    """Another principal gets the answer for a session that is not there."""
    async with open_guarded() as mux:
        session = await mux.initialize(ANN)
        unknown = session | {"Mcp-Session-Id": "unknown"}
        notification = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        answer = {"jsonrpc": "2.0", "id": 1, "result": {}}
        for body, method in (
            (request("ping"), "POST"),
            (notification, "POST"),
            (answer, "POST"),
            (b"", "GET"),
            (b"", "DELETE"),
        ):
            stolen = await mux.send(body, BEN | session, method)
            absent = await mux.send(body, BEN | unknown, method)
            assert stolen.status == absent.status == 404
            assert stolen.messages == absent.messages
        assert (await mux.send(request("ping"), ANN | session)).last["result"] == {}
        assert (await mux.send(request("ping"), session)).status == 401
        assert (await mux.send(b"", ANN | session, "DELETE")).status == 204


async def test_a_batch_goes_to_sessions_of_its_principal_only():
    async with open_guarded() as mux:
        session = await mux.initialize(ANN, "2025-03-26")
        batch = json.dumps([request("ping"), request("ping", request_id=2)]).encode()
        assert len((await mux.send(batch, ANN | session)).messages[0]) == 2
        assert (await mux.send(batch, BEN | session)).status == 400
        assert (await mux.send(batch, BEN)).status == 400


async def test_a_resumable_stream_is_bound_to_its_principal():
    async with open_guarded() as mux:
        session = await mux.initialize(ANN)
        for event_id in ("0-0", "1-0", "nonsense"):
            resumed = await mux.send(b"", BEN | session | {"Last-Event-ID": event_id}, "GET")
            assert resumed.status == 404


async def test_a_stream_of_http_sse_is_bound_to_its_principal():
    async with (
        open_guarded() as mux,
        requested(mux.pool, "GET", "/sse", tuple(ANN.items()), b"", idempotent=False) as stream,
    ):
        data = await stream.receive_some()
        address = data.split(b"data: ")[1].split()[0].decode()
        body = json.dumps(request("ping")).encode()
        for who, status in ((BEN, 404), ({}, 401), (ANN, 202)):
            fields = (("Content-Type", "application/json"), *who.items())
            async with requested(mux.pool, "POST", address, fields, body, idempotent=False) as response:
                assert response.status == status
                await response.read()


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_cursor_is_bound_to_its_principal(era: str):
    items = [{"uri": f"memo:{number}", "name": str(number)} for number in range(4)]
    servers = {name: ScriptedServer(resources=items, page_size=1) for name in ("docs", "more")}
    async with open_guarded(servers, page_size=1) as mux:
        sessions = {"ann": ANN, "ben": BEN}
        if era == "legacy":
            sessions = {"ann": ANN | await mux.initialize(ANN), "ben": BEN | await mux.initialize(BEN)}

        async def list_page(who: str, cursor: str | None) -> Any:
            params = {} if cursor is None else {"cursor": cursor}
            if era == "legacy":
                return (await mux.send(request("resources/list", params), sessions[who])).last
            return (await mux.modern("resources/list", params, sessions[who])).last

        cursor = (await list_page("ann", None))["result"]["nextCursor"]
        assert (await list_page("ann", cursor))["result"]["resources"]
        stolen, forged = await list_page("ben", cursor), await list_page("ben", "A" * len(cursor))
        assert stolen["error"]["code"] == forged["error"]["code"] == -32602
        assert stolen["error"]["message"] == forged["error"]["message"]


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_a_request_state_is_bound_to_its_principal(revision: str):
    """The server sees one client, so it is mcpmux that tells principals apart."""
    sampling = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 5}

    async def ask(server: ScriptedServer, params: Json, _message: Json) -> Json:
        if not server.modern:
            await server.send({"id": "a", "method": "sampling/createMessage", "params": sampling})
            await trio.sleep(0.05)
            return {"content": []}
        if params.get("requestState") != "the server's own":
            if "requestState" in params:
                raise RpcFailure(-32602, f"foreign state {params['requestState']!r}")
            wish = {"method": "sampling/createMessage", "params": sampling}
            return {
                "resultType": "input_required",
                "inputRequests": {"it": wish},
                "requestState": "the server's own",
            }
        return {"resultType": "complete", "content": []}

    tool = {"name": "t", "inputSchema": {"type": "object"}}
    servers = {"x": ScriptedServer(revision, tools=[tool], handlers={"tools/call": ask}), "docs": docs()}
    sampled = {"role": "assistant", "content": {"type": "text", "text": "ho"}, "model": "m"}
    async with open_guarded(servers) as mux:

        async def call(who: Json, state: str | None) -> Any:
            params: Json = {"name": "x__t", "_meta": {VERSION: MODERN, CAPABILITIES: MRTR}}
            if state is not None:
                params |= {"requestState": state, "inputResponses": {"it": sampled}}
            headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "x__t"}
            return (await mux.send(request("tools/call", params), who | headers)).last

        question = (await call(ANN, None))["result"]
        assert question["resultType"] == "input_required"
        state = question["requestState"]
        assert "server's own" not in state
        stolen, unknown = await call(BEN, state), await call(BEN, "unknown")
        assert stolen["error"]["code"] == unknown["error"]["code"] == -32602
        assert stolen["error"]["message"] == unknown["error"]["message"]
        assert "result" in await call(ANN, state)


async def test_scopes_of_a_method_are_asked_for_by_a_step_up():
    gate = make_gate(tokens=STATIC, required_scopes=("base",), method_scopes={"tools/*": ("tools",)})
    async with open_guarded(gate=gate) as mux:
        session = await mux.initialize(ANN)
        answers = [
            await mux.modern("tools/list", None, ANN),
            await mux.send(request("tools/list", request_id=7), ANN | session),
        ]
        for answer in answers:
            assert answer.status == 403
            value = answer.headers["www-authenticate"]
            assert 'error="insufficient_scope"' in value
            assert 'scope="base tools"' in value
        assert answers[1].last["id"] == 7
        assert (await mux.modern("resources/list", None, ANN)).status == 200
        assert (await mux.send(request("resources/list"), ANN | session)).status == 200


async def test_a_session_goes_on_with_a_renewed_token_of_the_same_principal():
    gate = make_gate(Issuing(), method_scopes={"tools/*": ("tools",)})
    async with open_guarded(gate=gate) as mux:
        old, new = bearer(sign(claims())), bearer(sign(claims(exp=2_000_000_000, scope="tools")))
        session = await mux.initialize(old)
        assert (await mux.send(request("tools/list"), old | session)).status == 403
        assert (await mux.send(request("tools/list"), new | session)).status == 200
        other = bearer(sign(claims(sub="bob", scope="tools")))
        assert (await mux.send(request("tools/list"), other | session)).status == 404


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_stream_ends_when_its_token_expires(era: str):
    clock = Clock()
    clock.now += 629.7  # the token has 300 ms left, leeway included
    gate = make_gate(Issuing(), clock)
    async with open_guarded(gate=gate) as mux:
        who = {"Authorization": bearer(sign(claims()))["authorization"]}
        if era == "legacy":
            session = await mux.initialize(who)
            async with mux.http.stream(
                "GET", None, who | session | {"Accept": "text/event-stream"}
            ) as stream:
                assert stream.response.status == 200
                await stream.response.read()  # to its end
        else:
            meta = {VERSION: MODERN, CAPABILITIES: {}}
            body = request(
                "subscriptions/listen", {"notifications": {"toolsListChanged": True}, "_meta": meta}
            )
            headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "subscriptions/listen"}
            answer = await mux.send(body, who | headers)
            assert [message["method"] for message in answer.messages] == [
                "notifications/subscriptions/acknowledged"
            ]


@pytest.mark.parametrize("era", ["modern", "legacy", "http+sse"])
async def test_a_stream_ends_when_its_token_is_taken_back(era: str):
    gate = make_gate(tokens=STATIC)
    async with open_guarded(gate=gate) as mux:
        count = len(mux.world.mux.hub._listeners)
        over = trio.Event()
        session = await mux.initialize(ANN) if era == "legacy" else {}

        async def stay() -> None:
            if era == "modern":
                meta = {VERSION: MODERN, CAPABILITIES: {}}
                params = {"notifications": {"toolsListChanged": True}, "_meta": meta}
                headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "subscriptions/listen"}
                await mux.send(request("subscriptions/listen", params), ANN | headers)
            else:
                await mux.get("/sse" if era == "http+sse" else "/mcp", ANN | session)
            over.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stay)
            while not gate._stays:  # noqa: ASYNC110  # no event tells of it
                await trio.sleep(0.01)
            gate.adopt(Auth(tokens={"ben": STATIC["ben"]}), "mux")
            with trio.fail_after(30):
                await over.wait()
        assert (await mux.modern("resources/list", None, ANN)).status == 401
        assert (await mux.modern("resources/list", None, BEN)).status == 200
        with trio.fail_after(30):
            # The session's own goes within a second; no event tells of it.
            while len(mux.world.mux.hub._listeners) > count:  # noqa: ASYNC110
                await trio.sleep(0.05)


async def test_one_principal_cannot_have_all_the_sessions():
    async with open_guarded() as mux:
        sessions = [await mux.initialize(ANN) for _ in range(10)]
        params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": CLIENT}
        assert (await mux.send(request("initialize", params), ANN)).status == 503
        bens = await mux.initialize(BEN)
        ping = [(await mux.send(request("ping"), ANN | session)).status for session in sessions]
        assert ping == [404, *[200] * 9]
        assert (await mux.send(request("initialize", params), ANN)).status == 503
        assert (await mux.send(request("ping"), BEN | bens)).status == 200


async def test_a_task_is_bound_to_its_principal():
    """A client of 2026-07-28 over HTTP has no session that could own it."""
    servers = {"x": TaskServer(MODERN), "docs": docs()}
    capabilities: Json = {"extensions": {EXTENSION: {}}}
    async with open_guarded(servers) as mux:

        async def ask(who: Json, method: str, params: Json, name: str) -> Json:
            params = params | {"_meta": {VERSION: MODERN, CAPABILITIES: capabilities}}
            headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method, "Mcp-Name": name}
            answer: Json = (await mux.send(request(method, params), who | headers)).last
            return answer

        task_id = (await ask(ANN, "tools/call", {"name": "x__may"}, "x__may"))["result"]["taskId"]
        for method in ("tasks/get", "tasks/cancel"):
            stolen = await ask(BEN, method, {"taskId": task_id}, task_id)
            unknown = await ask(BEN, method, {"taskId": "x+none"}, "x+none")
            assert stolen["error"] == unknown["error"]
            assert "result" in await ask(ANN, method, {"taskId": task_id}, task_id)
