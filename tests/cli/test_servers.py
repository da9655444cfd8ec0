"""`mcpmux add` and `mcpmux remove`."""

from __future__ import annotations

import json
import stat
import tomllib
from pathlib import Path

import pytest

from mcpmux.config.reading import parse_jsonc
from mcpmux.hosts.configuration import read_config
from tests.cli.homes import home as home
from tests.cli.invoking import Invoke

TOML = """\
# mine
[upstreams.docs] # a server
command = "npx"

# about access
[[access]]
effect = "allow"
upstreams = ["docs"]
"""
HOST_JSON = """\
{
  // of the host app
  "mcpServers": {
    "My Docs": { "command": "npx" }, // kept
  },
}
"""


def test_a_command_and_a_url_are_added_to_a_new_file(home: Path, invoke: Invoke) -> None:
    added = invoke("add", "time", "--env", "TZ=UTC", "--", "uvx", "mcp-server-time", "--x")
    assert (added.exit_code, added.stdout) == (0, "time: added to mcpmux.toml\n")
    header = "Authorization=Bearer ${T}"
    added = invoke("add", "web", "https://x.example/mcp", "--header", header)
    assert (added.exit_code, added.stderr) == (0, "set these variables first: T\n")
    file = home / "work/mcpmux.toml"
    assert file.read_text() == (
        '[upstreams.time]\ncommand = "uvx"\nargs = ["mcp-server-time", "--x"]\nenv = { TZ = "UTC" }\n\n'
        '[upstreams.web]\nurl = "https://x.example/mcp"\nheaders = { Authorization = "Bearer ${T}" }\n'
    )
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(read_config(str(file), {"T": "x"}, lambda: b"").enabled) == ["time", "web"]


@pytest.mark.parametrize(
    ("target", "entry"),
    [
        (
            ["uvx mcp-server-time --local 'a b'"],
            {"command": "uvx", "args": ["mcp-server-time", "--local", "a b"]},
        ),
        (["--", "uvx mcp-server-time"], {"command": "uvx", "args": ["mcp-server-time"]}),
        (["--", "sh", "-c", "a b"], {"command": "sh", "args": ["-c", "a b"]}),
        (["./my server"], {"command": "./my server"}),
        (["C:\\tools\\server.exe"], {"command": "C:\\tools\\server.exe"}),
        (["C:/tools/server.exe"], {"command": "C:/tools/server.exe"}),  # a drive is no scheme of a URL
    ],
)
def test_a_command_line_in_quotes_is_split(
    home: Path, invoke: Invoke, target: list[str], entry: dict[str, object]
) -> None:
    (home / "work/my server").touch(0o755)
    added = invoke("add", "a", *target)
    assert added.exit_code == 0, added.output
    assert tomllib.loads((home / "work/mcpmux.toml").read_text()) == {"upstreams": {"a": entry}}


def test_comments_of_a_toml_file_stay(home: Path, invoke: Invoke) -> None:
    file = home / "work/mcpmux.toml"
    file.write_text(TOML)
    file.chmod(0o640)
    assert invoke("add", "time", "--", "uvx", "x").exit_code == 0
    assert file.read_text() == TOML + '\n[upstreams.time]\ncommand = "uvx"\nargs = ["x"]\n'
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert invoke("remove", "time").stdout == "time: removed from mcpmux.toml\n"
    assert file.read_text() == TOML


def test_comments_of_a_host_app_s_file_stay(home: Path, invoke: Invoke) -> None:
    file = home / "work/host.json"
    file.write_text(HOST_JSON)
    assert invoke("add", "web", "--file", "host.json", "https://x.example").exit_code == 0
    text = file.read_text()
    assert parse_jsonc(text)["mcpServers"]["web"] == {"url": "https://x.example"}
    assert [line for line in text.splitlines() if line in HOST_JSON.splitlines()] == HOST_JSON.splitlines()
    assert invoke("remove", "web", "--file", "host.json").exit_code == 0
    assert file.read_text() == HOST_JSON
    assert invoke("remove", "my-docs", "--file", "host.json").exit_code == 0
    assert parse_jsonc(file.read_text()) == {"mcpServers": {}}


