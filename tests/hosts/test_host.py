"""Where the files of host apps are on each system."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpmux.hosts.host import HOSTS, Machine, find_places
from tests.hosts.machines import USER_FILES

HOME = Path("/home/you")
APPS, ROAMING = "Library/Application Support", "AppData/Roaming"
MACOS = USER_FILES | {
    "claude-desktop": f"{APPS}/Claude/claude_desktop_config.json",
    "vscode": f"{APPS}/Code/User/mcp.json",
}
WINDOWS = USER_FILES | {
    "claude-desktop": f"{ROAMING}/Claude/claude_desktop_config.json",
    "vscode": f"{ROAMING}/Code/User/mcp.json",
    "zed": f"{ROAMING}/Zed/settings.json",
    "goose": f"{ROAMING}/Block/goose/config/config.yaml",
}


def paths(machine: Machine, *hosts: str) -> list[str]:
    return [str(place.path) for place in find_places(machine, hosts or HOSTS)]


@pytest.mark.parametrize(
    ("platform", "expected"), [("linux", USER_FILES), ("darwin", MACOS), ("win32", WINDOWS)]
)
@pytest.mark.parametrize("host", HOSTS)
def test_each_host_app_has_its_file_on_each_system(
    platform: str, expected: dict[str, str], host: str
) -> None:
    assert paths(Machine(platform, HOME), host)[0] == str(HOME / expected[host])


@pytest.mark.parametrize(
    ("variable", "host", "expected"),
    [
        ("XDG_CONFIG_HOME", "zed", "/else/zed/settings.json"),
        ("XDG_CONFIG_HOME", "vscode", "/else/Code/User/mcp.json"),
        ("CLAUDE_CONFIG_DIR", "claude-code", "/else/.claude.json"),
        ("CODEX_HOME", "codex", "/else/config.toml"),
        ("CLINE_DIR", "cline", "/else/data/settings/cline_mcp_settings.json"),
        ("CLINE_DATA_DIR", "cline", "/else/settings/cline_mcp_settings.json"),
        ("CLINE_MCP_SETTINGS_PATH", "cline", "/else"),
    ],
)
def test_variables_say_where_else_a_file_is(variable: str, host: str, expected: str) -> None:
    assert paths(Machine("linux", HOME, {variable: "/else"}), host)[0] == expected


def test_an_application_folder_of_windows_is_where_its_variable_says() -> None:
    machine = Machine("win32", HOME, {"APPDATA": "/roaming"})
    assert paths(machine, "zed", "goose") == [
        "/roaming/Zed/settings.json",
        "/roaming/Block/goose/config/config.yaml",
    ]


def test_cline_is_also_looked_for_where_older_versions_have_their_file() -> None:
    where = "Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"
    assert paths(Machine("linux", HOME), "cline")[1] == str(HOME / ".config" / where)


def test_files_of_the_project_come_behind_those_of_the_user() -> None:
    machine = Machine("linux", HOME, {}, Path("/project"))
    places = list(find_places(machine))
    projects = {place.host.name: place.path for place in places if place.project is not None}
    assert projects == {
        "claude-code": Path("/project/.mcp.json"),
        "cursor": Path("/project/.cursor/mcp.json"),
        "vscode": Path("/project/.vscode/mcp.json"),
        "zed": Path("/project/.zed/settings.json"),
        "codex": Path("/project/.codex/config.toml"),
        "gemini": Path("/project/.gemini/settings.json"),
    }
    assert paths(machine, "cursor") == ["/home/you/.cursor/mcp.json", "/project/.cursor/mcp.json"]


def test_the_home_folder_is_no_project() -> None:
    assert all(place.project is None for place in find_places(Machine("linux", HOME, {}, HOME)))
