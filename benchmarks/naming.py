"""Configurations of mcpmux for the upstreams, and its names for their resources and tools. Pure."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from benchmarks.process import PROJECT
from benchmarks.upstream import MODERN, TEXT_BYTES, TOOL, item_uri
from mcpmux.protocol import method as m

CONNECTIONS = 64
READ_ITEMS = 1000  # many, for what a proxy remembers of one URI must not be what is measured


class Load(NamedTuple):
    """Requests of both runs of a pair. `size`: of an answer's text."""

    era: str
    method: str
    subjects: Sequence[str]
    size: int = TEXT_BYTES
    connections: int = CONNECTIONS


CAPTURE = '[capture]\nlevel = "full"\ndirectory = "{folder}/capture"\n'
AUDIT = '[audit]\ndirectory = "{folder}/audit"\n'
ADMIN = "[admin]\nport = 0\n"
READ = Load(MODERN, m.RESOURCES_READ, [item_uri(number) for number in range(READ_ITEMS)])
CALL = READ._replace(method=m.TOOLS_CALL, subjects=[TOOL])


def name_of(number: int) -> str:
    """Return the configured name of an upstream."""
    return f"s{number}"


def exposed_uri(number: int) -> str:
    """Return the first resource of an upstream, as clients of mcpmux see it."""
    return f"{name_of(number)}+{item_uri(0)}"


def exposed_subjects(load: Load, upstreams: int) -> list[str]:
    """Return the subjects of `load`, those of all upstreams in turn, as clients of mcpmux name them."""
    joint = "__" if load.method == m.TOOLS_CALL else "+"
    count = max(len(load.subjects), upstreams)
    return [
        f"{name_of(turn % upstreams)}{joint}{load.subjects[turn % len(load.subjects)]}"
        for turn in range(count)
    ]


def http_config(urls: Sequence[str], settings: str = "") -> str:
    """Return a configuration with these servers, all with the same `settings` besides."""
    return "".join(
        f'[upstreams.{name_of(number)}]\nurl = "{url}"\n{settings}' for number, url in enumerate(urls)
    )


def stdio_upstream(core: int, *more: str) -> list[str]:
    """Return the command line of an upstream that serves a pipe. It sets its own core."""
    return [sys.executable, "-m", "benchmarks.upstream", "--stdio", f"--core={core}", *more]


def stdio_config(command: Sequence[str]) -> str:
    """Return a configuration with one server that mcpmux starts. JSON arrays of strings are TOML arrays."""
    words = [msgspec.json.encode(part).decode() for part in (*command, str(PROJECT))]
    first, *middle, project = words
    return f"[upstreams.{name_of(0)}]\ncommand = {first}\nargs = [{', '.join(middle)}]\ncwd = {project}\n"
