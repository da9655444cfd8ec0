from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from mcpmux.cli.check import METHODS_STAY, NO_OBJECT
from tests.cli.invoking import Invoke
from tests.process.running import demo_command, demo_entry, demo_table

pytestmark = pytest.mark.process


def write_servers(folder: Path, **servers: object) -> str:
    """Write a host app's file with these servers, and return its path."""
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    return str(file)


def test_every_upstream_gets_a_row(invoke: Invoke, demo_url: str) -> None:
    result = invoke("check", "--upstream", f"web={demo_url}", "--upstream", "old=" + demo_command("clock"))
    assert (result.exit_code, result.stderr) == (0, "")
    heading, web, old = result.stdout.splitlines()
    assert heading.split()[:5] == ["NAME", "STATE", "VIA", "REVISION", "RESOURCES"]
    assert web.split()[:8] == ["web", "ready", "http", "2026-07-28", "36", "1", "4", "1"]
    assert old.split()[:8] == ["old", "ready", "stdio", "2025-11-25", "1", "0", "1", "-"]
    assert web.endswith("completions, prompts, resources, tools")


def test_failed_upstream_says_why_and_fails_the_command(invoke: Invoke) -> None:
    result = invoke(
        "check", "--upstream", "gone=http://127.0.0.1:1/mcp", "--upstream", "good=" + demo_command("clock")
    )
    assert result.exit_code == 1
    _, gone, good = result.stdout.splitlines()
    assert gone.split()[:3] == ["gone", "down", "http"]
    assert "cannot connect to 127.0.0.1:1" in gone
    assert good.split()[1] == "ready"
    assert result.stderr == "Error: 1 of 2 upstreams have problems: gone\n"


