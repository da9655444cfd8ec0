"""Completion in real shells: what a person sees after Tab."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.process.running import WAIT_SECONDS
from tests.real.parts import ROOT, program

SHELLS = {
    "bash": (("--norc", "-i"), "PS1=READY; source <(mcpmux completion bash)"),
    "zsh": (
        ("-f", "-i"),
        'PS1=READY; autoload -Uz compinit; compinit -u; eval "$(mcpmux completion zsh)"',
    ),
    "fish": (("--no-config", "-i"), "function fish_prompt; echo READY; end; mcpmux completion fish | source"),
}
"""A shell -> how it is started without a person's settings, and what makes it complete."""
COMPLETED = {
    "mcpmux uninst": "mcpmux uninstall ",
    "mcpmux add --hea": "mcpmux add --header ",
    "mcpmux remove no": "mcpmux remove notes ",
    "mcpmux traffic tail durat": "mcpmux traffic tail duration=",
}
"""A command line -> what Tab makes of it: a command, an option, a server of the file, the key of a filter."""
TAB, BEGINNING, END = b"\t", b"\x01", b"\x05"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_words(tmp_path: Path, shell: str) -> None:
    (tmp_path / "mcpmux.toml").write_text('[upstreams.notes]\nurl = "http://x.test"\n')
    (tmp_path / "mcpmux").write_text(f'#!/bin/sh\nexec {sys.executable} -m mcpmux "$@"\n')
    (tmp_path / "mcpmux").chmod(0o755)
    options, script = SHELLS[shell]
    home = {"HOME": str(tmp_path), "TERM": "dumb", "PYTHONPATH": str(ROOT)}
    env = {**os.environ, **home, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    path = program(shell)
    pid, screen = pty.fork()
    if not pid:
        os.chdir(tmp_path)
        os.execve(path, [shell, *options], env)
    try:
        os.write(screen, script.encode() + b"; echo it is $(echo set)\n")
        wait_for(screen, "it is set")
        for line, whole in COMPLETED.items():
            # The next letters show whether a blank is there. Then the line becomes the argument of `echo`.
            os.write(screen, line.encode() + TAB + b"next" + BEGINNING + b"echo line:" + END + b"\n")
            wait_for(screen, f"\nline:{whole}next")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(screen)


def wait_for(screen: int, text: str) -> None:
    """Read until a text is on the screen."""
    seen, deadline = "", time.monotonic() + WAIT_SECONDS
    while text not in seen:
        ready, _, _ = select.select([screen], [], [], max(0, deadline - time.monotonic()))
        assert ready, (text, seen)
        seen += os.read(screen, 65536).decode(errors="replace")
