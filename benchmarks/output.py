"""A report is written to `benchmarks/results/DATE-MACHINE.md`, beside those of other days and machines."""

from __future__ import annotations

import platform
import re
from datetime import date
from pathlib import Path

from benchmarks.process import PROJECT

RESULTS = PROJECT / "benchmarks" / "results"
NAME = "benchmarks/results/DATE-MACHINE.md"  # as help texts show it
PART = "part"  # of a run that left something out: it does not replace a whole one, and git ignores it

_MARKS = re.compile(r"\((?:R|TM)\)", re.IGNORECASE)
_NOISE = re.compile(r"\b(?:\d+-core|cpu|processor)\b", re.IGNORECASE)
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9]+")


def processor(described: str | None = None) -> str:
    """Return the processor's model as the kernel describes it, or else its architecture.

    `described` is the text of `/proc/cpuinfo`, which is read when it is None.
    """
    text = Path("/proc/cpuinfo").read_text() if described is None else described
    match = re.search(r"^model name[ \t]*:[ \t]*(\S.*)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def machine_name(model: str) -> str:
    """Return a processor's model as part of a file name: `Intel(R) Xeon(R) CPU @ 2.60GHz` is `intel-xeon`."""
    words = _NOISE.sub(" ", _MARKS.sub(" ", model.partition("@")[0]))
    return _NOT_IN_A_NAME.sub("-", words.lower()).strip("-") or "unknown"


def result_path(*parts: str) -> Path:
    """Return the file of a report that this machine makes today. `parts` come behind its name."""
    return RESULTS / f"{'-'.join((date.today().isoformat(), machine_name(processor()), *parts))}.md"


def heading() -> str:
    """Return the first line of a report that this machine makes today."""
    return f"# Benchmarks of {date.today().isoformat()}, {processor()}"
