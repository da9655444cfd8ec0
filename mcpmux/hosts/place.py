"""Find the configuration files of host apps on Linux, macOS and Windows. Nothing is read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from attrs import evolve, field, frozen

from mcpmux.hosts.host import HOSTS, Host

MACOS, WINDOWS = "darwin", "win32"


@frozen
class Machine:
    """The facts that determine where files are. `platform` is as in `sys.platform`."""

    platform: str
    home: Path
    environ: Mapping[str, str] = field(factory=dict)
    project: Path | None = None
    """The folder of the project whose files count, too."""

    @property
    def separator(self) -> str:
        """The separator of the parts of a path."""
        return "\\" if self.platform == WINDOWS else "/"


def this_machine(environ: Mapping[str, str], project: Path | None = None) -> Machine:
    """Return the present machine. `project` is the current folder by default."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  # unlike Path.home it never raises
    return Machine(sys.platform, home, environ, Path.cwd() if project is None else project.absolute())


@frozen
class Place:
    """A file in which a host app may have servers. `project`: the folder that it is for, None for all."""

    host: Host
    path: Path
    project: Path | None = None


def find_places(machine: Machine, names: Iterable[str] = HOSTS) -> Iterator[Place]:
    """Yield every possible file of these hosts: those of the user first, then of the project."""
    folders = find_folders(machine)
    for name in dict.fromkeys(names):
        host = HOSTS[name]
        named = machine.environ.get(host.file_variable) if host.file_variable else None
        if named:
            yield Place(host, Path(named))
        for folder, inside in host.user_files[1 if named else 0 :]:
            yield Place(host, folders[folder] / inside)
        if machine.project is not None and machine.project != machine.home:
            for inside in host.project_files:
                yield Place(host, machine.project / inside, machine.project)


def recognize(path: Path, machine: Machine) -> Place | None:
    """Return the place of the file at `path`, a host app's or a project's; None for any other file."""
    path = Path(os.path.abspath(path))  # noqa: PTH100  # without `..`, and links stay
    for place in find_places(evolve(machine, project=None)):
        if place.path == path:
            return place
    for host in HOSTS.values():
        for inside in host.project_files:
            if path.as_posix().endswith(f"/{inside}"):
                return Place(host, path, path.parents[inside.count("/")])
    return None


def find_folders(machine: Machine) -> dict[str, Path]:
    """Return the folders that the table of hosts names."""
    home = machine.home

    def named(variable: str, default: Path) -> Path:
        value = machine.environ.get(variable)
        return Path(value) if value else default

    if machine.platform == WINDOWS:
        apps = config = named("APPDATA", home / "AppData/Roaming")
        own = {"zed": apps / "Zed", "goose": apps / "Block/goose/config"}
    else:
        config = named("XDG_CONFIG_HOME", home / ".config")
        apps = home / "Library/Application Support" if machine.platform == MACOS else config
        own = {"zed": config / "zed", "goose": config / "goose"}
    return {
        "home": home,
        "apps": apps,
        "claude": named("CLAUDE_CONFIG_DIR", home),
        "codex": named("CODEX_HOME", home / ".codex"),
        "cline": named("CLINE_DATA_DIR", named("CLINE_DIR", home / ".cline") / "data"),
        **own,
    }
