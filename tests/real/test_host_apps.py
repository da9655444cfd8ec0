"""mcpmux as host apps use it: started by a real client with files of the README, and of the app."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.running import COMMAND, WAIT_SECONDS
from tests.real.merged import own_name, owner_of_name
from tests.real.mux import START_SECONDS, Json
from tests.real.parts import ROOT, npm_env
from tests.real.walker import WALKERS, see
from tests.whole import when_whole

README = (ROOT / "README.md").read_text()
NOWHERE = "http://127.0.0.1:1"  # refuses connections

CLIENTS = [
    ("python-1", "mcpServers"),
    ("typescript-2", "servers"),
    *when_whole(("python-2", "servers"), ("typescript-1.32.2", "mcpServers")),
]
"""Names in WALKERS, each with a key that host apps have their servers in."""


def start(server: Json, directory: Path) -> list[str]:
    """Return the command by which a host app starts a server of its file, in this working directory."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"PATH": path, "PYTHONPATH": str(ROOT), **server.get("env", {})}
    variables = [f"{name}={value}" for name, value in env.items()]
    return ["env", "-C", str(directory), *variables, server["command"], *server["args"]]


def call(name: str, **arguments: object) -> tuple[str, Json]:
    return "tools/call", {"name": name, "arguments": arguments}


@pytest.mark.parametrize("client", [client for client, _ in CLIENTS])
def test_the_files_of_the_readme_serve_a_host_app(tmp_path: Path, client: str) -> None:
    (file,) = re.findall(r"^```toml\n(# mcpmux\.toml\n.*?)^```", README, re.DOTALL | re.MULTILINE)
    (host_file,) = re.findall(r"^```json\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    (tmp_path / "mcpmux.toml").write_text(file)
    (tmp_path / "node_modules").symlink_to(npm_env("servers"))  # where npx looks first
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# A\n")
    # The file's other server is an example. Without a proxy that works there is no look-up of its name.
    env = {"HOME": str(tmp_path), "SEARCH_TOKEN": "t", "HTTPS_PROXY": NOWHERE, "npm_config_offline": "true"}
    server = json.loads(host_file.replace("/home/you", str(tmp_path)))["mcpServers"]["mcpmux"]
    asking = [call("docs__read_text_file", path=str(tmp_path / "docs" / "a.md"))]
    started = start({**server, "env": env}, tmp_path)
    try:
        seen = see(WALKERS[client], {"mcpmux": {"command": started, "read": True, "asking": asking}})[
            "mcpmux"
        ]
    finally:  # the process that host apps share would wait a minute for another one
        stop = [*COMMAND, "stop", str(tmp_path / "mcpmux.toml")]
        subprocess.run(stop, env={**os.environ, **env}, timeout=WAIT_SECONDS, check=False)
    assert (seen["server"], seen["revision"]) == ("mcpmux", WALKERS[client].revision)
    assert {owner_of_name(tool["name"]) for tool in seen["tools"]} == {"docs"}
    assert seen["answers"][0]["content"][0]["text"] == "# A\n"


SELECTIONS: dict[str, Json] = {
    "everything": {"includeTools": ["echo", "get-*"], "disabledTools": ["get-env"]},
    "memory": {"excludeTools": ["delete_*"]},
}


def is_selected(tool: str) -> bool:
    """Return whether a tool at mcpmux should be there with these selections."""
    if owner_of_name(tool) == "memory":
        return not own_name(tool).startswith("delete_")
    return own_name(tool) == "echo" or (own_name(tool).startswith("get-") and own_name(tool) != "get-env")


def stdio_entry(command: list[str]) -> Json:
    """Return the entry of a server in the file of a host app, with time for a slow start."""
    program, *args = command
    patience = {"connect_timeout": START_SECONDS, "list_timeout": START_SECONDS}
    return {"command": program, "args": args, "mcpmux": patience}


@pytest.mark.parametrize(("client", "place"), CLIENTS)
def test_a_client_sees_the_tools_that_a_host_app_has_selected(
    everything_command: list[str], memory_command: list[str], tmp_path: Path, client: str, place: str
) -> None:
    commands = {"everything": everything_command, "memory": memory_command}
    servers = {name: stdio_entry(command) for name, command in commands.items()}
    selected = {name: {**server, **SELECTIONS[name]} for name, server in servers.items()}
    unselected = ("everything__get-env", "memory__delete_entities")
    asking = {"all": [], "selected": [call("everything__echo", message="here"), *map(call, unselected)]}
    targets = {}
    for name, entries in {"all": servers, "selected": selected}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({place: entries}))
        mcpmux = {"command": "mcpmux", "args": ["serve", f"{name}.json", "--stdio"]}
        targets[name] = {"command": start(mcpmux, tmp_path), "read": True, "asking": asking[name]}

    everything, seen = see(WALKERS[client], targets).values()
    tools = [tool for tool in everything["tools"] if is_selected(tool["name"])]
    assert seen["tools"] == tools
    assert {owner_of_name(tool["name"]) for tool in tools} == {"everything", "memory"}
    assert not {*unselected} - {tool["name"] for tool in everything["tools"]}
    for kind in ("resources", "templates", "prompts"):  # which host apps do not select
        assert seen[kind] == everything[kind]
    echo, *errors = seen["answers"]
    assert "here" in echo["content"][0]["text"]
    for name, answer in zip(unselected, errors, strict=True):
        assert f"Unknown tool: {name};" in answer["error"]["message"] + ";"
