"""Journeys through README files: runs the commands of their blocks, in a temporary folder and home.

The blocks of a page have these meanings. Only ports differ: those of the page are replaced by free ones.

    toml, json   the file that is named last before the block
    sh           commands. Those of a server run on until the end.
    text         what the commands before it print; `…` is any text in a line, or, alone in a line, any lines.
                 A command fails if it prints an error there. Spaces in a row are like one.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from attrs import frozen

from benchmarks.process import free_port
from tests.process.running import WAIT_SECONDS, wait_until
from tests.real.parts import ROOT

PORT = re.compile(r"\b(84\d\d|85\d\d|6390)\b")
SERVER = re.compile(
    r"^(?:REPLICA=(\w+) )?.*?\b(mcpmux serve|mcpmux demo|redis-server|haproxy)\b(?!.*--stdio)", re.MULTILINE
)


@frozen
class Block:
    """A fenced block of a page: its language, its text, and the file that is named last before it."""

    kind: str
    text: str
    file: str = ""


def blocks_of(page: str, heading: str = "") -> list[Block]:
    """Return the blocks of a page of this repository, or of its section with that heading."""
    text = (ROOT / page).read_text()
    if heading:
        text = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert text, f"{page} has no section {heading}"
    blocks = []
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        named = re.findall(r"`([^`\s]+\.(?:toml|json))`", text[: match.start()])
        blocks.append(Block(match[1], match[2], named[-1] if named else ""))
    return blocks


def pattern_of(text_block: str) -> re.Pattern[str]:
    """Return the pattern of a text block. Any lines end where the next line of the block is found."""
    pattern, after_any = "", False
    for line in squeeze(text_block).splitlines():
        text = ".*?".join(map(re.escape, line.split("…"))) + "\n"
        if line != "…":
            pattern += rf"(?>(?:.*\n)*?{text})" if after_any else text
        after_any = line == "…"
    return re.compile(pattern + r"(?:.*\n)*" * after_any)


def squeeze(text: str) -> str:
    """Return the text without what depends on the widths of columns."""
    return re.sub(r" *$", "", re.sub(r"(?<=\S) {2,}", " ", text), flags=re.MULTILINE)


class Place:
    """A folder, a home and ports for the commands of one page. Servers are killed at the end.

    The name of a server is that of its program, or of the replica that it is.
    """

    def __init__(self, home: Path, folder: Path) -> None:
        self.home, self.folder = home, folder
        self._ports: dict[str, str] = {}
        self._servers: dict[str, str] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._env: dict[str, str] = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MCPMUX_")},
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "npm_config_offline": "true",
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self._running):
            self.kill(name)

    def port(self, number: str) -> str:
        """Return the free port that stands for one of the page."""
        if number not in self._ports:
            self._ports[number] = str(free_port())
        return self._ports[number]

    def with_free_ports(self, text: str) -> str:
        page = text.replace("mcpmux demo\n", "mcpmux demo --http 127.0.0.1:8484\n")  # where it listens anyway
        return PORT.sub(lambda match: self.port(match[0]), page)

    def put(self, file: str, text: str) -> None:
        """Write a file of the page."""
        path = self.folder / file.replace("~", str(self.home), 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.with_free_ports(text))

    def run(self, commands: str, code: int = 0) -> str:
        """Run commands to their end: what they print."""
        process = self._start(commands, subprocess.PIPE)
        try:
            output = process.communicate(timeout=WAIT_SECONDS)[0].decode()
        finally:
            _kill(process)
        assert process.returncode == code, output
        return output

    def start(self, name: str) -> None:
        """Start a server, with the commands that have started it before."""
        with self._log(name).open("ab") as log:
            self._running[name] = self._start(self._servers[name], log)

    def kill(self, name: str) -> None:
        """Kill a server, together with its shell."""
        _kill(self._running.pop(name))

    def said(self, name: str) -> str:
        """Return everything that a server has printed."""
        return self._log(name).read_text()

    def follow(self, blocks: list[Block]) -> None:
        """Run the commands of a section, and compare the output."""
        for block, after in zip(blocks, [*blocks[1:], Block("", "")], strict=True):
            if block.kind in ("toml", "json"):
                self.put(block.file, block.text)
            elif block.kind == "sh":
                expected = after.text if after.kind == "text" else "…\n"
                self._follow(block.text, self.with_free_ports(expected))

    def _follow(self, commands: str, expected: str) -> None:
        pattern, server = pattern_of(expected), SERVER.search(commands)
        if server is None:
            output = squeeze(
                self.run(commands, code=1 if re.search("^Error:", expected, re.MULTILINE) else 0)
            )
            assert pattern.fullmatch(output), f"{commands}\nprints\n{output}\nand not\n{expected}"
            return
        name = server[1] or server[2]
        self._servers[name] = commands
        self.start(name)

        def has_said() -> bool:
            if pattern.search(squeeze(self.said(name))):
                return True
            assert self._running[name].poll() is None, self.said(name)
            return False

        wait_until(has_said)

    def _log(self, name: str) -> Path:
        return self.home / f"{name}.log"

    def _start(self, commands: str, output: int | IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["sh", "-e", "-c", self.with_free_ports(commands)],
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a shell and what it has started, and wait for it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
