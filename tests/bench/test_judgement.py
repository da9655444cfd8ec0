"""Whether results meet conditions, and what is said of it."""

from __future__ import annotations

import pytest

from mcpmux.bench.assertion import judge, judge_all, parse_assertion
from mcpmux.bench.results import Results, generator_of
from tests.bench.made import made, pushes

FAILING = made(
    lambda random, at: 0.010,
    operations=("read", "list tools"),
    outcome=lambda random: random.choice(["ok"] * 9 + ["rpc -32602"]),
    generator=generator_of(10, 20),
    fan_out=pushes(3),
)
EMPTY = made(rate=0.01, seconds=3)

HELD = [
    ("p50<11ms", FAILING, True), ("p50<9ms", FAILING, False), ("p50>=9ms", FAILING, True),
    ("mean<11ms", FAILING, True), ("max<9ms", FAILING, False), ("min>9ms", FAILING, True),
    ("read.p99<11ms", FAILING, True), ("list tools.p99<9ms", FAILING, False),
    ("service.p99<11ms", FAILING, True), ("connect.p50<1s", FAILING, True),
    ("connect.max<1ms", FAILING, False),
    ("errors<20%", FAILING, True), ("errors<5%", FAILING, False), ("errors>100", FAILING, True),
    ("rate>80/s", FAILING, True), ("rate>95/s", FAILING, False), ("read.rate<60/s", FAILING, True),
    ("requests>=2000", FAILING, True), ("requests>2000", FAILING, False),
    ("generator<60%", FAILING, True), ("generator<40%", FAILING, False),
    ("lost<=3", FAILING, True), ("lost<3", FAILING, False), ("duplicates<=1", FAILING, True),
    ("delivery.p99<1s", FAILING, True), ("delivery.max<1ms", FAILING, False),
    ("lost<=0", EMPTY, False), ("delivery.p99<1s", EMPTY, False),
    ("errors<1%", EMPTY, False),
]  # fmt: skip


@pytest.mark.parametrize(("text", "results", "held"), HELD)
def test_every_measure_is_judged_by_its_own_value(text: str, results: Results, held: bool) -> None:
    assertion = parse_assertion(text)
    verdict = judge(assertion, results)
    assert verdict.held is held, verdict.sentence
    assert verdict.sentence.startswith(f"docs: {assertion.text} {'holds' if held else 'does not hold'}: ")


def test_an_operation_that_is_not_there_is_told_with_what_may_be_meant() -> None:
    verdict = judge(parse_assertion("list tool.p99<1s"), FAILING)
    assert not verdict.held
    assert verdict.value is None
    assert "did you mean 'list tools'?" in verdict.sentence


def test_a_percentile_of_few_is_told_to_be_the_slowest() -> None:
    few = made(rate=10, seconds=5)
    assert judge(parse_assertion("p99.9<1s"), few).sentence.endswith(
        "(of 50 only, so the slowest one decides)"
    )
    assert "so the slowest" not in judge(parse_assertion("p50<1s"), few).sentence


def test_all_have_to_hold_for_all_targets() -> None:
    good, bad = parse_assertion("p50<11ms"), parse_assertion("p50<9ms")
    other = made(lambda random, at: 0.001, name="mail")
    assert [each.held for each in judge_all([good, bad], [FAILING, other])] == [True, False, True, True]
