"""The words of a failing server that clients, and the operator, get to read."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from mcpmux import app
from mcpmux.config import Config, Http, Stdio, Upstream, WebSocket
from mcpmux.config.expansion import Secret
from mcpmux.config.traffic import Redaction
from mcpmux.errors import MORE, RpcError
from mcpmux.printable import QUOTED_BYTES, QUOTED_LENGTH
from mcpmux.protocol.envelope import error_body, raw
from mcpmux.traffic.admin.upstreams import UpstreamView
from mcpmux.traffic.record import Run
from mcpmux.traffic.redaction.redactor import Redactor
from tests.peers.revision import MODERN, Json
from tests.peers.web import JSON, Web
from tests.runtime.web_world import exchange, open_web

SECRET, WORDS = "planted-secret", "planted words"
TEXT = f"{WORDS} {SECRET}"
PAGE = (("Content-Type", "text/html"),)
HEADERS = {"X-Key": Secret(SECRET)}


def told_to_client(error: RpcError) -> str:
    return bytes(raw(error_body(error))).decode()


QUOTED: dict[str, tuple[int, Any, bytes]] = {
    "a page": (502, PAGE, f"<p>{TEXT}</p>".encode()),
    "text": (500, (), TEXT.encode()),
    "text beside advice": (401, (), TEXT.encode()),
    "JSON that is no answer": (400, JSON, json.dumps({"detail": TEXT}).encode()),
    "no answer": (200, JSON, json.dumps({"detail": TEXT}).encode()),
    "no JSON": (200, PAGE, TEXT.encode()),
    "a content type": (200, (("Content-Type", TEXT),), b"x"),
    "a coding": (200, (("Content-Encoding", TEXT),), b"x"),
    "a redirect": (302, (("Location", f"https://x.example/{WORDS.replace(' ', '-')}/{SECRET}"),), b""),
    "an error without a description": (400, JSON, json.dumps({"error": TEXT}).encode()),
}


@pytest.mark.parametrize("answer", QUOTED.values(), ids=QUOTED)
async def test_a_page_of_a_server_is_for_the_operator_alone(answer: tuple[int, Any, bytes]) -> None:
    async def script(_web: Web, _request: Any, _message: Json, reply: Any) -> None:
        await reply.send(*answer)

    with capture_logs() as logs:
        async with open_web(script, make_target=partial(Http, headers=HEADERS)) as (_, mux):
            with pytest.raises(RpcError) as caught:
                await exchange(mux, "tools/call", {"name": "t"})
            upstream = mux.upstreams["web"]
            await upstream.supervision.settled()
            listed, trouble = json.dumps(await listing(mux)), upstream.status.trouble_in_full
    shown, recorded = told_to_client(caught.value), f"{logs} {trouble}"
    for text in (shown, listed):
        assert "planted" not in text
        assert MORE in text
    assert "planted" in recorded
    assert "planted" in caught.value.in_full
    assert SECRET not in recorded + caught.value.in_full


async def listing(mux: app.Mux) -> Any:
    """Return the answer to a list, or the error."""
    try:
        return await exchange(mux, "resources/list", {})
    except RpcError as error:
        return told_to_client(error)


CHALLENGE = f'Bearer error="invalid_token", error_description="{TEXT}"'
MEANT: dict[str, tuple[int, Any, bytes]] = {
    "the message of an error": (
        400,
        JSON,
        json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": TEXT}}).encode(),
    ),
    "the message of an error beside advice": (
        503,
        JSON,
        json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": TEXT}}).encode(),
    ),
    "a challenge": (401, (("WWW-Authenticate", CHALLENGE),), b""),
    "an error of OAuth": (
        403,
        JSON,
        json.dumps({"error": "invalid_token", "error_description": TEXT}).encode(),
    ),
}


@pytest.mark.parametrize("answer", MEANT.values(), ids=MEANT)
async def test_words_for_the_client_pass_on_without_secrets(answer: tuple[int, Any, bytes]) -> None:
    async def script(_web: Web, _request: Any, _message: Json, reply: Any) -> None:
        await reply.send(*answer)

    with capture_logs():
        async with open_web(script, make_target=partial(Http, headers=HEADERS)) as (_, mux):
            with pytest.raises(RpcError) as caught:
                await exchange(mux, "tools/call", {"name": "t"})
    shown = told_to_client(caught.value)
    assert WORDS in shown
    assert SECRET not in shown + caught.value.in_full


@pytest.mark.parametrize("spelled", [SECRET, "".join(f"\\u{ord(char):04x}" for char in SECRET)])
@pytest.mark.parametrize("before", [0, QUOTED_LENGTH - 5, QUOTED_BYTES - 5])
async def test_a_refusal_echoes_no_part_of_a_secret(spelled: str, before: int) -> None:
    async def script(web: Web, _request: Any, message: Json, reply: Any) -> None:
        if message["method"] == "server/discover":
            await web.answer(reply, message, {"supportedVersions": [MODERN], "capabilities": {"tools": {}}})
            return
        words = f"{'x' * before} {spelled}"
        error = f'{{"code": -32602, "message": "{words}", "data": {{"header": "{spelled}", "number": 7}}}}'
        body = f'{{"jsonrpc": "2.0", "id": {json.dumps(message.get("id"))}, "error": {error}}}'
        await reply.send(400, JSON, body.encode())

    with capture_logs():
        async with open_web(script, make_target=partial(Http, headers=HEADERS)) as (_, mux):
            with pytest.raises(RpcError) as caught:
                await exchange(mux, "tools/call", {"name": "t"})
    shown = told_to_client(caught.value)
    assert SECRET[:4] not in shown
    assert json.loads(shown)["data"]["number"] == 7, shown


async def test_the_last_words_of_a_process_are_for_the_operator_alone() -> None:
    code = f"import sys; sys.exit('{WORDS} {SECRET}')"
    target = Stdio(sys.executable, ("-c", code), env={"KEY": Secret(SECRET)})
    await check_trouble(target, "the process exited with status 1")


async def test_the_refusal_of_a_websocket_is_for_the_operator_alone() -> None:
    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            head = f"HTTP/1.1 500 No\r\nContent-Length: {len(TEXT)}\r\n\r\n"
            await stream.send_all(head.encode() + TEXT.encode())

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        await check_trouble(WebSocket(f"ws://127.0.0.1:{port}/mcp", headers=HEADERS), "answered 500")
        nursery.cancel_scope.cancel()


async def check_trouble(target: Any, cause: str) -> None:
    """Check that clients get the trouble of an upstream without the planted words."""
    with capture_logs() as logs, trio.fail_after(60):
        async with app.open_mux(Config(upstreams=(Upstream(name="x", target=target),))) as mux:
            upstream = mux.upstreams["x"]
            await upstream.supervision.settled()
            with pytest.raises(RpcError) as caught:
                await exchange(mux, "tools/call", {"name": "x__t"})
            listed = json.dumps(await listing(mux))
            recorded = f"{upstream.status.trouble_in_full} {caught.value.in_full}"
    for text in (told_to_client(caught.value), listed):
        assert cause in text
        assert MORE in text
        assert "planted" not in text
    assert WORDS in str(logs)
    assert WORDS in recorded
    assert SECRET not in f"{logs} {recorded}"


async def test_the_output_of_a_process_and_its_command_are_shown_redacted() -> None:
    key = "api_key=abcdefgh12345"
    code = f"import sys; print('first {SECRET} {key}', file=sys.stderr); sys.exit('last')"
    target = Stdio(sys.executable, ("-c", code, "--token", "abcdefgh12345"), env={"KEY": Secret(SECRET)})
    with trio.fail_after(60):
        async with app.open_mux(Config(upstreams=(Upstream(name="x", target=target),))) as mux:
            await mux.upstreams["x"].supervision.settled()
            redactor = Redactor(Redaction())
            (state,) = await UpstreamView(mux.upstreams, mux.hub, redactor, Run("run", 0.0, 0.0)).read_all()
    first, last = state.output[-2:]
    assert (first.split()[0], last) == ("first", "last")
    assert state.command is not None and state.command.endswith("--token [redacted: token]")
    shown = repr(state)
    assert SECRET not in shown and "abcdefgh12345" not in shown
