"""An audit log on a disk that gets full: `python -m tests.traffic.audit_limited FOLDER`.

A limit on the size of files stands in for the disk: a write that reaches it takes what fits and then fails,
as on a full disk. Prints one word for each exchange and how it went.
"""

from __future__ import annotations

import resource
import signal
import sys
from pathlib import Path

import trio

from mcpmux.config import Audit as AuditSettings
from mcpmux.errors import RpcError
from mcpmux.logs import configure_logs
from mcpmux.traffic.audit.opening import open_audit
from mcpmux.traffic.recorder import Recorder
from tests.traffic.audit_world import call_of, fields, leg_of

LIMIT_BYTES = 5000
EXCHANGES = 20


async def main(directory: Path) -> None:
    configure_logs("error", "console")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, hard))
    async with open_audit(AuditSettings(directory=str(directory)), "run") as audit:
        recorder = Recorder([], [audit], trio.current_time)
        for number in range(EXCHANGES):
            print(number, await exchange(recorder, number))
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        number = EXCHANGES
        while await exchange(recorder, number) == "refused":
            await trio.sleep(0.05)
            number += 1
        print(number, "answered")


async def exchange(recorder: Recorder, number: int) -> str:
    try:
        await recorder.admit(leg_of(), number, call_of("resources/read", uri="memo:1"))
    except RpcError:
        return "refused"
    try:
        await recorder.ended(number, fields({"contents": []}))
    except RpcError:
        return "withheld"
    return "answered"


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