@pytest.fixture
def file_of_three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the default configuration file, in which one server works, one does not, and one is disabled."""
    monkeypatch.chdir(tmp_path)
    text = (
        demo_table("clock").replace("clock]", "good]") + '[upstreams.gone]\nurl = "http://127.0.0.1:1/mcp"\n'
    )
    text += demo_table("clock").replace("clock]", "off]\nenabled = false")
    (tmp_path / "mcpmux.toml").write_text(text + '[[access]]\neffect = "allow"\nupstreams = ["gone"]\n')


@pytest.mark.usefixtures("file_of_three")
@pytest.mark.parametrize("args", [["good", "off"], ["mcpmux.toml", "off", "good"]], ids=" ".join)
def test_only_the_named_upstreams_are_checked(invoke: Invoke, args: list[str]) -> None:
    result = invoke("check", *args)
    assert result.exit_code == 0, result.output
    assert [line.split()[:2] for line in result.stdout.splitlines()[1:]] == [
        ["good", "ready"],
        ["off", "ready"],
    ]


@pytest.mark.usefixtures("file_of_three")
def test_an_upstream_that_is_not_there_is_a_mistake(invoke: Invoke) -> None:
    result = invoke("check", "goo")
    assert (result.exit_code, result.stderr) == (
        2,
        "Error: NAME: there is no upstream `goo`; did you mean `good`?\n",
    )


def test_inherited_variables_of_programs_are_shown(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "mcpmux.toml"
    _, _, clock = demo_table("clock").partition("\n")
    settings = {"all": "", "few": "inherit_env = false\n", "named": 'inherit_env = ["PATH", "LANG"]\n'}
    file.write_text("".join(f"[upstreams.{name}]\n{clock}{text}" for name, text in settings.items()))
    result = invoke("check", str(file))
    assert result.exit_code == 0, result.output
    shown = {line.split()[0]: line.partition(" s  ")[2] for line in result.stdout.splitlines()[1:]}
    details = "resources, tools"
    assert {name: text.removesuffix(details).strip() for name, text in shown.items()} == {
        "all": "all",
        "few": "safe",
        "named": "2 named",
    }
    upstreams = [json.loads(line) for line in invoke("check", str(file), "--json").stdout.splitlines()]
    assert upstreams[2]["inheritEnv"] == ["PATH", "LANG"]


def test_server_without_its_variable_is_down_and_others_are_ready(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "mcpmux.toml"
    clock = demo_table("clock")
    lacking = clock.replace("clock", "mail", 1) + 'env = { KEY = "${UNSET_9}" }\n'
    file.write_text(f'env_file = "no.env"\n{clock}{lacking}')
    result = invoke("check", str(file))
    assert result.exit_code == 1
    _, good, mail = result.stdout.splitlines()
    assert good.split()[:2] == ["clock", "ready"]
    assert mail.split()[:3] == ["mail", "down", "missing"]
    assert "env.KEY: the environment variable `UNSET_9` is not set; set it" in mail
    warning = "env_file: expected a readable file of `NAME=value` lines: No such file or directory"
    assert result.stderr == (f"warning: {warning}\nError: 1 of 2 upstreams have problems: mail\n")
    listed = invoke("ls", str(file), "tools")
    assert "clock__now" in listed.stdout
    assert "mail" in listed.stderr


INSTALLER = "import sys; sys.exit('error code E404\\n' + 'a note\\n' * 30 + 'a log is in /tmp/x')"


def test_the_first_words_of_a_failed_server_are_shown_with_the_last(invoke: Invoke, tmp_path: Path) -> None:
    broken = {"command": sys.executable, "args": ["-c", INSTALLER]}
    file = write_servers(tmp_path, broken=broken, clock=demo_entry("clock"))
    result = invoke("check", file)
    assert "the process exited with status 1; it said: error code E404 | a note" in result.stdout
    assert "a note | a log is in /tmp/x" in result.stdout
    stderr = invoke("ls", file, "tools").stderr
    assert stderr.startswith("left out: broken: ")
    assert stderr.count("broken") == 1
    assert "the process exited with status 1; it said: error code E404" in stderr


ECHO = "import os, sys; sys.exit('bad key ' + os.environ['API_KEY'])"


def test_what_a_server_was_given_does_not_come_back_in_its_words(invoke: Invoke, tmp_path: Path) -> None:
    server = {"command": sys.executable, "args": ["-c", ECHO], "env": {"API_KEY": "planted-secret"}}
    result = invoke("check", write_servers(tmp_path, echo=server))
    assert "bad key ***" in result.stdout
    assert "planted-secret" not in result.stdout + result.stderr


def test_json_tells_the_same_and_disabled_upstreams_do_no_harm(invoke: Invoke, tmp_path: Path) -> None:
    off = {"command": "x", "disabled": True}
    result = invoke("check", write_servers(tmp_path, off=off, clock=demo_entry("clock")), "--json")
    assert result.exit_code == 0, result.stderr
    off, upstream = [json.loads(line) for line in result.stdout.splitlines()]
    assert off == {
        "name": "off",
        "state": "disabled",
        "transport": "stdio",
        "target": "x",
        "inheritEnv": True,
    }
    assert upstream.pop("connectSeconds") >= 0
    assert upstream == {
        "name": "clock",
        "state": "ready",
        "transport": "stdio",
        "target": f"{sys.executable} …",
        "inheritEnv": True,
        "revision": "2025-11-25",
        "capabilities": ["resources", "tools"],
        "counts": {"resources": 1, "templates": 0, "tools": 1},
    }


TALKATIVE = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "tools/list":
        said = {"level": "info", "data": "listing"}
        print(json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": said}), flush=True)
        result = {"tools": []}
    else:
        result = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
    result |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def test_log_messages_that_nobody_asked_for_are_told(invoke: Invoke, tmp_path: Path) -> None:
    script = tmp_path / "talkative.py"
    script.write_text(TALKATIVE)
    result = invoke("check", "--upstream", f"loud={sys.executable} {script}")
    assert (result.exit_code, result.stderr) == (0, "")
    note = "tools; sends log messages to requests that name no logLevel (1): they are dropped"
    assert result.stdout.splitlines()[1].endswith(note)


EXTENDED = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    result = {"supportedVersions": ["2026-07-28"], "capabilities": json.loads(sys.argv[1])}
    result |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def test_extensions_are_listed_with_what_clients_are_told(invoke: Invoke, tmp_path: Path) -> None:
    script = tmp_path / "extended.py"
    script.write_text(EXTENDED)
    ui = "io.modelcontextprotocol/ui"
    declared = [
        {"extensions": {ui: {}, "com.example/x\x1b": {}}},
        {"extensions": {ui: {}}, "experimental": {"a": 1}},
    ]
    servers = {
        name: {"command": sys.executable, "args": [str(script), json.dumps(capabilities)]}
        for name, capabilities in zip(("one", "two"), declared, strict=True)
    }
    file = write_servers(tmp_path, **servers)
    result = invoke("check", file)
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.split(maxsplit=3) for line in result.stdout.splitlines()[3:]] == [
        [],
        ["EXTENSION", "SERVERS", "CLIENTS", "ARE"],
        ["a", "(experimental)", "two", "not told: its settings are not an object"],
        ["com.example/x\\x1b", "one", "told;", METHODS_STAY],
        [ui, "one,", "two", "told"],
    ]
    first, second = (json.loads(line) for line in invoke("check", file, "--json").stdout.splitlines())
    assert [extension["name"] for extension in first["extensions"]] == ["com.example/x\x1b", ui]
    assert second["extensions"] == [
        {"kind": "experimental", "name": "a", "told": False, "why": NO_OBJECT},
        {"kind": "extensions", "name": ui, "told": True, "why": ""},
    ]


def test_configuration_comes_from_stdin(invoke: Invoke) -> None:
    result = invoke("check", "-", stdin=demo_table("clock").encode())
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[1].startswith("clock  ready")


def test_a_door_that_is_open_to_strangers_is_told(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "mcpmux.toml"
    file.write_text(demo_table("clock") + '[listeners]\nhttp = ["0.0.0.0:8484"]\n')
    result = invoke("check", str(file))
    assert result.exit_code == 2
    assert "ready" in result.stdout
    assert (
        "listeners.http 0.0.0.0:8484: it is reached from the network and nothing asks who comes"
        in " ".join(result.stderr.split())
    )
    assert invoke("check", str(file), "--allow-anyone").exit_code == 0


NOTHING = "selects nothing of what servers have"


def test_names_that_select_nothing_are_told_with_the_nearest_one(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "mcpmux.toml"
    view = """
        [views.some]
        include = [{ kind = "tools", name = "nou" }, { upstream = "clock", name = "now" }]
        exclude = [{ kind = "resources", name = "note:///*" }, { kind = "prompts", name = "xyz*" }]
        """
    file.write_text(demo_table("notes") + demo_table("clock") + view)
    result = invoke("check", str(file))
    assert result.exit_code == 0, result.stderr
    assert result.stderr.splitlines() == [
        f"warning: views.some.include[0].name: `nou` {NOTHING}; did you mean `now`?",
        f"warning: views.some.exclude[1].name: `xyz*` {NOTHING}",
    ]


def test_tools_that_a_host_app_would_not_offer_do_not_count(invoke: Invoke, tmp_path: Path) -> None:
    clock = {**demo_entry("clock"), "disabledTools": ["now", "nwo"]}
    result = invoke("check", write_servers(tmp_path, clock=clock), "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["counts"]["tools"] == 0
    assert result.stderr == f"warning: tools of clock: `nwo` {NOTHING}; did you mean `now`?\n"


def test_overrides_of_what_is_not_there_are_told(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "mcpmux.toml"
    overrides = """
        [[upstreams.clock.overrides]]
        name = "nwo"
        title = "Now"
        [[views.some.overrides]]
        upstream = "clock"
        name = "now"
        rename = "time"
        parameters = { zone = { value = 7 } }
        """
    file.write_text(demo_table("clock") + overrides)
    result = invoke("check", str(file))
    assert result.exit_code == 0, result.stderr
    assert result.stderr.splitlines() == [
        "warning: upstreams: an override of tools of clock: none is called nwo; did you mean `now`?",
        "warning: views.some: an override of now of clock: `value` of zone: 7 is not of type 'string'",
    ]
    assert "clock__time" in invoke("view", str(file), "some").stdout


ODD = """
import json, sys
known = json.loads(sys.argv[1])
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {"error": {"code": -32601, "message": "Method not found"}}
    if asked["method"] == "initialize":
        about = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "odd", "version": "1"}}
        answer = {"result": about | {"capabilities": known["capabilities"]}}
    elif asked["method"] in known:
        answer = {"result": known[asked["method"]]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


@pytest.mark.parametrize(
    ("known", "alone", "code", "warnings"),
    [
        (
            {"capabilities": {"tools": {}}, "tools/list": {"tools": [{"name": "a"}]}},
            False,
            0,
            ["odd: tools a: `inputSchema` is missing (mended)"],
        ),
        (
            {"capabilities": {"tools": {}}, "tools/list": {"tools": [{"name": "a"}, None]}},
            False,
            1,
            ["odd: tools a: `inputSchema` is missing (mended)", "odd: tools: the item is null (left out)"],
        ),
        (
            {"capabilities": {"tools": {}}, "tools/list": {"tools": [{"name": "a"}]}},
            True,
            1,
            ["odd: tools a: `inputSchema` is missing (passed on as it is)"],
        ),
        (
            {"capabilities": {"prompts": {}}, "prompts/list": {"prompts": [{"name": "a"}], "nextCursor": ""}},
            False,
            0,
            [
                "odd: prompts: a page of the list has only items that came before (mended)",
                "odd: prompts: the list does not end but begins again: it is cut there (mended)",
            ],
        ),
        (
            {"capabilities": {}, "tools/list": {"tools": [{}, {}]}, "prompts/list": {"prompts": []}},
            False,
            1,
            ["odd: tools: the server has 2 but does not declare the capability `tools` (hidden)"],
        ),
    ],
    ids=["mended", "left out", "single", "begins again", "undeclared"],
)
def test_what_is_wrong_with_the_lists_of_a_server_is_told(
    invoke: Invoke, tmp_path: Path, known: dict[str, object], alone: bool, code: int, warnings: list[str]
) -> None:
    script, file = tmp_path / "odd.py", tmp_path / "mcpmux.toml"
    script.write_text(ODD)
    arguments = [str(script), json.dumps(known)]
    prefix = 'prefix = ""\n' if alone else ""
    command = f"command = {json.dumps(sys.executable)}\nargs = {json.dumps(arguments)}"
    file.write_text(f"[upstreams.odd]\n{command}\n{prefix}")
    result = invoke("check", str(file))
    lines = [line.removeprefix("warning: ") for line in result.stderr.splitlines() if "warning" in line]
    assert (lines, result.exit_code) == (warnings, code), result.stderr
    assert ("1 of 1 upstreams have problems: odd" in result.stderr) == bool(code)
    upstream = json.loads(invoke("check", str(file), "--json").stdout)
    assert len(upstream["problems"]) == len(warnings)


def test_each_interceptor_is_tried_with_a_made_up_exchange(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "mcpmux.toml"
    tables = (
        'builtin = "approve"',
        'builtin = "redact"\nname = "clean"\non = ["result"]',
        'webhook = "http://127.0.0.1:1/x"',
    )
    file.write_text(demo_table("clock") + "".join(f"[[intercept]]\n{table}\n" for table in tables))
    result = invoke("check", str(file))
    assert result.exit_code == 0, result.output
    approve, clean, webhook = result.stdout.splitlines()[-3:]
    assert approve == (
        "interceptor intercept[0]: tools/call, request: asks the user: Allow tools/call example with {}?"
    )
    assert clean == "interceptor clean: tools/call, result: lets it pass"
    assert webhook.startswith("interceptor intercept[2]: tools/call, request: fails: cannot connect")
    file.write_text(demo_table("clock") + '[[intercept]]\npython = "no_such_module:f"\n')
    result = invoke("check", str(file))
    assert result.exit_code == 2
    assert "intercept[0].python: cannot import no_such_module" in result.stderr
