"""mcpmux behind a real authorization server (Authlib): the SDK's whole flow, and every bad token."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.process import free_port
from tests.process.running import WAIT_SECONDS
from tests.real.mux import Mux
from tests.real.parts import pip_env

HERE = Path(__file__).parent
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}

Json = dict[str, Any]


def ask(url: str, body: Any = None, form: Json | None = None, **headers: str) -> tuple[int, Any, Any]:
    """Return status, headers and JSON of an answer; a POST when there is a body or form."""
    data = None
    if form is not None:
        data = urllib.parse.urlencode(form).encode()
    elif body is not None:
        data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | headers
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, data, headers), timeout=WAIT_SECONDS
        ) as answer:
            return answer.status, answer.headers, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, json.loads(error.read() or b"null")


class Authority:
    """The running authorization server."""

    def __init__(self) -> None:
        program = [str(pip_env("authority")), str(HERE / "authority_server.py")]
        self._process = subprocess.Popen(
            program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self.issuer = self._process.stdout.readline().strip()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(WAIT_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def say_next(self, **changes: Any) -> None:
        ask(f"{self.issuer}/next", changes)

    def rotate(self) -> None:
        ask(f"{self.issuer}/rotate", {})

    def token(self, resource: str, scope: str = "read tools") -> str:
        """Get a token by the client credentials of a client that is registered for it."""
        wish = {"grant_types": ["client_credentials"], "redirect_uris": ["http://127.0.0.1:9/"]}
        status, _, client = ask(f"{self.issuer}/register", wish)
        assert status == 201
        form = {
            "grant_type": "client_credentials",
            "client_id": client["client_id"],
            "client_secret": client["client_secret"],
            "resource": resource,
            "scope": scope,
        }
        status, _, answer = ask(f"{self.issuer}/token", form=form)
        assert status == 200, answer
        return str(answer["access_token"])


@pytest.fixture
def authority() -> Iterator[Authority]:
    running = Authority()
    try:
        yield running
    finally:
        running.stop()


class Protected(Mux):
    """mcpmux that believes one issuer, ready at `url`."""

    def __init__(self, directory: Path, issuer: str, **auth: Any) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/mcp"
        path = directory / "mcpmux.json"
        demo = {"command": sys.executable, "args": ["-m", "mcpmux.demo.clock"]}
        settings = {"issuers": {"corp": {"issuer": issuer}}, "resource": self.url, **auth}
        listeners = {"http": [f"127.0.0.1:{port}"]}
        path.write_text(json.dumps({"upstreams": {"clock": demo}, "auth": settings, "listeners": listeners}))
        super().__init__(path)
        assert self.line().strip() == self.url

    def list_tools(self, token: str | None) -> tuple[int, Any, Any]:
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": "tools/list",
        }
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}
        return ask(self.url, body, None, **headers)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_sdk_finds_its_way_from_nothing_to_a_tool(
    authority: Authority, tmp_path: Path, sdk2_python: str, mode: str
) -> None:
    """Metadata, registration, code with PKCE, token for our resource, and a step-up for the tool."""
    auth = {"required_scopes": ["read"], "method_scopes": {"tools/call": ["tools"]}}
    with Protected(tmp_path, authority.issuer, **auth) as mux:
        command = [sdk2_python, str(HERE / "oauth_client.py"), mux.url, mode, "clock__now"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        seen = json.loads(done.stdout)
        assert seen["tools"] == ["clock__now"]
        assert not seen["failed"]
        assert seen["resources"] == [mux.url]
        assert "read" in seen["scopes"][0]
        assert "tools" in seen["scopes"][-1]
        assert mux.stop() == 0


def test_what_the_authority_really_issues_comes_in_and_nothing_else(
    authority: Authority, tmp_path: Path
) -> None:
    with Protected(tmp_path, authority.issuer) as mux:
        status, headers, _ = mux.list_tools(None)
        assert status == 401
        place = headers["WWW-Authenticate"].partition('resource_metadata="')[2].rstrip('"')
        status, _, document = ask(place)
        assert (status, document["authorization_servers"]) == (200, [authority.issuer])
        good = authority.token(mux.url)
        assert mux.list_tools(good)[0] == 200
        bad: dict[str, Json] = {
            "expired": {"exp": 1_700_000_000},
            "issuer": {"iss": "http://127.0.0.1:1"},
            "audience": {"aud": "http://127.0.0.1:1/mcp"},
            "not yet": {"nbf": 4_000_000_000},
            "unsigned": {"alg": "none"},
        }
        for name, changes in bad.items():
            authority.say_next(**changes)
            status, headers, _ = mux.list_tools(authority.token(mux.url))
            assert (name, status) == (name, 401)
            assert 'error="invalid_token"' in headers["WWW-Authenticate"]
        authority.say_next()
        assert mux.list_tools(authority.token("http://127.0.0.1:1/mcp"))[0] == 401
        assert mux.list_tools(authority.token(mux.url))[0] == 200
        assert mux.list_tools(good[:-8] + "AAAAAAAA")[0] == 401
        assert mux.list_tools("x" * 20_000)[0] == 401
        assert mux.list_tools(good)[0] == 200
        assert mux.stop() == 0
        assert good not in mux.stderr


def test_rotated_keys_are_found_and_known_ones_outlive_their_authority(
    authority: Authority, tmp_path: Path
) -> None:
    with Protected(tmp_path, authority.issuer) as mux:
        authority.rotate()  # before mcpmux has asked for keys at all
        old = authority.token(mux.url)
        assert mux.list_tools(old)[0] == 200
        unseen = authority.token(mux.url)
        authority.stop()
        assert mux.list_tools(old)[0] == 200
        assert mux.list_tools(unseen)[0] == 200  # with the keys that are known
        assert mux.stop() == 0
