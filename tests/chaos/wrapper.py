"""Stands between mcpmux and a server on standard input and output, and spoils the server's lines.

    wrapper.py MODE_FILE PROGRAM ARGUMENT…

The file has the present mode: empty (honest), `garbage`, `cut`, `ids`, `twice`, `silent` or `slow`. About
every second line is spoilt. The output is either the server's or visibly wrong, so that a client can judge.
"""

import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

mode_file = Path(sys.argv[1])
chance = random.Random(os.getpid())
out = sys.stdout.buffer


def spoilt(mode, line):
    """Return the output for one line of the server."""
    if mode == "garbage":
        return chance.randbytes(chance.randrange(1, 2000)).replace(b"\n", b"") + b"\n" + line
    if mode == "cut":
        return line[: chance.randrange(len(line))] + b"\n"
    if mode == "ids":
        message = json.loads(line)
        if "id" in message:
            message["id"] = chance.choice([f"{message['id']}", message["id"] + 1_000_000, -1, 0.5, None])
        return json.dumps(message).encode() + b"\n"
    if mode == "twice":
        return line + line
    if mode == "slow":
        time.sleep(chance.uniform(0, 0.3))
        return line
    return b"" if mode == "silent" else line


def pass_on(child):
    for line in sys.stdin.buffer:
        try:
            child.stdin.write(line)
            child.stdin.flush()
        except OSError:
            return
    child.stdin.close()


with subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
    threading.Thread(target=pass_on, args=(child,), daemon=True).start()
    assert child.stdout is not None
    for line in child.stdout:
        mode = mode_file.read_text()
        try:
            out.write(spoilt(mode, line) if mode and chance.random() < 0.5 else line)
            out.flush()
        except OSError:
            break
    child.kill()
    os._exit(0)  # not by way of the interpreter's end, which the other thread could hold up
