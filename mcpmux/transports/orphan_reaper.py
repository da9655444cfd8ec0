"""A separate program: ends the process groups that mcpmux leaves behind when it is killed. Not on Windows.

`OrphanGuard` starts it, with the standard library alone. Its standard input brings a line `+GROUP` for every
group that was started, and `-GROUP` for every one that has ended. The end of its input is the end of mcpmux,
for any reason: the groups that are left get time to end, SIGTERM, time, SIGKILL.
"""

from __future__ import annotations

import os
import signal
import sys
import time

CLOSE_SECONDS = 2.0  # a server ends when its input does; as long as mcpmux itself would wait
TERMINATE_SECONDS = 2.0
LOOK_SECONDS = 0.02


def read_groups() -> set[int]:
    """Read the lines of mcpmux until it ends; return the groups that are left."""
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        if line.startswith(b"+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    return groups


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a group, 0 for none; return False if no process of the group is left."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it runs as another user, so that only the end of its input can end it
    return True


def wait_for(groups: set[int], seconds: float) -> set[int]:
    """Wait until the groups have ended, for so many seconds at most; return those that are left."""
    end = time.monotonic() + seconds
    while groups and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
        groups = {group for group in groups if signal_group(group, 0)}
    return groups


def main() -> None:
    """Wait for the end of mcpmux, then end the groups that it has left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a signal that stops mcpmux is not for us: we end after it
    groups = wait_for(read_groups(), CLOSE_SECONDS)
    for group in groups:
        signal_group(group, signal.SIGTERM)
    for group in wait_for(groups, TERMINATE_SECONDS):
        signal_group(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