@pytest.mark.parametrize(
    ("text", "place"),
    [('{"servers": {}}', "servers"), ('{"upstreams": {}}', "upstreams"), ("{}", "mcpServers")],
)
def test_a_server_comes_where_the_others_are(home: Path, invoke: Invoke, text: str, place: str) -> None:
    file = home / "work/x.json"
    file.write_text(text)
    assert invoke("add", "a", "-f", "x.json", "--", "run").exit_code == 0
    assert json.loads(file.read_text()) == {place: {"a": {"command": "run"}}}


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["add", "docs", "--", "x"], "mcpmux.toml: there is `docs` already"),
        (
            ["add", "Docs!", "--", "x"],
            "NAME: expected a name of a-z, 0-9, `.` and `-`, at most 32 characters",
        ),
        (["add", "a", "htp://x.example"], "URL: expected a URL: http://, https://"),
        (["add", "a", "https://"], "URL: expected a URL"),
        (["add", "a", "htp:/x"], "URL: expected a URL: http://, https://"),
        (["add", "a", "localhost:8000/mcp"], "URL: expected a URL: http://, https://"),
        (["add", "a", "https://x.example", "--env", "A=b"], "--env: a URL has no environment"),
        (["add", "a", "--header", "A=b", "--", "x"], "--header: a command has no headers"),
        (["add", "a", "--env", "A", "--", "x"], "--env: expected NAME=VALUE"),
        (["add", "a", "--env", "A=1", "--env", "A=2", "--", "x"], "--env: expected NAME=VALUE"),
        (["add", "a", "https://x.example", "--header", "a b=c"], 'headers."a b": expected the name of an'),
        (["add", "a", "--", "x", "${input:y}"], "upstreams.a.args[0]: `${input:…}` is asked for"),
        (["add", "a"], "expected NAME and a URL or a command, or --registry"),
        (["add", "--", "npx", "foo"], "expected NAME in front of --"),
        (["add", "--env", "A=b", "-f", "mcpmux.toml", "--", "npx", "foo"], "expected NAME in front of --"),
        (
            ["add", "a", "docs.example.com/mcp"],
            "COMMAND: expected a URL or a command; a URL begins with https",
        ),
        (["add", "a", "uvx 'x"], "COMMAND: expected a command line, its quotation marks do not match"),
        (["add"], "expected NAME and a URL or a command, or --registry"),
        (["add", "a", "--registry", "x.json", "--", "x"], "or --registry and perhaps NAME"),
        (["add", "--registry", "none.json"], "--registry: none.json: cannot read the file: No such file"),
        (
            ["add", "--registry", "mcpmux.toml"],
            "--registry: not a server.json of the MCP registry: JSON is malf",
        ),
        (
            ["add", "--registry", "/dev/zero"],
            "--registry: /dev/zero: cannot read the file: it has more than 1048576 bytes",
        ),
        (
            ["add", "--registry", "http://x.example/a"],
            "--registry: expected https://, as x.example is another",
        ),
        (["add", "--registry", "ftp://x.example/a"], "--registry: expected a file, or a URL with https://"),
        (["add", "a", "--trust", "-v", "--", "x"], "--trust is for the document of --registry"),
        (["remove", "dosc"], "there is no server `dosc`; did you mean `docs`?"),
        (["remove", "docs"], "access[0].upstreams: no upstream has the name `docs`"),
        (["remove", "docs", "-f", "none.toml"], "none.toml: there is no such file"),
    ],
)
def test_a_mistake_changes_nothing(home: Path, invoke: Invoke, args: list[str], problem: str) -> None:
    file = home / "work/mcpmux.toml"
    file.write_text(TOML)
    refused = invoke(*args)
    assert (refused.exit_code, problem in refused.stderr) == (2, True), refused.stderr
    assert [path.name for path in file.parent.iterdir()] == ["mcpmux.toml"]
    assert file.read_text() == TOML


