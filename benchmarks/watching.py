"""Rows: mcpmux that keeps or shows what passes, beside mcpmux that does not; on the same cores, in turns.

Runs are long: files rotate and are compressed meanwhile, and no queue can take all of it. With both cores,
of which load generator and upstreams use one, the threads that write files can run beside the exchanges.

In a closed loop connections wait for answers: at a rate of 0.6 the mean latency is 1.67 times as long.
"""

from __future__ import annotations

from functools import partial
from tempfile import TemporaryDirectory

from benchmarks.bench import UPSTREAMS, Bench
from benchmarks.goal import at_least, at_most
from benchmarks.naming import ADMIN, AUDIT, CAPTURE, http_config
from benchmarks.report import Row, rate_row, shares, time_row

METADATA = CAPTURE.replace("full", "metadata")
SUSTAINED_SECONDS = 30  # in which files are rotated and queues are full
SHORT = (
    f"Runs shorter than {SUSTAINED_SECONDS} s end before the queues of capture and audit log are full: they "
    "show more than what mcpmux can keep up."
)


P99 = at_most(1.5, " × as long")


def _watched(what: str, settings: str, share: float, bench: Bench, *, both_cores: bool = False) -> list[Row]:
    measure = (
        f"read 1 KB, 64 connections, modern, {what}{', both cores' if both_cores else ''} (direct: without)"
    )
    bench.note(measure)
    lasting = bench.lasting()
    if lasting.effort.seconds < SUSTAINED_SECONDS and SHORT not in bench.remarks:
        bench.remarks.append(SHORT)
    places = (bench.mux_core, bench.load_core) if both_cores else bench.mux_core
    with bench.upstream(UPSTREAMS) as upstream, TemporaryDirectory() as folder:
        plain = http_config(upstream.lines(UPSTREAMS))
        watched = settings.format(folder=folder) + plain
        with bench.mux(plain, places) as mux, bench.mux(watched, places) as watching:
            pairs = lasting.side_by_side(mux, watching)
    direct, through = [pair.direct.p99 for pair in pairs], [pair.through.p99 for pair in pairs]
    slowest = time_row(f"{measure}, p99", direct, through).judged(P99, shares(direct, through))
    return [rate_row(measure, pairs, at_least(share)), slowest]


capture = partial(_watched, "full capture", CAPTURE, 0.6)
metadata = partial(_watched, "capture of metadata", METADATA, 0.75)
audit = partial(_watched, "audit log", AUDIT, 0.6)
admin = partial(_watched, "admin listener with its inspector", ADMIN, 0.75)
together = partial(_watched, "full capture, audit log and admin listener", CAPTURE + AUDIT + ADMIN, 0.4)
