"""The measurement of many subscribers runs from end to end. Its values are not judged here."""

from __future__ import annotations

import pytest

from benchmarks.bench import Bench, Effort
from benchmarks.fanout import KINDS, delivery_rows, memory_row


@pytest.mark.slow
@pytest.mark.parametrize("era", KINDS)
def test_every_row_is_measured(era: str) -> None:
    bench = Bench(Effort(1, 1), lambda _text: None)
    rows = [*delivery_rows(bench, era, 20, runs=1, changes=3), memory_row(bench, era, 20)]
    assert len(rows) == 4
    assert all(row.through for row in rows)