@pytest.mark.parametrize("text", ['upstreams = { a = { command = "x" } }', "[upstreams\n", "\udcff"])
def test_a_file_that_cannot_be_changed_stays(home: Path, invoke: Invoke, text: str) -> None:
    file = home / "work/mcpmux.toml"
    file.write_bytes(data := text.encode(errors="surrogateescape"))
    refused = invoke("add", "b", "--", "x")
    assert (refused.exit_code, "mcpmux.toml: " in refused.stderr) == (2, True)
    assert file.read_bytes() == data


def test_mistakes_that_were_there_already_are_no_reason(home: Path, invoke: Invoke) -> None:
    file = home / "work/mcpmux.toml"
    file.write_text('[upstreams.old]\ncommand = "${NOT_SET}"\n')
    assert invoke("add", "new", "--", "x").exit_code == 0


def test_the_last_server_can_be_removed(home: Path, invoke: Invoke) -> None:
    assert invoke("add", "a", "--", "x").exit_code == 0
    assert invoke("remove", "a").exit_code == 0
    assert (home / "work/mcpmux.toml").read_text() == ""


def test_a_secret_in_the_file_is_told_without_it(home: Path, invoke: Invoke) -> None:
    added = invoke("add", "a", "--env", "API_KEY=geheim", "--", "x")
    assert "env API_KEY: the value is in the file" in added.stderr
    assert "geheim" not in added.output


def test_a_link_still_leads_to_the_file(home: Path, invoke: Invoke) -> None:
    (home / "real.toml").write_text(TOML)
    link = home / "work/mcpmux.toml"
    link.symlink_to(home / "real.toml")
    assert invoke("add", "a", "--", "x").exit_code == 0
    assert link.is_symlink()
    assert "upstreams.a" in (home / "real.toml").read_text()


def write_document(home: Path, name: str, **members: object) -> None:
    """Write a server.json of the registry."""
    (home / "work/server.json").write_text(json.dumps({"name": name, **members}))


