"""mcpmux in front of a real protected server (Python SDK 2.x) with a real authorization server (Authlib)."""

from __future__ import annotations

import json
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import ECKey

from tests.process.running import WAIT_SECONDS, Running
from tests.real.test_oauth import Authority, Json, Protected, ask

HERE = Path(__file__).parent


class Guarded:
    """The protected server, at `url`."""

    def __init__(self, python: str, issuer: str, *scopes: str) -> None:
        program = [python, str(HERE / "guarded_server.py"), issuer, *scopes]
        self._process = subprocess.Popen(
            program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(WAIT_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture(scope="module")
def shared_authority() -> Iterator[Authority]:
    running = Authority()
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def authority(shared_authority: Authority) -> Authority:
    """Reset the shared authority to correct tokens, and return it."""
    shared_authority.say_next()
    return shared_authority


@pytest.fixture(scope="module")
def guarded(shared_authority: Authority, sdk2_python: str) -> Iterator[Guarded]:
    running = Guarded(sdk2_python, shared_authority.issuer, "read")
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which mcpmux keeps logins."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "mcpmux" / "logins"


def write_config(directory: Path, url: str, **oauth: Any) -> Path:
    path = directory / "mcpmux.json"
    path.write_text(json.dumps({"upstreams": {"up": {"url": url, "oauth": oauth}}}))
    return path


def run(*arguments: str) -> tuple[int, str, str]:
    with Running(*arguments) as command:
        code = command.wait()
        return code, command.stdout, command.stderr


def log_in(config: Path, *options: str) -> tuple[int, str]:
    """Log in, open the URL like a person's browser, and return the exit code and stderr."""
    with Running("auth", "login", "up", "-c", str(config), "--no-browser", *options) as command:
        url = command.line().strip()
        # The person's browser follows the redirect to mcpmux, whose page is no JSON.
        with pytest.raises(json.JSONDecodeError):
            ask(url)
        return command.wait(), command.stderr


def who_am_i(config: Path) -> str:
    code, stdout, error = run("call", str(config), "up__whoami")
    assert code == 0, error
    return stdout.strip()


def kept(state: Path) -> Any:
    (path,) = state.glob("*.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return json.loads(path.read_text())


def test_from_nothing_to_a_tool_and_back(
    authority: Authority, guarded: Guarded, tmp_path: Path, state: Path
) -> None:
    config = write_config(tmp_path, guarded.url)
    code, _, error = run("call", str(config), "up__whoami")
    assert code == 1
    assert "run `mcpmux auth login up`" in error
    status = ("auth", "status", "-c", str(config))
    assert run(*status)[0] == 1
    assert log_in(config)[0] == 0
    assert who_am_i(config) == "alice: offline_access read"
    code, stdout, _ = run(*status)
    assert code == 0
    assert "logged in" in stdout
    secrets = [kept(state)["tokens"]["access"], kept(state)["tokens"]["refresh"]]
    assert not [secret for secret in secrets if secret in stdout]
    assert run("auth", "logout", "up", "-c", str(config))[0] == 0
    assert run(*status)[0] == 1
    assert not list(state.iterdir())


def test_expired_tokens_are_refreshed_and_nothing_secret_is_logged(
    authority: Authority, guarded: Guarded, tmp_path: Path, state: Path
) -> None:
    config = write_config(tmp_path, guarded.url)
    authority.say_next(lifetime=1)
    assert log_in(config)[0] == 0
    first = kept(state)["tokens"]
    authority.say_next()
    path = next(state.glob("*.json"))
    login = json.loads(path.read_text())
    login["tokens"]["expires"] = 0
    path.write_text(json.dumps(login))
    with Running("serve", str(config), "--stdio", "--log-level", "debug") as mux:
        mux.send_json({"id": 1, "method": "initialize", "params": INITIALIZE})
        assert mux.receive_json()["id"] == 1
        mux.send_json({"method": "notifications/initialized"})
        mux.send_json({"id": 2, "method": "tools/call", "params": {"name": "up__whoami", "arguments": {}}})
        while (answer := mux.receive_json()).get("id") != 2:
            pass
        assert answer["result"]["content"][0]["text"] == "alice: offline_access read", answer
        mux.close_stdin()
        assert mux.wait() == 0
        log = mux.stderr
    second = kept(state)["tokens"]
    assert second["refresh"] != first["refresh"], "rotated"
    assert "new token" in log
    for tokens in (first, second):
        assert tokens["access"] not in log
        assert tokens["refresh"] not in log


INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


def test_client_credentials_of_a_file(
    authority: Authority, guarded: Guarded, tmp_path: Path, state: Path
) -> None:
    wish = {"grant_types": ["client_credentials"], "redirect_uris": ["http://127.0.0.1:9/"]}
    _, _, client = ask(f"{authority.issuer}/register", wish)
    (tmp_path / "secret").write_text(client["client_secret"] + "\n")
    config = write_config(
        tmp_path,
        guarded.url,
        grant="client_credentials",
        issuer=authority.issuer,
        client_id=client["client_id"],
        client_secret=f"${{file:{tmp_path / 'secret'}}}",
    )
    assert who_am_i(config) == f"{client['client_id']}: read"
    assert not state.exists()
    (tmp_path / "secret").write_text("wrong")
    code, _, error = run("call", str(config), "up__whoami")
    assert code == 1
    assert "'invalid_client'" in error
    assert "check the upstream's `oauth` settings" in error


def register(authority: Authority, *grants: str, **more: Any) -> Json:
    wish = {"grant_types": grants, "redirect_uris": ["http://127.0.0.1/callback"], **more}
    status, _, client = ask(f"{authority.issuer}/register", wish)
    assert status == 201, client
    return {"client_id": client["client_id"], "client_secret": client["client_secret"]}


def register_key(authority: Authority, grant: str) -> Json:
    """Register the client `mcpmux` with a new key. Return its credentials."""
    key = ECKey.generate_key("P-256")
    register(authority, grant, client_id="mcpmux", jwks={"keys": [key.as_dict(private=False)]})
    return {"client_id": "mcpmux", "private_key": key.as_pem(private=True).decode()}


def test_client_credentials_with_a_key(
    authority: Authority, guarded: Guarded, tmp_path: Path, state: Path
) -> None:
    client = register_key(authority, "client_credentials")
    config = write_config(tmp_path, guarded.url, grant="client_credentials", **client)
    assert who_am_i(config) == "mcpmux: read"
    register_key(authority, "client_credentials")  # another one in its place
    code, _, error = run("call", str(config), "up__whoami")
    assert code == 1
    assert "'invalid_client'" in error


def test_an_identity_provider_decides_who_may_use_an_upstream(
    authority: Authority, guarded: Guarded, tmp_path: Path, state: Path
) -> None:
    client = register_key(authority, "urn:ietf:params:oauth:grant-type:jwt-bearer")
    provider = Authority()
    try:
        exchange = "urn:ietf:params:oauth:grant-type:token-exchange"
        there = register(provider, "authorization_code", exchange) | {"issuer": provider.issuer}
        oauth = {"grant": "identity_assertion", "identity_provider": there, **client}
        config = write_config(tmp_path, guarded.url, **oauth)
        status = ("auth", "status", "-c", str(config))
        assert run(*status)[0] == 1
        assert log_in(config)[0] == 0
        assert who_am_i(config) == "alice: read"
        assert run(*status)[0] == 0
        provider.say_next(deny=True)
        code, _, error = run("call", str(config), "up__whoami")
        assert code == 1
        assert "not for alice" in error
    finally:
        provider.stop()


def test_consent_that_is_denied(authority: Authority, guarded: Guarded, tmp_path: Path, state: Path) -> None:
    config = write_config(tmp_path, guarded.url)
    authority.say_next(deny=True)
    code, error = log_in(config)
    assert code == 1
    assert "'access_denied'" in error
    assert not state.exists()


def test_a_login_for_more(authority: Authority, sdk2_python: str, tmp_path: Path, state: Path) -> None:
    server = Guarded(sdk2_python, authority.issuer, "read", "tools")
    try:
        config = write_config(tmp_path, server.url, scopes=["read"])
        assert log_in(config)[0] == 0
        code, _, error = run("call", str(config), "up__whoami")
        assert code == 1
        assert "it wants more than the login allows" in error
        assert "tools" in error
        assert log_in(config)[0] == 0, "it asks for what was missing"
        assert who_am_i(config) == "alice: offline_access read tools"
    finally:
        server.stop()


def test_a_mux_behind_a_mux(authority: Authority, tmp_path: Path, state: Path) -> None:
    """mcpmux believes mcpmux's own metadata."""
    with Protected(tmp_path, authority.issuer, required_scopes=["read"]) as inner:
        outer = tmp_path / "outer"
        outer.mkdir()
        config = write_config(outer, inner.url)
        assert log_in(config)[0] == 0
        code, stdout, error = run("call", str(config), "up__clock__now")
        assert code == 0, error
        assert stdout
        assert inner.stop() == 0
