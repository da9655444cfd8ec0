"""Conditions: what is read, what is refused and with which words, and whether results meet them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpmux.bench.assertion import (
    BadAssertion,
    check_parts,
    check_together,
    judge,
    judge_all,
    parse_assertion,
)
from tests.bench.made import made, pushes

READ = [
    ("p99<20ms", None, "p99", "<", 0.02, "seconds"),
    ("p99.9 <= 1 s", None, "p99.9", "<=", 1.0, "seconds"),
    ("read.p50<=5ms", "read", "p50", "<=", 0.005, "seconds"),
    ("read.p99.9<5ms", "read", "p99.9", "<", 0.005, "seconds"),
    ("tools/call a.b.max<.5min", "tools/call a.b", "max", "<", 30.0, "seconds"),
    ("mean > 250us", None, "mean", ">", 0.00025, "seconds"),
    ("errors<0.1%", None, "errors", "<", 0.001, "share"),
    ("errors<=0", None, "errors", "<=", 0.0, "count"),
    ("rate>500/s", None, "rate", ">", 500.0, "rate"),
    ("rate>=60/min", None, "rate", ">=", 1.0, "rate"),
    ("requests>=1000", None, "requests", ">=", 1000.0, "count"),
    ("lost<=0", None, "lost", "<=", 0.0, "count"),
    ("generator<90%", None, "generator", "<", 0.9, "share"),
    ("connect.p99<1s", "connect", "p99", "<", 1.0, "seconds"),
]


@pytest.mark.parametrize(("text", "part", "measure", "comparison", "limit", "kind"), READ)
def test_a_condition_is_read(text, part, measure, comparison, limit, kind):
    rule = parse_assertion(text)
    assert (rule.part, rule.measure, rule.comparison, rule.kind) == (part, measure, comparison, kind)
    assert rule.limit == pytest.approx(limit)


REFUSED = [
    ("", 0, "needs a comparison"),
    ("p99 20ms", 8, "needs a comparison"),
    ("p99=20ms", 3, "write <= or >="),
    ("p99=<20ms", 3, "write <="),
    ("p99!=20ms", 3, "write <= or >="),
    ("<20ms", 0, "begins with what is measured"),
    ("p99<", 4, "a number has to follow"),
    ("p99<fast", 4, "a number has to follow"),
    ("p99<20", 6, "p99 needs a unit: write us or µs or ms or s or min"),
    ("p99<20%", 6, "'%' is no unit of p99"),
    ("rate>5ms", 6, "'ms' is no unit of rate: write /s or /min"),
    ("errors<5ms", 8, "write % or no unit"),
    ("p101<1s", 0, "they go from p0 to p100"),
    ("read.p100.1<1s", 5, "they go from p0 to p100"),
    ("error<1%", 0, "did you mean errors?"),
    ("read.rat>1/s", 5, "did you mean rate?"),
    ("speed>1/s", 0, "known are p50"),
    (".p99<5ms", 0, "name of an operation"),
    ("service.rate>5/s", 8, "service has only times"),
    ("read.lost<1", 0, "about the whole run"),
    ("p99<0ms", 4, "can never hold"),
    ("p99<-5ms", 4, "can never hold"),
    ("errors<0%", 7, "can never hold"),
    ("errors>100%", 7, "can never hold"),
    ("errors<=100%", 8, "always holds"),
    ("errors>=0", 8, "always holds"),
    ("rate>=0/s", 6, "always holds"),
]


@pytest.mark.parametrize(("text", "place", "problem"), REFUSED)
def test_a_condition_that_means_nothing_is_refused_with_its_place(text: str, place: int, problem: str):
    with pytest.raises(BadAssertion) as caught:
        parse_assertion(text)
    assert problem in caught.value.problem
    assert caught.value.place == place
    assert str(caught.value).splitlines()[1:] == [f"  {text}", "  " + " " * place + "^"]


@settings(deadline=None)
@given(st.text(max_size=30) | st.text(alphabet="p9.<>=ms%/ read-", max_size=15))
def test_any_text_is_read_or_refused(text: str):
    try:
        assertion = parse_assertion(text)
    except BadAssertion as error:
        assert error.problem
    else:
        assert parse_assertion(assertion.text) == assertion


@pytest.mark.parametrize(
    "texts",
    [
        ("p99<5ms", "p99>10ms"),
        ("p99>10ms", "p99<5ms"),
        ("p99<10ms", "p99<5ms", "p99>=5ms"),
        ("read.rate>10/s", "read.rate<=10/s"),
        ("errors<1%", "errors<0.1%", "errors>0.1%"),
    ],
)
def test_conditions_that_exclude_each_other_are_refused(texts: tuple[str, ...]):
    with pytest.raises(BadAssertion, match="cannot both hold"):
        check_together(map(parse_assertion, texts))


def test_conditions_that_can_hold_together_are_fine():
    texts = (
        "p99<10ms",
        "p99>=5ms",
        "p50<1ms",
        "read.p99<1ms",
        "rate>=5/s",
        "rate<=5/s",
        "errors<1%",
        "errors<=5",
    )
    check_together(map(parse_assertion, texts))


def test_a_condition_on_an_operation_that_is_not_there_is_refused():
    check_parts([parse_assertion("read.p99<1s"), parse_assertion("connect.p99<1s")], ["read"])
    with pytest.raises(BadAssertion, match="did you mean 'read'"):
        check_parts([parse_assertion("raed.p99<1s")], ["read", "list"])


RESULTS = made(
    lambda random, at: 0.01,
    operations=("read", "list tools"),
    outcome=lambda random: "ok" if random.random() < 0.9 else "tool_error",
    fan_out=pushes(losses=3),
)


@pytest.mark.parametrize(
    ("text", "held", "sentence"),
    [
        ("p99<20ms", True, "docs: p99<20ms holds: it is 10.0 ms"),
        ("p99<5ms", False, "docs: p99<5ms does not hold: it is 10.0 ms"),
        ("mean<11ms", True, "it is 10.0 ms"),
        ("min>9ms", True, "it is 10.0 ms"),
        ("read.max<=10.1ms", True, "10.0 ms"),
        ("list tools.p99<9ms", False, "it is 10.0 ms"),
        ("service.p50<9.99ms", True, "it is 9.98 ms"),
        ("errors<20%", True, "%"),
        ("errors<5%", False, "it is "),
        ("errors<=0", False, "it is "),
        ("rate>50/s", True, "/s"),
        ("rate<100/s", True, "/s"),
        ("rate>95/s", False, "/s"),
        ("read.rate<60/s", True, "/s"),
        ("requests>=2000", True, "it is 2,000"),
        ("requests>2000", False, "it is 2,000"),
        ("connect.max<5ms", True, "4.70 ms"),
        ("delivery.p99<1s", True, "10.9 ms"),
        ("delivery.max<1ms", False, "it is "),
        ("lost<=2", False, "it is 3"),
        ("duplicates<=1", True, "it is 1"),
        ("generator<50%", True, "it is 20.0 %"),
        ("p99.99<20ms", True, "only, so the slowest one decides"),
        ("raed.p50<1s", False, "did you mean 'read'"),
    ],
)
def test_results_are_judged_with_a_sentence(text: str, held: bool, sentence: str):
    judgement = judge(parse_assertion(text), RESULTS)
    assert judgement.held is held
    assert sentence in judgement.sentence


def test_what_was_not_measured_does_not_meet_a_condition():
    nothing = made(rate=0.01, seconds=5)
    for text in ("p99<20s", "errors<1%", "lost<=0", "delivery.p99<1s"):
        judgement = judge(parse_assertion(text), nothing)
        assert not judgement.held
        assert judgement.value is None
        assert "nothing of it was measured" in judgement.sentence


def test_all_conditions_are_judged_for_all_targets():
    good, bad = made(lambda random, at: 0.001), made(lambda random, at: 0.1, name="slow")
    conditions = [parse_assertion("p99<20ms"), parse_assertion("rate>10/s")]
    assert all(judgement.held for judgement in judge_all(conditions, [good]))
    judged = judge_all(conditions, [good, bad])
    assert [judgement.held for judgement in judged] == [True, True, False, True]
    assert judged[2].sentence.startswith("slow: ")


@pytest.mark.parametrize(
    ("condition", "value", "said"),
    [
        ("p99<50ms", 0.0512, "51.2 ms"),
        ("rate>500/s", 499.123, "499/s"),
        ("errors<1%", 0.0214, "2.14 %"),
        ("requests>=1000", 999.0, "999"),
    ],
)
def test_what_was_measured_is_told_in_the_units_of_its_condition(condition: str, value: float, said: str):
    assert parse_assertion(condition).text_of(value) == said