@pytest.fixture
def _npx(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `npx` the only program in PATH."""
    (home / "bin").mkdir()
    (home / "bin/npx").touch(0o755)
    monkeypatch.setenv("PATH", str(home / "bin"))


@pytest.mark.usefixtures("_npx")
def test_a_registry_document_is_added_and_what_it_needs_is_told(
    home: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = home / "work/mcpmux.toml"
    file.write_text(TOML)
    needs = [
        {"name": "NOTES_KEY", "isSecret": True, "isRequired": True, "description": "from\x1b your account"}
    ]
    package = {
        "registryType": "npm",
        "identifier": "notes",
        "version": "1.2.3",
        "environmentVariables": needs,
    }
    write_document(home, "io.github.jane/Notes", packages=[package | {"transport": {"type": "stdio"}}])
    added = invoke("add", "--registry", "server.json", "--env", "MODE=ro")
    assert (added.exit_code, added.stdout) == (0, "notes: added to mcpmux.toml\n"), added.output
    again = invoke("add", "other", "--registry", "server.json", "--header", "A=b")
    assert again.stderr == "Error: --header: a command has no headers; they are for a URL\n"
    monkeypatch.setenv("PATH", "")
    nothing = invoke("add", "other", "--registry", "server.json")
    assert nothing.stderr == "Error: --registry: notes: there is no `npx` on this machine\n"
    assert file.read_text() == TOML + (
        '\n[upstreams.notes]\ncommand = "npx"\nargs = ["-y", "notes@1.2.3"]\n'
        'env = { NOTES_KEY = "${NOTES_KEY}", MODE = "ro" }\n'
    )
    assert added.stderr == ("NOTES_KEY: from\\x1b your account\nset these variables first: NOTES_KEY\n")


@pytest.mark.usefixtures("_npx")
def test_a_document_sets_no_more_than_is_shown_and_trusted(home: Path, invoke: Invoke) -> None:
    values = {"NODE_OPTIONS": "1\x1b", "PATH": "x", "MODE": "ro"}
    variables = [{"name": name, "value": value} for name, value in values.items()]
    package = {
        "registryType": "npm",
        "identifier": "notes",
        "transport": {"type": "stdio"},
        "runtimeArguments": [{"type": "named", "name": "--call", "value": "sh"}],
        "environmentVariables": variables,
    }
    write_document(home, "a/notes", packages=[package])
    refused = invoke("add", "--registry", "server.json")
    assert refused.exit_code == 2
    assert all(f"--trust {name}" in refused.stderr for name in ("--call", "NODE_OPTIONS", "PATH"))
    assert not (home / "work/mcpmux.toml").exists()
    words = ["--trust", "--call", "--trust", "NODE_OPTIONS", "--env", "PATH=/bin"]
    added = invoke("add", "--registry", "server.json", *words)
    assert added.stderr == (
        "the document sets NODE_OPTIONS=1\\x1b\nthe document sets MODE=ro\n"
        "the document has an argument for `npx`: --call sh\n"
    )
    entry = tomllib.loads((home / "work/mcpmux.toml").read_text())["upstreams"]["notes"]
    assert entry["args"] == ["-y", "--call", "sh", "notes"]
    assert entry["env"] == {"NODE_OPTIONS": "1\x1b", "PATH": "/bin", "MODE": "ro"}


def test_a_document_at_a_url_that_is_not_there_is_a_failure(
    home: Path, invoke: Invoke, demo_url: str
) -> None:
    refused = invoke("add", "--registry", demo_url + "/a/b?key=geheim")
    assert refused.exit_code == 1
    assert refused.stderr == f"Error: {demo_url}/a/b?*** answered with status 404\n"


def test_a_running_mcpmux_is_added_by_its_server_card(home: Path, invoke: Invoke, demo_url: str) -> None:
    added = invoke("add", "demo", "--registry", f"{demo_url}/server-card")
    shown = f"the document sends requests to {demo_url}\n"  # before the file is written
    assert (added.exit_code, added.output) == (0, f"{shown}demo: added to mcpmux.toml\n")
    assert (home / "work/mcpmux.toml").read_text() == f'[upstreams.demo]\nurl = "{demo_url}"\n'


def test_a_header_of_the_user_replaces_one_of_the_document(home: Path, invoke: Invoke) -> None:
    header = {"name": "Authorization", "value": "Bearer theirs"}
    remote = {"type": "streamable-http", "url": "https://x.example/mcp", "headers": [header]}
    write_document(home, "a/notes", remotes=[remote])
    refused = invoke("add", "--registry", "server.json")
    assert (refused.exit_code, "--trust Authorization" in refused.stderr) == (2, True)
    assert not (home / "work/mcpmux.toml").exists()
    added = invoke("add", "--registry", "server.json", "--header", "Authorization: Bearer ${MINE}")
    assert (added.exit_code, "theirs" in added.stderr) == (0, False)
    theirs = invoke("add", "other", "--registry", "server.json", "--trust", "Authorization")
    assert "the document sets the header Authorization: Bearer theirs" in theirs.stderr
    entry = tomllib.loads((home / "work/mcpmux.toml").read_text())["upstreams"]["notes"]
    assert entry["headers"] == {"Authorization": "Bearer ${MINE}"}


def test_a_secret_that_is_set_goes_to_a_stranger_only_by_consent(home: Path, invoke: Invoke) -> None:
    token = {"isRequired": True, "isSecret": True}
    header = {"name": "Authorization", "value": "{secret_access_key}"}
    header["variables"] = {"secret_access_key": token}  # type: ignore[assignment]
    remote = {"type": "streamable-http", "url": "https://x.example/mcp", "headers": [header]}
    write_document(home, "evil/aws", remotes=[remote])
    name = "AWS_SECRET_ACCESS_KEY"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, "geheim")
        refused = invoke("add", "--registry", "server.json")
        assert refused.exit_code == 2
        assert f"`{name}` is sent to https://x.example/mcp in the header Authorization" in refused.stderr
        assert f"--trust {name}" in refused.stderr
        assert not (home / "work/mcpmux.toml").exists()
        mine = invoke("add", "mine", "--registry", "server.json", "--header", "authorization=x")
        assert (mine.exit_code, name in mine.stderr) == (0, False)
        assert name not in (home / "work/mcpmux.toml").read_text()
        added = invoke("add", "--registry", "server.json", "--trust", name)
    shown = f"the variable {name} is sent to https://x.example/mcp in the header Authorization\n"
    assert (added.exit_code, shown in added.stderr, "geheim" in added.output) == (0, True, False)
