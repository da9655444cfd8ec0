"""`mcpmux auth`, and `serve` with it: as a user would."""

from __future__ import annotations

import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.cli.invoking import Invoke
from tests.process.running import WAIT_SECONDS, Running, demo_command, demo_table


def run(*arguments: str, stdin: bytes | None = None) -> tuple[int, str, str]:
    with Running("auth", *arguments, stdin=stdin) as command:
        code = command.wait()
        return code, command.stdout, command.stderr


def test_a_new_token_comes_with_a_table_that_has_only_its_hash() -> None:
    code, token, table = run("new-token", "alice.b", "--scope", "read")
    assert code == 0
    assert tomllib.loads(table[table.index("[auth") :])["auth"]["tokens"]["alice.b"]["scopes"] == ["read"]
    assert token.strip() not in table
    code, hashed, _ = run("hash-token", stdin=token.encode())
    assert code == 0
    assert f'sha256 = "{hashed.strip()}"' in table


def test_a_client_of_the_command_line_shows_its_token(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, token, table = run("new-token", "ann")
    config = tmp_path / "mcpmux.toml"
    config.write_text(f"{demo_table('clock')}[listeners]\nhttp = ['127.0.0.1:0']\n{table}")
    with Running("serve", str(config)) as mux:
        url = mux.line().strip()
        assert "weekday" in invoke("call", url, "clock__now", "--token", token.strip()).stdout
        assert "clock__now" in invoke("ls", url, "tools", "--token", token.strip()).stdout
        assert "T" in invoke("read", url, "clock+clock:///utc", "--token", token.strip()).stdout
        for header in (f"Authorization: Bearer {token.strip()}", f"authorization=Bearer {token.strip()}"):
            assert "clock__now" in invoke("ls", url, "tools", "--header", header).stdout
        refused = invoke("ls", url, "tools", "--token", token.strip() + "x")
        assert (refused.exit_code, "token is not known" in refused.stderr) == (1, True), refused.stderr
        load = ["bench", url, "--do", "list tools", "--count", "5", "--warm-up", "0"]
        for options, code in ((["--token", token.strip()], 0), ([], 1)):
            ended = invoke(*load, *options)
            assert (ended.exit_code, "bearer token" in ended.stderr) == (code, code == 1), ended.stderr
        monkeypatch.setenv("MCPMUX_TOKEN", token.strip())
        for name in (url, url.split("/")[2]):  # HOST:PORT is the mcpmux there
            assert "clock__now" in invoke("ls", name, "tools").stdout
        assert invoke(*load).exit_code == 0
        monkeypatch.setenv("MCPMUX_TOKEN_FOR", "http://127.0.0.1:1")
        assert invoke("ls", url, "tools").exit_code == invoke(*load).exit_code == 1
        assert mux.stop() == 0


def test_a_token_that_was_removed_from_the_file_is_refused(tmp_path: Path) -> None:
    head = "[upstreams.clock]\ncommand = 'true'\n[listeners]\nhttp = ['127.0.0.1:0']\n"
    (_, ann, anns), (_, ben, bens) = run("new-token", "ann"), run("new-token", "ben")
    tables = [table[table.index("[auth") :] for table in (anns, bens)]
    config = tmp_path / "mcpmux.toml"
    config.write_text(head + "".join(tables))
    with Running("serve", str(config)) as mux:
        url = mux.line().strip()

        def status(shown: str) -> int:
            headers = {"Authorization": f"Bearer {shown.strip()}"}
            with pytest.raises(urllib.error.HTTPError) as answer:
                urllib.request.urlopen(
                    urllib.request.Request(f"{url}/nothing", headers=headers), timeout=WAIT_SECONDS
                )
            answer.value.close()
            return answer.value.code

        assert [status(ann), status(ben), status(ann.strip() + "x")] == [404, 404, 401]
        config.write_text(head + tables[1])
        mux.line("stderr", containing="settings=['auth.tokens']")
        assert [status(ann), status(ben)] == [401, 404]
        config.write_text(head)
        mux.line("stderr", containing="nobody has a token that counts any more")
        assert [status(ann), status(ben), status("")] == [401, 401, 401]
        assert mux.stop() == 0


@pytest.mark.parametrize("token", [b"", b"secret\n", b"correct horse battery staple and more of it\n"])
def test_words_are_no_tokens(token: bytes) -> None:
    code, out, error = run("hash-token", stdin=token)
    assert (code != 0, out) == (True, "")
    assert "at least 32" in error


@pytest.mark.parametrize("arguments", [("a:b",), ("a", "--scope", "x y"), ("a", "--scope", "")])
def test_bad_names_and_scopes_are_refused(arguments: tuple[str, ...]) -> None:
    code, out, _ = run("new-token", *arguments)
    assert (code != 0, out) == (True, "")


def test_an_open_door_does_not_start_unless_it_is_said() -> None:
    serve = ("serve", "--upstream", "clock=" + demo_command("clock"), "--http", "0.0.0.0:0")
    with Running(*serve) as mux:
        assert mux.wait() != 0
        assert "--allow-anyone" in mux.stderr
        assert "Traceback" not in mux.stderr
    with Running(*serve, "--allow-anyone", "--log-level", "error") as mux:
        assert mux.line().startswith("http://0.0.0.0:")
        assert mux.stop() == 0
