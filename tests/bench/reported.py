"""Results with everything that a report can tell, and with texts that mean harm."""

from __future__ import annotations

import msgspec

from mcpmux.bench.results import Results, generator_of
from tests.bench.made import about, made, pushes

EVIL = '=cmd|<script>alert(1)</script>"\x1b[31m\u202e&[bold]'

WHOLE = made(
    lambda random, at: random.lognormvariate(-5, 0.5) + max(0.0, 8 - at) * (at >= 6),
    operations=("read", "list"),
    outcome=lambda random: random.choice(["ok"] * 20 + ["timeout", "rpc -32602"]),
    fan_out=pushes(),
)
STEPPED = made(steps=(50, 100, 200), name="stepped", generator=generator_of(20, 20))
EMPTY = made(rate=0.01, seconds=3, name="empty")


def broken(results: Results) -> Results:
    steps = list(results.steps)
    steps[-1] = msgspec.structs.replace(steps[-1], held=False, why="p99 was 60 ms")
    return msgspec.structs.replace(results, steps=tuple(steps), stopped="the server ended", unfinished=3)


def evil() -> Results:
    results = broken(made(operations=(EVIL,), outcome=lambda random: EVIL, name=EVIL, steps=(20, 40)))
    return msgspec.structs.replace(
        results,
        about=msgspec.structs.replace(about(EVIL, load=EVIL), transport=EVIL, revision=EVIL),
        stopped=EVIL,
    )
